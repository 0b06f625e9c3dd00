"""The arithmetic that a request and a device come to."""

from ..engine.devices import Device
from ..engine.errors import DeviceUnavailableError
from ..engine.precision import Precision
from .errors import SettingsError


def chosen_precision(asked: Precision | None, device: Device, name: str) -> Precision:
    """What was asked for, or else the device's own; name: of the device, as the user gave it.

    Raises DeviceUnavailableError or SettingsError.
    """
    if asked is None:
        return device.default_precision
    if asked in device.precisions:
        return asked
    if name == "auto":
        raise DeviceUnavailableError(
            f"Precision {asked} needs a CUDA device, and {device.note}; leave --precision out."
        )
    raise SettingsError(
        f"The CPU computes in fp32 only, not in {asked}; leave --precision out or choose a CUDA "
        "device."
    )
