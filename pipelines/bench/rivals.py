"""Rivals that run the same network: PyTorch's modes, and other cuDNN libraries.

Each runs in a process of its own, which may crash, hang or fill the GPU without affecting others.
"""

import os
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

from ...engine.benchmark.alternatives import modes
from ...engine.benchmark.measurement import Latency
from ...engine.errors import EngineError
from ...engine.model.reference import relative_error
from ...engine.network.layers import FloatArray
from ..run.process import Channel, WorkerProcess, ending, launch
from .measurement import Bench, measure, noise

_OTHER_INPUTS = 3
"""Number of further batches used in turn, so that no cache contains the next run's input."""

_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class Rival:
    """Measurement of a rival. runs_on: library and version. is_pytorch: else it is another cuDNN.

    allocated: peak bytes of tensors and weights; reserved: bytes of their memory pool, or the
    decrease of free memory; None if not counted. difference: relative L2 error of the output
    against this program's. name: displayed name. latency: latency of a run.
    """

    name: str
    runs_on: str
    is_pytorch: bool
    latency: Latency
    allocated: int | None
    reserved: int | None
    difference: float


@dataclass(frozen=True, slots=True)
class FailedRival:
    """Rival that failed.

    name: name of the rival. reason: the reason, in one sentence.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PytorchTask:
    """Task for one of PyTorch's modes. output: this program's output for the first patch.

    name: name of the mode. bench: this program's benchmark.
    """

    name: str
    bench: Bench
    output: FloatArray

    def run(self) -> Rival:
        """Measure the mode in this process."""
        from ...engine.benchmark import pytorch as torch_bench
        from ...engine.benchmark.pytorch import as_module

        torch: Any = torch_bench.torch
        setting = self.bench.setting
        network, _ = self.bench.subject.load()
        kind, precision = setting.device.kind, setting.precision
        [mode] = [m for m in modes(kind, precision) if m.name == self.name]
        place = f"cuda:{setting.device.index}" if kind == "cuda" else "cpu"
        if kind == "cuda":
            torch.cuda.set_device(setting.device.index)
        first = torch.from_numpy(noise(network.graph.in_channels, setting.patch, setting.batch))
        others = [torch.rand_like(first) * 2 - 1 for _ in range(_OTHER_INPUTS)]
        inputs = [patches.to(place) for patches in (first, *others)]
        measurement = torch_bench.measure(mode, as_module(network), inputs, self.bench.budget)
        return Rival(
            name=self.name,
            runs_on=f"torch {torch.__version__}",
            is_pytorch=True,
            latency=measurement.latency,
            allocated=measurement.allocated,
            reserved=measurement.reserved,
            difference=relative_error(measurement.output[:1].numpy(), self.output),
        )


@dataclass(frozen=True, slots=True)
class CudnnTask:
    """Task for this program with the cuDNN library of a folder. output: with the installed one.

    folder: that folder. bench: this program's benchmark.
    """

    folder: Path
    bench: Bench
    output: FloatArray

    @property
    def name(self) -> str:
        """Path of the folder."""
        return str(self.folder)

    def run(self) -> Rival:
        """Measure the library in this process, which must not have loaded cuDNN yet."""
        from ...engine.benchmark.alternatives import check_cudnn, use_cudnn

        use_cudnn(self.folder)
        budget = replace(self.bench.budget, layers=False)
        outcome = measure(replace(self.bench, budget=budget))
        check_cudnn(self.folder)
        measured = outcome.measured
        return Rival(
            name=self.name,
            runs_on=measured.device,
            is_pytorch=False,
            latency=measured.latency,
            allocated=measured.memory.planned,
            reserved=measured.memory.taken,
            difference=relative_error(outcome.output, self.output),
        )


RivalTask: TypeAlias = PytorchTask | CudnnTask
RivalResult: TypeAlias = Rival | FailedRival


def in_child(task: RivalTask, seconds: float) -> RivalResult:
    """Run a task in a process of its own; it fails if it does not succeed within `seconds`."""
    with tempfile.TemporaryFile() as output:
        process: WorkerProcess[object, RivalResult]
        process = launch(partial(_measure, task), _environment(task), output)
        try:
            return process.channel.receive(seconds)
        except TimeoutError:
            return FailedRival(task.name, f"took longer than {seconds:g} s")
        except EOFError:
            return FailedRival(task.name, _death(process.reap(), output))
        finally:
            process.kill()
            process.reap()


def _environment(task: RivalTask) -> dict[str, str]:
    if not isinstance(task, CudnnTask):
        return dict(os.environ)
    inherited = os.environ.get("LD_LIBRARY_PATH")
    places = [str(task.folder.resolve()), *([inherited] if inherited else [])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(places)}


def _death(status: int, output: IO[bytes]) -> str:
    """Return the reason why a process ended without an answer, with its last line of output."""
    output.seek(0)
    lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its process ended ({ending(status)})" + (f": {last[:_LONGEST_REASON]}" if last else "")


def _measure(task: RivalTask, channel: Channel[RivalResult, object]) -> None:
    """Run the task in the worker process and send its result."""
    channel.send(_done(task))


def _done(task: RivalTask) -> RivalResult:
    try:
        return task.run()
    except EngineError as error:
        return FailedRival(task.name, str(error))
    except Exception as error:  # boundary: any exception of a library fails only this rival
        said = next(iter(str(error).splitlines()), "")
        return FailedRival(task.name, f"{type(error).__name__}: {said[:_LONGEST_REASON]}")
