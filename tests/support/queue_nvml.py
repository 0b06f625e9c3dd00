"""The driver's library as `gpu_sharing` calls it, with cards that a test fills."""

from dataclasses import dataclass, field
from typing import Any

import pynvml as _pynvml

pynvml: Any = _pynvml  # the package ships no types


@dataclass
class Holder:
    """A process on a card; usedGpuMemory: None where the driver does not tell."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815


@dataclass
class Sample:
    """Sample of how busy a process kept the GPU, in percent; timeStamp: microseconds."""

    pid: int
    timeStamp: int  # noqa: N815
    smUtil: int  # noqa: N815


@dataclass
class Card:
    """One card of a fake driver, or a part of one (MIG)."""

    uuid: str
    computing: list[Holder] = field(default_factory=list[Holder])
    drawing: list[Holder] = field(default_factory=list[Holder])
    samples: list[Sample] = field(default_factory=list[Sample])
    is_lost: bool = False
    is_part: bool = False


class FakeDriver:
    """Stand-in for the module `pynvml`; raises the real one's errors."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotFound = pynvml.NVMLError_NotFound
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported

    def __init__(self, *cards: Card, is_there: bool = True) -> None:
        self._cards = cards
        self._is_there = is_there

    def nvmlInit(self) -> None:  # noqa: N802
        if not self._is_there:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self._cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> Card:  # noqa: N802
        return next(card for card in self._cards if card.uuid.encode() == uuid)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Holder]:  # noqa: N802
        if card.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return card.computing

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: Card) -> list[Holder]:  # noqa: N802
        return card.drawing

    def nvmlDeviceGetProcessUtilization(self, card: Card, since: int) -> list[Sample]:  # noqa: N802
        if card.is_part:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = [sample for sample in card.samples if sample.timeStamp > since]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found
