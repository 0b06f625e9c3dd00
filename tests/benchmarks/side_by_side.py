"""Work in processes side by side, each of which measures while the others are stopped."""

import io
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from benchmarks.code_of_others import Row, sentence

_ASKS, _DONE = "asks to be alone", "done alone"
_SETTLED = 0.1
"""Seconds after which a stopped process has nothing left on the GPU."""

_MOST_ALONE = 60.0
"""Seconds for which the others are stopped at most."""


class Turn:
    """A process's means to measure alone."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection

    @contextmanager
    def alone(self) -> Generator[None]:
        """Stop the other processes; the GPU and the cores are this process's alone."""
        self._connection.send(_ASKS)
        self._connection.recv()
        try:
            yield
        finally:
            self._connection.send(_DONE)


Work = Callable[[Turn], Row]


@dataclass(slots=True)
class _Running:
    """deadline: time of the monotonic clock at which the process is ended."""

    label: str
    process: BaseProcess
    deadline: float

    def signal(self, number: signal.Signals) -> None:
        """Signal the process and those that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, number)


def side_by_side(
    work: Mapping[str, Work], processes: int, seconds: float
) -> Iterator[tuple[str, Row]]:
    """Yield what each work returns, by label, in the order in which they end.

    seconds: of one, while it is not stopped; then it is ended. Code of others may do anything, so
    each has a process of its own.
    """
    context = get_context(_start_method())
    waiting, running = deque(work.items()), dict[Any, _Running]()
    while waiting or running:
        while waiting and len(running) < processes:
            label, one = waiting.popleft()
            here, there = context.Pipe()
            process = context.Process(target=_run, args=(one, there))
            process.start()
            there.close()
            running[here] = _Running(label, process, time.monotonic() + seconds)
        for connection in wait(list(running), timeout=1.0):
            message = _received(connection)
            if message == _ASKS:
                _let_alone(connection, running)
            else:
                yield _ended(running.pop(connection)), message or {"broken": "the process died"}
        for connection, one in list(running.items()):
            if time.monotonic() > one.deadline:
                yield _ended(running.pop(connection)), {"broken": f"not done in {seconds:.0f} s"}


def _start_method() -> str:
    """Return "fork", which is faster, unless a fork of this process cannot use the GPU."""
    trial = get_context("fork").Process(target=torch.zeros, args=(1,), kwargs={"device": "cuda"})
    trial.start()
    trial.join()
    return "spawn" if trial.exitcode else "fork"


def _run(work: Work, connection: "Connection[Any, Any]") -> None:
    os.setsid()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # code of others is old
    try:
        with redirect_stdout(io.StringIO()):
            made = work(Turn(connection))
    except BaseException as error:  # code of others may raise anything
        made = {"broken": sentence(error)}
    connection.send(made)
    os._exit(0)


def _received(connection: "Connection[Any, Any]") -> Any:
    """Return a message, or None of a process that has died."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _let_alone(chosen: "Connection[Any, Any]", running: Mapping[Any, _Running]) -> None:
    """Stop all other processes until the chosen one has measured."""
    others = [one for connection, one in running.items() if connection is not chosen]
    begin = time.monotonic()
    for one in others:
        one.signal(signal.SIGSTOP)
    time.sleep(_SETTLED)
    chosen.send(None)
    if not chosen.poll(_MOST_ALONE) or _received(chosen) != _DONE:
        running[chosen].signal(signal.SIGKILL)
    for one in others:
        one.signal(signal.SIGCONT)
        one.deadline += time.monotonic() - begin


def _ended(one: _Running) -> str:
    """End a process, and return its label."""
    one.signal(signal.SIGKILL)
    one.process.join()
    return one.label
