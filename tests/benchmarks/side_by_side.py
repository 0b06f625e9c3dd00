"""Work in processes side by side, one of which has the GPU, if there is one."""

import io
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from benchmarks.code_of_others import Row, sentence


@dataclass(frozen=True, slots=True)
class Turn:
    """A process's means to have the GPU to itself. path: file that who has it has locked."""

    path: Path

    @contextmanager
    def alone(self) -> Generator[None]:
        """Wait until no other process is in such a block. One that dies leaves it."""
        with self.path.open("w") as file:
            flock(file, LOCK_EX)
            yield


Work = Callable[[Turn], Row]


@dataclass(frozen=True, slots=True)
class _Running:
    """deadline: time of the monotonic clock at which the process is ended."""

    label: str
    process: BaseProcess
    deadline: float


def side_by_side(
    work: Mapping[str, Work], processes: int, seconds: float
) -> Iterator[tuple[str, Row]]:
    """Yield what each work returns, by label, in the order in which they end.

    seconds: of one, with its waits for the GPU; then it is ended. Code of others may do anything,
    so each has a process of its own.
    """
    context = get_context(_start_method())
    waiting, running = deque(work.items()), dict[Any, _Running]()
    with TemporaryDirectory() as folder:
        turn = Turn(Path(folder) / "gpu")
        while waiting or running:
            while waiting and len(running) < processes:
                label, one = waiting.popleft()
                here, there = context.Pipe()
                process = context.Process(target=_run, args=(one, turn, there))
                process.start()
                there.close()
                running[here] = _Running(label, process, time.monotonic() + seconds)
            for connection in wait(list(running), timeout=1.0):
                row = _received(connection)
                yield _ended(running.pop(connection)), row or {"broken": "the process died"}
            for connection, one in list(running.items()):
                if time.monotonic() > one.deadline:
                    yield (
                        _ended(running.pop(connection)),
                        {"broken": f"not done in {seconds:.0f} s"},
                    )


def _start_method() -> str:
    """Return "fork", which is faster, unless a fork of this process cannot use the GPU."""
    if not torch.backends.cuda.is_built():
        return "spawn"
    trial = get_context("fork").Process(target=torch.zeros, args=(1,), kwargs={"device": "cuda"})
    trial.start()
    trial.join()
    return "spawn" if trial.exitcode else "fork"


def _run(work: Work, turn: Turn, connection: "Connection[Any, Any]") -> None:
    os.setsid()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # code of others is old
    try:
        with redirect_stdout(io.StringIO()):
            made = work(turn)
    except BaseException as error:  # code of others may raise anything
        made = {"broken": sentence(error)}
    connection.send(made)
    os._exit(0)


def _received(connection: Any) -> Row | None:
    """Return what a process made, or None of one that has died."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _ended(one: _Running) -> str:
    """End a process and those that it started, and return its label."""
    for send in (os.kill, os.killpg):  # it may not lead its group yet
        with suppress(ProcessLookupError):
            send(one.process.pid or 0, signal.SIGKILL)
    one.process.join()
    return one.label
