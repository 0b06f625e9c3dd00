"""The arithmetic that a request and the devices for it come to."""

from collections.abc import Sequence

from ..engine.devices import Device
from ..engine.errors import DeviceUnavailableError
from ..engine.options import Precision
from .errors import SettingsError


def chosen_precision(asked: Precision | None, devices: Sequence[Device], name: str) -> Precision:
    """What was asked for, or else the devices' own; name: of the devices, as the user gave it.

    Raises DeviceUnavailableError or SettingsError.
    """
    if asked is None:
        return devices[0].default_precision
    for device in devices:
        if asked not in device.precisions:
            raise _refusal(asked, device, name)
    return asked


def _refusal(asked: Precision, device: Device, name: str) -> DeviceUnavailableError | SettingsError:
    if device.kind == "cuda":
        return SettingsError(
            f"Card {device.index} computes in {' and '.join(device.precisions)} only; {asked} "
            "needs compute capability 8.0. Leave setting precision out or choose another device."
        )
    if name == "auto":
        return DeviceUnavailableError(
            f"Precision {asked} needs a CUDA device, and {device.note}; leave setting precision "
            "out."
        )
    on = "The CPU" if device.kind == "cpu" else f"Device {device.name}"
    return SettingsError(
        f"{on} computes in fp32 only, not in {asked}; leave setting precision out or choose a "
        "CUDA device."
    )
