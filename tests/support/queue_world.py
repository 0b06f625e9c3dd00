"""A queue with real studies, workers as real processes, and the commands that people give."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from support.batch_world import SHAPE, scan, tiny_model
from support.processes import children_of, runs
from support.queue_jobs import pass_time
from support.waiting import eventually
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.jobs.events import WorkerEvent, WorkerSettings
from cuda_cyclegan.pipelines.jobs.queue.job import JobRow, JobState
from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables
from cuda_cyclegan.pipelines.jobs.worker import work
from cuda_cyclegan.pipelines.run.process import launch

COMMAND = [sys.executable, "-m", "cuda_cyclegan"]
HELD_WORKERS = Path(__file__).parent / "held_workers"


class QueueWorld:
    """queue: what `--queue` takes."""

    def __init__(self, folder: Path, queue: str | None = None) -> None:
        self.folder = folder
        self.queue = queue or str(folder / "private" / "queue.db")
        self.inputs = folder / "in"
        self.output = folder / "out"
        self.model = tiny_model(folder / "model.safetensors")
        self._processes: list[subprocess.Popen[str]] = []

    def scans(self, count: int, shape: tuple[int, ...] = SHAPE) -> None:
        for number in range(count):
            scan(self.inputs / f"{number:03}.nii", number, shape)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments], env={VARIABLE: self.queue})

    def did(self, *arguments: str) -> str:
        """Run a command that must succeed and return what it printed."""
        done = self.run(*arguments)
        fault = traceback.format_exception(done.exception) if done.exception else ()
        assert done.exit_code == 0, "".join((done.stderr, *fault))
        return done.stdout

    def work(self, only: str = "") -> list[WorkerEvent]:
        """Do, in this process, what may be done now, or of one batch; what the worker said."""
        reported: list[WorkerEvent] = []
        settings = WorkerSettings(until_empty=True, only=only)
        assert work(queue_place(self.queue), "cpu", settings, reported.append) == "empty"
        return reported

    def submit(self, *options: str) -> str:
        """The batch's name."""
        paths = [str(self.inputs), "--model", str(self.model), "--output", str(self.output)]
        return self.did("submit", *paths, *options).strip()

    def start(
        self,
        *arguments: str,
        start_new_session: bool = False,
        home: Path | None = None,
        command: Sequence[str] = COMMAND,
        go_on: Path | None = None,
    ) -> "subprocess.Popen[str]":
        """A command in the background.

        home: of another machine, or container, that has this one's name. go_on: a file of `held`,
        before whose release no worker process of it begins.
        """
        elsewhere = {"HOME": f"{home}", "XDG_STATE_HOME": f"{home}/state"} if home else {}
        if go_on:
            elsewhere |= {"GO_ON": f"{go_on}", "PYTHONPATH": f"{HELD_WORKERS}"}
        process = subprocess.Popen(
            [*command, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, VARIABLE: self.queue, **elsewhere},
            start_new_session=start_new_session,
        )
        self._processes.append(process)
        return process

    @contextmanager
    def held(self) -> Generator[Path]:
        """A locked file for `start`; worker processes begin at the end of the block."""
        go_on = self.folder / "go on"
        with go_on.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield go_on

    def command(self, name: str, *options: str) -> Result:
        """A command over the inputs, such as translate or discover."""
        paths = [str(self.inputs), "--model", str(self.model), "--output", str(self.output)]
        selected = paths[:1] if name == "discover" else paths
        return self.run(name, *selected, *options)

    def watch(self) -> "subprocess.Popen[str]":
        """A process that queues studies as they arrive among the inputs."""
        paths = [str(self.inputs), "--model", str(self.model), "--output", str(self.output)]
        return self.start("watch", *paths, "--settle", "0")

    def close(self) -> None:
        for process in self._processes:
            killed_with_children(process)
            if process.stderr:
                process.stderr.close()

    def jobs(self, batch: str) -> list[dict[str, Any]]:
        return json.loads(self.did("jobs", batch, "--json"))["jobs"]

    def rows(self, batch: str, states: Collection[JobState] = ()) -> list[JobRow]:
        """Return the rows as `Queue.jobs` does; also for a worker's threads, where no command may
        run.

        Raises QueueLostError.
        """
        with open_queue(queue_place(self.queue)) as queue:
            return queue.jobs(batch, states)

    def pass_time(self, seconds: float) -> None:
        """Have the jobs wait for so much longer already."""
        with open_tables(queue_place(self.queue), create=False) as tables:
            pass_time(tables, seconds)

    def states(self, batch: str) -> list[str]:
        """Return the states of its jobs."""
        return [row.state for row in self.rows(batch)]

    def wait_until_done(self, batch: str) -> None:
        """Wait for workers in the background."""
        eventually(
            lambda: {*self.states(batch)} == {"done"}, evidence=lambda: self.did("jobs", batch)
        )

    def made(self) -> set[str]:
        return {path.name for path in self.output.glob("*.nii")}


def closed_window() -> str:
    """A minute half a day from now, as jobs may start in, whatever the time of the test."""
    opens = datetime.now() + timedelta(hours=12)
    return f"{opens:%H:%M}-{opens + timedelta(minutes=1):%H:%M}"


def children(process: int) -> list[int]:
    """The processes at work for a `worker` command: each holds the lock of its name."""
    return [found for found in _launched(process) if _holds_a_lock(found)]


def killed_with_children(process: "subprocess.Popen[bytes]") -> None:
    """End a command and the processes at work for it at once, as a power cut would."""
    if process.poll() is None:
        for child in children(process.pid):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(child, 9)
        process.kill()
    process.wait()


def child_after(process: int, *before: int) -> int:
    """The one at work for a `worker` command, once it is none of those of before."""
    eventually(lambda: len(children(process)) == 1 and children(process)[0] not in before)
    return children(process)[0]


def spares(process: int) -> list[int]:
    """Return the processes that wait to replace one at work."""
    return [found for found in _launched(process) if not _holds_a_lock(found)]


def _launched(process: int) -> list[int]:
    """Return the processes launched, without the programs that imports run for a moment."""
    return [
        found
        for found in children_of(process)
        if runs(found) and launch.__module__.encode() in _command(found)
    ]


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def _holds_a_lock(process: int) -> bool:
    files: list[str] = []
    with suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                files.append(str(file.readlink()))
    return any(file.endswith(".lock") for file in files)


def handles(process: int, number: signal.Signals) -> bool:
    """Whether it has a handler for the signal by now."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)
