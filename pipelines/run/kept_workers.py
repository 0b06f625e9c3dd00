"""Worker processes that keep their networks open from one batch to the next of the same model."""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

from ...engine.startup import early_model
from .messages import Ended, JobAssigned
from .pipe_worker import PipeWorker
from .process import Channel, WorkerProcess, device_of, launch
from .spare_workers import assigned_worker, job_assigned

_IDLE_SECONDS = 5.0
"""Longest wait of a worker for its next job: an idle one keeps the memory of its GPU."""


@dataclass(frozen=True, slots=True, eq=False)
class _KeptProcess(WorkerProcess[Any, Any]):
    """Worker process that is kept when its batch lets go of it."""

    keep: "Callable[[_KeptProcess], None]"

    def let_go(self) -> None:
        """Wait for the next batch."""
        self.keep(self)


class KeptWorkers:
    """Owner of worker processes between batches; a process belongs to a batch while it works.

    A batch takes them by the name of their device, also if batches overlap. A process that waits
    for 5 s ends. Any thread may use this object. model: model file of all batches.
    """

    def __init__(self, model: Path) -> None:
        self._task = partial(_work, model)
        self._idle = defaultdict[str, list[_KeptProcess]](list)
        self._lock = threading.Lock()
        self._is_closed = False

    def prepare(self, name: str) -> None:
        """Start a worker of that name for the first batch, which loads libraries and the model."""
        self._keep(name, self._started(name))

    def take(self, job: PipeWorker) -> WorkerProcess[Any, Any]:
        """Send a job to an idle worker of its name, or to a new one; the caller owns it then."""
        worker = self._taken(job.name)
        while worker and worker.process.poll() is not None:
            worker.reap()
            worker = self._taken(job.name)
        worker = worker or self._started(job.name)
        worker.channel.send(job_assigned(job))
        return worker

    def close(self) -> None:
        """End all idle workers, and keep none from now on."""
        with self._lock:
            self._is_closed = True
            idle = [worker for workers in self._idle.values() for worker in workers]
            self._idle.clear()
        for worker in idle:
            _end(worker)

    def _taken(self, name: str) -> _KeptProcess | None:
        with self._lock:
            return self._idle[name].pop() if self._idle[name] else None

    def _started(self, name: str) -> _KeptProcess:
        started = launch(self._task, device=device_of(name))
        return _KeptProcess(started.channel, started.process, partial(self._keep, name))

    def _keep(self, name: str, worker: _KeptProcess) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle[name].append(worker)
                return
        _end(worker)


def _end(worker: WorkerProcess[Any, Any]) -> None:
    worker.kill()
    worker.reap()


def _work(model: Path, channel: Channel[Any, Any]) -> None:
    """Run the assigned jobs, one after another, until none comes."""
    read_model = early_model(model)
    try:
        assigned: JobAssigned = channel.receive(_IDLE_SECONDS)
    except (EOFError, TimeoutError):
        return
    networks = None
    while worker := assigned_worker(assigned, read_model):
        if networks is None:
            networks = worker.networks(channel, keeps=True)
        source = worker.run(channel, networks)
        if source is None:
            return
        channel.send(Ended())
        try:
            assigned = source.following.get(timeout=_IDLE_SECONDS)
        except Empty:
            return
    channel.send(Ended(f"{model} is another file than the model of the batch."))
