"""Prewarmed worker processes, which load libraries, read the model and create their GPU's context
while the job is still being examined. Imports little, to start them early.
"""

import io
import pickle
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.errors import ModelFileError
from ...engine.probe.gpus import CudaDevice, only_usable_gpu
from .messages import JobAssigned
from .process import Channel, WorkerProcess, device_of, launch, process_names

if TYPE_CHECKING:
    from ...engine.model.model_file import Model
    from .pipe_worker import PipeWorker


@dataclass(frozen=True, slots=True)
class GpuFound:
    """Message to the supervisor. gpu: the one GPU that a spare worker sees, None if unusable."""

    gpu: CudaDevice | None


class SpareWorkers:
    """Prewarmed workers that wait for a job, by name."""

    def __init__(self, workers: Mapping[str, WorkerProcess[Any, Any]]) -> None:
        self._workers = dict(workers)
        self._found: dict[str, CudaDevice | None] = {}

    def gpus(self) -> tuple[CudaDevice, ...]:
        """Return the GPU of each worker, numbered as in this process; none if any worker has none.

        Waits until their drivers have started.
        """
        found = [self._gpu(worker) for worker in self._workers]
        known = tuple(gpu for gpu in found if gpu)
        return known if len(known) == len(found) else ()

    def take(self, job: "PipeWorker") -> WorkerProcess[Any, Any] | None:
        """Send the worker of that name its job, and return it; the caller owns it from then on.

        Returns None if there is no such spare worker.
        """
        if job.name not in self._workers:
            return None
        self._gpu(job.name)  # receives GpuFound, which the job's supervisor does not expect
        worker = self._workers.pop(job.name)
        worker.channel.send(job_assigned(job))
        return worker

    def end(self) -> None:
        """End the remaining workers."""
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.reap()

    def _gpu(self, worker: str) -> CudaDevice | None:
        if worker not in self._found:
            self._found[worker] = self._received(worker)
        return self._found[worker]

    def _received(self, worker: str) -> CudaDevice | None:
        try:
            gpu = self._workers[worker].channel.receive().gpu
        except EOFError:
            return None
        return gpu and replace(gpu, index=int(device_of(worker).rpartition(":")[2]))


@contextmanager
def spare_workers(devices: Sequence[str], model: Path) -> Generator[SpareWorkers]:
    """Start a process for each of these GPUs; end those not taken by the end of the block.

    model: file of the model that their jobs will use.
    """
    task = partial(_work, model)
    names = process_names(devices)
    spares = SpareWorkers({name: launch(task, device=device_of(name)) for name in names})
    try:
        yield spares
    finally:
        spares.end()


_NOT_THE_MODEL = 1
"""Exit status if the model's file has changed or is gone; a successor gets the whole job."""


def _work(model: Path, channel: Channel[Any, Any]) -> int | None:
    from ...engine.startup import early_model

    read_model = early_model(model)
    threading.Thread(target=lambda: channel.send(GpuFound(only_usable_gpu())), daemon=True).start()
    from .pipe_worker import PipeWorker  # loads its libraries while the job is awaited

    try:
        assigned: JobAssigned = channel.receive()
    except EOFError:  # the supervisor is gone
        return None
    worker: PipeWorker | None = assigned_worker(assigned, read_model)
    return worker(channel) if worker else _NOT_THE_MODEL


_WEIGHTS = "weights"


def job_assigned(worker: "PipeWorker") -> JobAssigned:
    """Return the message with a worker's job, for a process that has read the same model."""
    pickled, model = io.BytesIO(), worker.kind.model
    _WithoutWeights(pickled, model.network.weights).dump(worker)
    return JobAssigned(pickled.getvalue(), model.sha256)


def assigned_worker(
    assigned: JobAssigned, read_model: "Callable[[], Model]"
) -> "PipeWorker | None":
    """Return the worker of a message; None if the model that was read is not the job's."""
    from .pipe_worker import PipeWorker

    try:
        read = read_model()
    except ModelFileError:
        return None
    if read.sha256 != assigned.sha256:
        return None
    worker = _WithWeights(io.BytesIO(assigned.worker), read.network.weights).load()
    assert isinstance(worker, PipeWorker)
    return worker


class _WithoutWeights(pickle.Pickler):
    def __init__(self, file: io.BytesIO, weights: object) -> None:
        super().__init__(file)
        self._weights = weights

    def persistent_id(self, obj: object) -> str | None:
        return _WEIGHTS if obj is self._weights else None


class _WithWeights(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, weights: object) -> None:
        super().__init__(file)
        self._weights = weights

    def persistent_load(self, pid: object) -> object:
        assert pid == _WEIGHTS
        return self._weights
