"""Measurement of one network under one setting, in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...engine.benchmark.measurement import Budget, Measured
from ...engine.devices import Device, choose_device, cuda_options, open_generator
from ...engine.model.model_file import load_model
from ...engine.network.architectures import ResNetSpec, Spec, build
from ...engine.network.graph import Graph, Network
from ...engine.network.layers import FloatArray, Triple
from ...engine.options import CudaLimits, Precision, Progress, ignore_progress
from ..decisions import chosen_precision
from ..errors import SettingsError
from ..host.memory import PeakMeter, return_free_memory

_SEED = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """Network identified by its source, so that another process can build the same one.

    source: a model file, or the specification of an untrained generator.
    """

    source: Path | Spec

    @property
    def name(self) -> str:
        """Description for the user."""
        match self.source:
            case Path():
                return str(self.source)
            case ResNetSpec(width=width, blocks=blocks):
                return f"ResNet generator, ngf {width}, {blocks} blocks, drawn weights"
            case spec:
                return f"U-Net generator, ngf {spec.width}, {spec.levels} levels, drawn weights"

    def load(self) -> tuple[Network, Triple | None]:
        """Return the network, and the patch that it was trained for. Raises ModelFileError."""
        if isinstance(self.source, Path):
            model = load_model(self.source)
            return model.network, model.card.patch
        return drawn(build(self.source)), None


def drawn(graph: Graph) -> Network:
    """Return the graph with reproducible random weights that preserve signal variance (He et al.
    2015).

    Zeros would run faster than any trained network does.
    """
    random = np.random.default_rng(_SEED)
    weights: dict[str, FloatArray] = {}
    for name, shape in graph.weight_shapes():
        if len(shape) == 5:
            # A transposed convolution has its outputs second; the smaller count is cautious.
            spread = np.sqrt(2 / (np.prod(shape) / max(shape[:2])))
            weights[name] = (random.standard_normal(shape) * spread).astype(np.float32)
        else:
            filling = 1.0 if name.endswith("scale") else 0.0
            weights[name] = np.full(shape, filling, np.float32)
    return Network(graph, weights)


def noise(channels: int, patch: Triple, batch: int) -> FloatArray:
    """Return reproducible patches [batch, channels, D, H, W] in [-1, 1)."""
    drawn = np.random.default_rng(_SEED).random((batch, channels, *patch), np.float32)
    return 2 * drawn - 1


_PATCHES: dict[str, Triple] = {"cuda": (128, 128, 128), "cpu": (64, 64, 64)}
"""Default patches for networks that define none, so that a first measurement takes seconds."""

_Keep = Callable[[FloatArray], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting in which a network runs. patch: (D, H, W). batch: patches in one run.

    device: device that runs it. precision: precision of its arithmetic.
    """

    device: Device
    patch: Triple
    batch: int
    precision: Precision


@dataclass(frozen=True, slots=True)
class Bench:
    """Benchmark: the subject, its setting, and the time budget.

    subject: the network and its name. setting: setting in which it runs. budget: time to spend.
    """

    subject: Subject
    setting: Setting
    budget: Budget


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """Measurement, and the network's output for the first patch: [1, C, D, H, W].

    measured: the measurement. output: that output.
    """

    measured: Measured
    output: FloatArray


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """Benchmark request of the user; None takes the model's or the device's default.

    subject: the network and its name. device: as for `translate`. limits: limits on the use of a
    GPU. precision: precision of the arithmetic. patch: (D, H, W). batch: patches in one run.
    budget: time to spend.
    """

    subject: Subject
    device: str
    limits: CudaLimits
    precision: Precision | None
    patch: Triple | None
    batch: int
    budget: Budget


def open_bench(request: BenchRequest) -> tuple[Bench, Network]:
    """Check a request, and load its network.

    Raises ModelFileError, PatchShapeError, DeviceUnavailableError or SettingsError.
    """
    network, trained_for = request.subject.load()
    device = choose_device(request.device, request.limits)
    if device.kind == "onnxruntime":
        raise SettingsError(
            f"Device {device.name} cannot be measured; use setting device=cpu or a CUDA device.",
            "device",
        )
    precision = chosen_precision(request.precision, [device], request.device)
    patch = request.patch or trained_for or _PATCHES[device.kind]
    network.graph.check_patch(patch)
    setting = Setting(device, patch, request.batch, precision)
    return Bench(request.subject, setting, request.budget), network


def measure(
    bench: Bench, network: Network | None = None, progress: Progress = ignore_progress
) -> BenchOutcome:
    """Measure; network: the subject's, if the caller has it already. Raises EngineError.

    progress: called with the progress of the search for fast tactics, if there is one.
    """
    setting = bench.setting
    if network is None:
        network, _ = bench.subject.load()
    patches = noise(network.graph.in_channels, setting.patch, setting.batch)
    kept: list[FloatArray] = []

    def keep(output: FloatArray) -> None:
        kept.append(output[:1].copy())

    if setting.device.kind == "cuda":
        measured = _on_gpu(network, bench, patches, keep, progress)
    else:
        measured = _on_cpu(network, bench, patches, keep)
    return BenchOutcome(measured, kept[0])


def _on_gpu(
    network: Network, bench: Bench, patches: FloatArray, keep: _Keep, progress: Progress
) -> Measured:
    from ...engine.benchmark.gpu import measure_on_gpu

    setting = bench.setting
    options = cuda_options(setting.device, setting.precision, progress)
    return measure_on_gpu(network, options, setting.batch, patches, bench.budget, keep)


def _on_cpu(network: Network, bench: Bench, patches: FloatArray, keep: _Keep) -> Measured:
    from ...engine.benchmark.cpu import measure_on_cpu

    return_free_memory()
    meter = PeakMeter()
    before = meter.read().bytes
    setting = bench.setting
    opening = open_generator(network, setting.device, setting.precision, setting.patch)

    def taken() -> int:
        return meter.read().bytes - before

    return measure_on_cpu(network, opening, setting.precision, patches, bench.budget, keep, taken)
