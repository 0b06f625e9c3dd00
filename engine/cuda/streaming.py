"""Streaming of rows between arrays of the host and the GPU: pinned slots, and when phases ran.

Independent of patches and volumes, and of the stream that copies: one set of slots for each
direction and each array in flight is enough for copies that overlap other work.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

import numpy as np

from ..compiler.kernels.sliding_window import CLIPPED_BYTES, clipped_voxels
from ..cores import in_parallel
from ..patch_grid import Phase, Timing
from ..scaling import Stored, VoxelArray
from .driver import CudaEvent, PinnedBuffer, Stream

_SHARE = 8 << 20
"""Bytes of each part of a copy on the host; in smaller ones, threads wait for the interpreter."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """Pinned memory, with an event after its last copy."""

    buffer: PinnedBuffer
    copied: CudaEvent


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows in a pinned slot, which are to be copied to or from the GPU. voxels: the rows."""

    voxels: VoxelArray
    _slot: _Slot

    def upload(self, stream: Stream, address: int) -> None:
        """Queue their copy to the GPU."""
        stream.upload(address, self.voxels.ctypes.data, self.voxels.nbytes)
        self._slot.copied.record(stream)

    def download(self, stream: Stream, address: int) -> None:
        """Queue their copy from the GPU."""
        stream.download(self.voxels.ctypes.data, address, self.voxels.nbytes)
        self._slot.copied.record(stream)

    def put(self, target: VoxelArray) -> None:
        """Wait for their copy from the GPU, and copy them on to their place."""
        self._slot.copied.wait()
        _copy(target, self.voxels)


class PinnedSlots:
    """Two pinned buffers: while the host fills or empties one, the GPU copies the other.

    size: bytes of each. One array at a time may use them, and one thread.
    """

    def __init__(self, size: int, opened: ExitStack) -> None:
        """opened: closes the buffers. Raises DeviceMemoryError if the host has no memory to pin."""
        self.size = size
        buffers = [opened.enter_context(PinnedBuffer(size)) for _ in range(2)]
        slots = [_Slot(buffer, opened.enter_context(CudaEvent())) for buffer in buffers]
        self._first, *_ = slots
        self._turns = cycle(slots)

    def upload(
        self, pieces: Iterable[VoxelArray], queue: Callable[[int, StagedRows], None]
    ) -> None:
        """Stage pieces of an array; queue: queues the copy of a piece by its number."""
        for number, piece in enumerate(pieces):
            slot = next(self._turns)
            slot.copied.wait()
            rows = StagedRows(slot.buffer.array(piece.shape, piece.dtype), slot)
            _copy(rows.voxels, piece)
            queue(number, rows)

    def download(
        self,
        targets: Iterable[VoxelArray],
        queue: Callable[[int, StagedRows], None],
        put: Callable[[int], None],
    ) -> None:
        """Fill places of an array, and wait until all are.

        queue: queues the copy of a piece by its number. put: called once it is in its place.
        """
        queued: deque[tuple[int, VoxelArray, StagedRows]] = deque()

        def put_first() -> None:
            number, target, rows = queued.popleft()
            rows.put(target)
            put(number)

        for number, target in enumerate(targets):
            slot = next(self._turns)
            rows = StagedRows(slot.buffer.array(target.shape, target.dtype), slot)
            queue(number, rows)
            queued.append((number, target, rows))
            if len(queued) == 2:  # frees the slot of the next
                put_first()
        while queued:
            put_first()

    def is_finite(self, stream: Stream, target: Stored, overflowed: int, clipped: int) -> bool:
        """Return whether all voxels of a target are finite, once the stream's work is done.

        What its voxel type could not hold is reported to it. overflowed, clipped: addresses of what
        `store_voxels` counts.
        """
        if self._read(stream, overflowed, 4).any():
            return False
        if target.values.dtype.kind in "iu":
            counted = self._read(stream, clipped, CLIPPED_BYTES)
            if counted.any():
                target.on_clipped(clipped_voxels(counted.tobytes(), target.values.dtype))
        return True

    def _read(self, stream: Stream, address: int, size: int) -> VoxelArray:
        """Return bytes at an address, once the stream's work is done; valid until the next call."""
        content = self._first.buffer.array((size,), np.uint8)
        stream.download(content.ctypes.data, address, size)
        stream.wait()
        return content


def _copy(target: VoxelArray, source: VoxelArray) -> None:
    """Copy some rows of the slowest axis at a time, or of a run of voxels, on several cores."""
    if target.flags.c_contiguous and source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)
    rows = max(1, len(target) * _SHARE // max(1, target.nbytes))

    def copy_from(first: int) -> None:
        target[first : first + rows] = source[first : first + rows]

    in_parallel(copy_from, range(0, len(target), rows))


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """Events at both ends of a phase. If an end is recorded again, the last time counts.

    part: the phase. start, stop: the events.
    """

    part: Phase
    start: CudaEvent
    stop: CudaEvent

    @property
    def seconds(self) -> float:
        """Length of the phase, once it is over."""
        return self.stop.seconds_since(self.start)


class PhaseTimes:
    """The phases of an array's way through the GPU. opened: closes the events."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._events: list[CudaEvent] = []
        self._used = 0
        self._marks: list[PhaseMark] = []

    def restart(self) -> None:
        """Forget the phases; their events serve the next array."""
        self._used = 0
        self._marks.clear()

    def event(self) -> CudaEvent:
        """Return an event that stays open as long as this, for use until the next restart."""
        if self._used == len(self._events):
            self._events.append(self._opened.enter_context(CudaEvent()))
        self._used += 1
        return self._events[self._used - 1]

    def mark(self, part: Phase) -> PhaseMark:
        """Return the mark of a phase, whose ends are to be recorded."""
        mark = PhaseMark(part, self.event(), self.event())
        self._marks.append(mark)
        return mark

    @contextmanager
    def around(self, part: Phase, stream: Stream) -> Generator[None]:
        """Mark what is queued inside the block as a phase."""
        mark = self.mark(part)
        mark.start.record(stream)
        yield
        mark.stop.record(stream)

    def timings(self, stream: Stream) -> list[Timing]:
        """Return when each phase ran by the host's clock, once the stream's work is done."""
        end = self.event()
        end.record(stream)
        end.wait()
        now = perf_counter()
        return [
            Timing(
                mark.part, now - end.seconds_since(mark.start), now - end.seconds_since(mark.stop)
            )
            for mark in self._marks
        ]
