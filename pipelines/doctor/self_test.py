"""Self-test: each device translates a tiny patch, and the result is compared with PyTorch's.

Each also translates a patch of usual extents, for which it may use other kernels or, on the CPU,
another runtime; there ONNX Runtime's result counts as correct.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ...engine import devices
from ...engine.devices import Device
from ...engine.options import CudaLimits, Precision
from ..host.thread_limits import NO_MORE_THREADS, is_out_of_threads
from .findings import Finding, failure, ok, warning

if TYPE_CHECKING:
    from ...engine.model.model_file import Model
    from ...engine.network.layers import FloatArray, Triple

MODEL = Path(__file__).with_name("self_test.safetensors")
_USUAL: "Triple" = (128, 128, 128)
_USUAL_ON_CPU: "Triple" = (64, 64, 64)
"""Patch with enough work for OpenVINO in fp32."""


@dataclass(frozen=True, slots=True)
class _KnownPatch:
    """Patches [1, C, D, H, W], and the network's output for them."""

    patches: "FloatArray"
    right: "FloatArray"

    @property
    def extents(self) -> "Triple":
        depth, height, width = self.patches.shape[2:]
        return depth, height, width


def examine_devices() -> Iterator[Finding]:
    """Yield one line per device that this machine offers."""
    yield _test(devices.choose_device("cpu"))
    if devices.choose_device("auto").kind != "cpu":
        for gpu in devices.choose_devices("cuda", CudaLimits(tune="off")):
            yield _test(gpu)
    with suppress(ImportError):  # of ONNX Runtime, which the CPU's test reports
        for device in devices.other_providers():
            yield _test(device)


def _test(device: Device) -> Finding:
    from ...engine.errors import DeviceUnavailableError, EngineError
    from ...engine.model.model_file import load_model
    from ...engine.model.reference import tolerance

    subject = f"Self-test, {_subject(device)}"
    begin = perf_counter()
    try:
        model = load_model(MODEL)
        trials = _trials(model, device)
        tried: dict[Precision, tuple[str, float]] = {
            one: _tried(model, device, one, trials) for one in device.precisions
        }
    except EngineError as error:
        if device.kind == "onnxruntime" and isinstance(error, DeviceUnavailableError):
            return warning(subject, str(error), "update its driver and libraries if you need it")
        return failure(subject, str(error), "install cuda-cyclegan again")
    except Exception as error:  # a broken library may raise anything; the test reports it
        if is_out_of_threads(error):
            what, _, advice = NO_MORE_THREADS.rstrip(".").partition("; ")
            return failure(subject, what, advice)
        words = f"stopped with {type(error).__name__}: {error}"
        return failure(subject, words, "update the device's driver and libraries")
    spent = perf_counter() - begin
    errors = ", ".join(f"{precision} {error:.1e}" for precision, (_, error) in tried.items())
    name, _ = tried[device.default_precision]
    patches = " and ".join("x".join(map(str, trial.extents)) for trial in trials)
    words = f"{name}: relative error {errors} with patches of {patches}, in {spent:.2f} s"
    allowed = {one: tolerance(one) for one in tried}
    wrong: list[Precision] = [one for one in tried if not tried[one][1] <= allowed[one]]
    if wrong:
        limits = [f"{allowed[one]:.1e} in {one}" for one in wrong]
        return failure(
            subject,
            f"{words}, where {' and '.join(limits)} is allowed",
            "do not use this device; update its driver and libraries and test again",
        )
    return ok(subject, words)


def _subject(device: Device) -> str:
    match device.kind:
        case "cpu":
            return "CPU"
        case "cuda":
            return f"CUDA {device.index}"
        case "onnxruntime":
            return device.name


def _trials(model: "Model", device: Device) -> list[_KnownPatch]:
    from ...engine.cpu.session import open_cpu_generator
    from ...engine.model.reference import reference_input

    extents = _USUAL_ON_CPU if device.kind == "cpu" else _USUAL
    patches = reference_input(model.network.graph.in_channels, extents)
    with open_cpu_generator(model.network) as reference:
        usual = _KnownPatch(patches, reference(patches))
    return [_KnownPatch(model.reference_input, model.reference_output), usual]


def _tried(
    model: "Model", device: Device, precision: Precision, trials: Sequence[_KnownPatch]
) -> tuple[str, float]:
    """Return the device's own name, and its largest relative error."""
    from ...engine.model.reference import relative_error

    name, errors = "", list[float]()
    for trial in trials:
        opening = devices.open_generator(model.network, device, precision, trial.extents)
        with opening as generator:
            errors.append(relative_error(generator(trial.patches), trial.right))
            name = generator.device.removesuffix(f", {precision}").removesuffix(f": {precision}")
    return name, max(errors, key=lambda error: error if error == error else float("inf"))
