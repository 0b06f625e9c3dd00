"""Measures one network under one setting, in this process."""

from collections.abc import Callable
from dataclasses import dataclass

from ..engine.devices import CudaLimits, Device, Precision, choose_device
from ..engine.graph import FloatArray, Network, Triple
from ..engine.measured import Budget, Measured
from ..engine.tuning import cache_folder
from .bench_subject import Subject, noise
from .memory import PeakMeter
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
    precision = chosen_precision(request.precision, device, request.device)
    patch = request.patch or trained_for or _PATCHES[device.kind]
    network.graph.check_patch(patch)
    setting = Setting(device, patch, request.batch, precision)
    return Bench(request.subject, setting, request.budget), network


def measure(bench: Bench, network: Network | None = None) -> Outcome:
    """Measure; network: the subject's, where the caller has it already. Raises EngineError."""
    setting = bench.setting
    if network is None:
        network, _ = bench.subject.load()
    patches = noise(network.graph.in_channels, setting.patch, setting.batch)
    kept: list[FloatArray] = []

    def keep(output: FloatArray) -> None:
        kept.append(output[:1].copy())

    measure_on = _on_card if setting.device.kind == "cuda" else _on_cpu
    return Outcome(measure_on(network, bench, patches, keep), kept[0])


def _on_card(network: Network, bench: Bench, patches: FloatArray, keep: _Keep) -> Measured:
    from ..engine.cuda import CudaOptions
    from ..engine.cuda_bench import measure_on_card
    from ..engine.plan_search import Search

    setting = bench.setting
    limits = setting.device.limits
    options = CudaOptions(
        setting.patch,
        batch=setting.batch,
        precision=setting.precision,
        device=setting.device.index,
        vram_limit=limits.vram,
        cache=cache_folder(),
        search=Search(limits.tune),
    )
    return measure_on_card(network, options, patches, bench.budget, keep)


def _on_cpu(network: Network, bench: Bench, patches: FloatArray, keep: _Keep) -> Measured:
    from ..engine.cpu_bench import measure_on_cpu

    meter = PeakMeter()
    before = meter.read().bytes
    return measure_on_cpu(network, patches, bench.budget, keep, lambda: meter.read().bytes - before)
