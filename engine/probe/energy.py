"""What cards consume, by their own counters."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from .cards import management_library

_FEWEST_SECONDS = 1.0
"""That a measurement for a figure takes: the counters move ten times a second."""


@dataclass(frozen=True, slots=True)
class Energy:
    """What cards consumed together, in whatever program.

    joules: of all of them. seconds: from the first reading to the last.
    """

    joules: float
    seconds: float

    @property
    def watts(self) -> float:
        """On average."""
        return self.joules / self.seconds if self.seconds else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether it took long enough to be told from what the counters round off."""
        return self.seconds >= _FEWEST_SECONDS


class EnergyMeter:
    """Counts from when it is made. buses: PCI addresses of the cards."""

    def __init__(self, buses: Sequence[str]) -> None:
        self._buses = buses
        self._since, self._first = perf_counter(), _joules(self._buses)

    def read(self) -> Energy | None:
        """What was consumed so far; None without a card, or where one has no counter."""
        last = _joules(self._buses)
        if self._first is None or last is None:
            return None
        return Energy(last - self._first, perf_counter() - self._since)


def _joules(buses: Sequence[str]) -> float | None:
    """What the counters of the cards at these addresses show together."""
    library = management_library() if buses else None
    if library is None:
        return None
    millijoules = 0
    for bus in buses:
        handle, counted = ctypes.c_void_p(), ctypes.c_ulonglong()
        if library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle)):
            return None
        if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(counted)):
            return None
        millijoules += counted.value
    return millijoules / 1000
