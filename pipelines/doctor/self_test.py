"""Each device translates a tiny patch, and the result is compared with PyTorch's."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ...engine import devices
from ...engine.devices import Device
from ...engine.options import CudaLimits, Precision
from .findings import Finding, failure, ok

if TYPE_CHECKING:
    from ...engine.model.model import Model

MODEL = Path(__file__).with_name("self_test.safetensors")

TOLERANCES: dict[Precision, float] = {"fp32": 1e-5, "tf32": 2.5e-3, "fp16": 5e-3, "bf16": 3e-2}
"""Relative L2 error up to which a precision computes the stored result.

An H200 stayed below them with generators of 9 blocks (2026-11-21). The one of the self-test has 1
block; with its numbers rounded on a CPU it comes to 1.6e-3 in fp16, 1.2e-2 in bf16 and 1.2e-3 in
tf32.
"""


def examine_devices() -> Iterator[Finding]:
    """One line a device that this machine claims to offer."""
    yield _test(devices.choose_device("cpu"))
    if devices.choose_device("auto").kind != "cpu":
        for card in devices.choose_devices("cuda", CudaLimits(tune="off")):
            yield _test(card)


def _test(device: Device) -> Finding:
    from ...engine.errors import EngineError
    from ...engine.model.model import load_model

    number = f" {device.index}" if device.kind == "cuda" else ""
    subject = f"Self-test, {device.kind.upper()}{number}"
    begin = perf_counter()
    try:
        model = load_model(MODEL)
        tried: dict[Precision, tuple[str, float]] = {
            one: _tried(model, device, one) for one in device.precisions
        }
    except EngineError as error:
        return failure(subject, str(error), "install cuda-cyclegan again")
    except Exception as error:  # whatever a broken library raises is what this test is for
        words = f"stopped with {type(error).__name__}: {error}"
        return failure(subject, words, "update the device's driver and libraries")
    spent = perf_counter() - begin
    told = ", ".join(f"{precision} {error:.1e}" for precision, (_, error) in tried.items())
    name, _ = tried[device.default_precision]
    words = f"{name}: relative error {told}, in {spent:.2f} s"
    wrong: list[Precision] = [one for one in tried if not tried[one][1] <= TOLERANCES[one]]
    if wrong:
        limits = [f"{TOLERANCES[one]:g} in {one}" for one in wrong]
        return failure(
            subject,
            f"{words}, where {' and '.join(limits)} is allowed",
            "do not use this device; update its driver and libraries and test again",
        )
    return ok(subject, words)


def _tried(model: "Model", device: Device, precision: Precision) -> tuple[str, float]:
    """What the device calls itself, and its relative error."""
    from ...engine.model.reference import relative_error

    depth, height, width = model.reference_input.shape[2:]
    patch = depth, height, width
    with devices.open_generator(model.network, device, precision, patch) as generator:
        output = generator(model.reference_input)
        name = generator.device.removesuffix(f", {precision}").removesuffix(f": {precision}")
    return name, relative_error(output, model.reference_output)
