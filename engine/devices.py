"""Which device computes. Imports nothing heavy until a generator is opened."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from .errors import DeviceUnavailableError

if TYPE_CHECKING:
    from .cpu import Generator
    from .graph import Network

Precision: TypeAlias = Literal["fp16", "bf16", "tf32", "fp32"]
"""How numbers are stored and multiplied; sums are always fp32. tf32: fp32 with a short mantissa."""

CUDA_OBSTACLE = "this version has no CUDA engine yet"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that is there. note: why "auto" took it, for the user; None if it was asked for."""

    kind: Literal["cpu"]
    default_precision: Precision
    precisions: tuple[Precision, ...]
    note: str | None = None


def choose_device(asked: str) -> Device:
    """The device behind "auto", "cpu", "cuda" or "cuda:0,1".

    Only "auto" falls back on the CPU; a CUDA device that was asked for and cannot be used raises
    DeviceUnavailableError.
    """
    if asked.startswith("cuda"):
        raise DeviceUnavailableError(
            f"Device {asked} cannot be used: {CUDA_OBSTACLE}; use --device cpu."
        )
    note = f"no CUDA device is used: {CUDA_OBSTACLE}" if asked == "auto" else None
    return Device("cpu", "fp32", ("fp32",), note)


def open_generator(
    network: "Network", device: Device, precision: Precision
) -> "AbstractContextManager[Generator]":
    """The network, ready to run on the device between `__enter__` and `__exit__`."""
    from .cpu import CpuGenerator

    if precision not in device.precisions:
        raise ValueError(f"the {device.kind} device does not compute in {precision}")
    return CpuGenerator(network)
