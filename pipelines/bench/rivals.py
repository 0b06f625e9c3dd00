"""The same network by other means: PyTorch's modes, other cuDNN libraries; each in its process."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ...engine.benchmark.measurement import Latency
from ...engine.benchmark.pytorch_modes import modes
from ...engine.model.reference import relative_error
from ...engine.network.layers import FloatArray
from .measurement import Bench, measure, noise

_OTHER_INPUTS = 3
"""Batches taken in turn, so that no cache holds what the next run reads."""


@dataclass(frozen=True, slots=True)
class Rival:
    """What another way came to. runs_on: library and version. is_pytorch: else it is another cuDNN.

    allocated: peak bytes of tensors and weights; reserved: those of the pool that holds them, or
    what was gone from free memory; None where nobody counts them. difference: of the output from
    this program's, as relative L2 error. name: as it is shown. latency: of a run.
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
    """A way that came to nothing, and why in one sentence.

    name: of the way. reason: that sentence.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PytorchTask:
    """One of PyTorch's modes by its name. output: this program's for the first patch.

    bench: what this program measured.
    """

    name: str
    bench: Bench
    output: FloatArray

    def run(self) -> Rival:
        """Measure it in this process."""
        from ...engine.benchmark import pytorch as torch_bench
        from ...engine.benchmark.pytorch_network import as_module

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
        made = torch_bench.measure(mode, as_module(network), inputs, self.bench.budget)
        return Rival(
            name=self.name,
            runs_on=f"torch {torch.__version__}",
            is_pytorch=True,
            latency=made.latency,
            allocated=made.allocated,
            reserved=made.reserved,
            difference=relative_error(made.output[:1].numpy(), self.output),
        )


@dataclass(frozen=True, slots=True)
class CudnnTask:
    """This program with the cuDNN library of a folder. output: with the installed one.

    bench: what this program measured.
    """

    folder: Path
    bench: Bench
    output: FloatArray

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def run(self) -> Rival:
        """Measure it in this process, which must not have loaded cuDNN yet."""
        from ...engine.cuda.cudnn_library import check_cudnn, use_cudnn

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
