"""Each device translates a tiny patch, and the result is compared with PyTorch's."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from ..engine import devices
from ..engine.devices import Device, Precision
from .findings import Finding, failure, ok

MODEL = Path(devices.__file__).with_name("self_test.safetensors")

TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
"""Relative L2 error up to which a precision computes the stored result."""


def examine_devices() -> Iterator[Finding]:
    """One line a device that this machine claims to offer."""
    yield _test(devices.choose_device("cpu"))
    automatic = devices.choose_device("auto")
    if automatic.kind != "cpu":
        yield _test(automatic)


def _test(device: Device) -> Finding:
    from ..engine.errors import EngineError
    from ..engine.model_file import load_model
    from ..engine.reference import relative_error

    subject = f"Self-test, {device.kind.upper()}"
    precision = device.default_precision
    try:
        model = load_model(MODEL)
        begin = perf_counter()
        depth, height, width = model.reference_input.shape[2:]
        patch = depth, height, width
        with devices.open_generator(model.network, device, precision, patch) as generator:
            output = generator(model.reference_input)
            name = generator.device
        spent = perf_counter() - begin
    except EngineError as error:
        return failure(subject, str(error), "install cuda-cyclegan again")
    except Exception as error:  # whatever a broken library raises is what this test is for
        words = f"stopped with {type(error).__name__}: {error}"
        return failure(subject, words, "update the device's driver and libraries")
    difference = relative_error(output, model.reference_output)
    words = f"{name}: {precision}, relative error {difference:.1e} in {spent:.2f} s"
    if not difference <= TOLERANCES[precision]:
        return failure(
            subject,
            f"{words}, where {TOLERANCES[precision]:g} is allowed",
            "do not use this device; update its driver and libraries and test again",
        )
    return ok(subject, words)
