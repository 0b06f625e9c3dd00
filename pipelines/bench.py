"""Measures one network under one setting, in this process."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..engine.devices import Device, choose_device, cuda_options
from ..engine.graph import FloatArray, Network, Triple
from ..engine.limits import CudaLimits
from ..engine.measured import Budget, Measured
from ..engine.precision import Precision
from ..engine.tuning import Progress, unheard
from .bench_subject import Subject, noise
from .memory import PeakMeter, return_free_memory
from .precision import chosen_precision

_PATCHES: dict[str, Triple] = {"cuda": (128, 128, 128), "cpu": (64, 64, 64)}
"""For networks that say nothing of patches: such that a first look takes seconds."""

_Keep = Callable[[FloatArray], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a network is run. patch: (D, H, W). batch: patches in one run."""

    device: Device
    patch: Triple
    batch: int
    precision: Precision


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured, how it is run, and how thoroughly it is timed."""

    subject: Subject
    setting: Setting
    budget: Budget


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured, and what became of the first patch: [1, C, D, H, W]."""

    measured: Measured
    output: FloatArray


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What the user asked for; None takes the model's or the device's default."""

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
    precision = chosen_precision(request.precision, [device], request.device)
    patch = request.patch or trained_for or _PATCHES[device.kind]
    network.graph.check_patch(patch)
    setting = Setting(device, patch, request.batch, precision)
    return Bench(request.subject, setting, request.budget), network


def measure(bench: Bench, network: Network | None = None, progress: Progress = unheard) -> Outcome:
    """Measure; network: the subject's, where the caller has it already. Raises EngineError.

    progress: told of the search for fast plans, should there be one.
    """
    setting = bench.setting
    if network is None:
        network, _ = bench.subject.load()
    patches = noise(network.graph.in_channels, setting.patch, setting.batch)
    kept: list[FloatArray] = []

    def keep(output: FloatArray) -> None:
        kept.append(output[:1].copy())

    if setting.device.kind == "cuda":
        measured = _on_card(network, bench, patches, keep, progress)
    else:
        measured = _on_cpu(network, bench, patches, keep)
    return Outcome(measured, kept[0])


def _on_card(
    network: Network, bench: Bench, patches: FloatArray, keep: _Keep, progress: Progress
) -> Measured:
    from ..engine.cuda_bench import measure_on_card

    setting = bench.setting
    limits = replace(setting.device.limits, batch=setting.batch)
    device = replace(setting.device, limits=limits)
    options = cuda_options(device, setting.precision, setting.patch, progress)
    return measure_on_card(network, options, patches, bench.budget, keep)


def _on_cpu(network: Network, bench: Bench, patches: FloatArray, keep: _Keep) -> Measured:
    from ..engine.cpu_bench import measure_on_cpu

    return_free_memory()
    meter = PeakMeter()
    before = meter.read().bytes
    return measure_on_cpu(network, patches, bench.budget, keep, lambda: meter.read().bytes - before)
