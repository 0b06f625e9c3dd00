"""A volume's voxels between an array of the host and the card, some rows at a time.

Voxels come and go as they are stored: the card maps their intensities. While the host copies rows
to or from one of two pinned slots, the card works on those of the other, and the caller queues what
is done with them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ...compiler.launches.launch import OVERFLOW
from ...compiler.launches.voxels.sliding_window import store_voxels
from ...compiler.launches.voxels.volume import MemoryOrder, rows_into_volume, rows_of_volume
from ...compiler.tensors import PATCHES, TRANSLATED
from ...compiler.volume.lifetimes import VOXELS_IN, VOXELS_OUT
from ...cores import beside_each_other
from ...network.layers import Triple
from ...patch_grid import Rows
from ...scaling import Stored, VoxelArray
from ..driver import Context, CudaEvent, PinnedBuffer
from .overlap import AxisRows
from .program import PlacedVolume


@dataclass(frozen=True, slots=True)
class PinnedSlots:
    """Two slots, each with an event behind the last copy from or to it.

    slots, events: both. voxels: that each has room for, of four bytes. copying: a thread that
    copies to and from them, one piece after another.
    """

    slots: Sequence[PinnedBuffer]
    events: Sequence[CudaEvent]
    voxels: int
    copying: Executor
    _used: set[int] = field(default_factory=set[int])

    def free(self, number: int) -> PinnedBuffer:
        """A slot, when the last copy from it is done."""
        if number in self._used:
            self.events[number].wait()
        return self.slots[number]

    def used(self, number: int) -> CudaEvent:
        """The event to be put behind a copy."""
        self._used.add(number)
        return self.events[number]


_SLOT_VOXELS = 4 << 20
"""Of a slot: enough to copy at full speed."""


def slot_voxels(extents: Triple) -> int:
    """Voxels of a slot for volumes (D, H, W), whichever of their axes lies slowest in memory."""
    shortest, *others = sorted(extents)
    del shortest
    return max(_SLOT_VOXELS, prod(others))


def open_slots(voxels: int, context: Context, opened: ExitStack) -> PinnedSlots:
    """Slots for so many voxels. Raises DeviceMemoryError if the host has no memory to pin."""
    buffers = [opened.enter_context(PinnedBuffer(4 * voxels)) for _ in range(2)]
    events = [opened.enter_context(CudaEvent()) for _ in range(2)]
    copying = opened.enter_context(ThreadPoolExecutor(1, "copying", context.use))
    return PinnedSlots(buffers, events, voxels, copying)


def bring_in(
    placed: PlacedVolume,
    source: Stored,
    slots: PinnedSlots,
    most: int,
    came: Callable[[AxisRows], None],
) -> None:
    """Queue the volume's voxels [C, D, H, W]; the network's extents beyond them repeat the last.

    most: voxels of four bytes that the card has room for at a time, and each slot. came: told after
    each piece which rows of the network's extents have been queued so far.
    """
    program, padded = placed.program, placed.grid.extents
    order = MemoryOrder.of(source.values)
    seen = order.seen(source.values)
    pieces = list(_pieces(len(seen), order, most * 4 // seen.itemsize))
    stored = placed.at(VOXELS_IN)

    def copied(number: int) -> VoxelArray:
        rows, channel = pieces[number]
        slot = slots.free(number % 2)
        staged = slot.array((len(rows), *order.extents[1:]), seen.dtype)
        _copy(staged, seen[channel, rows.start : rows.stop])
        return staged

    coming = slots.copying.submit(copied, 0)
    try:
        for number, (rows, channel) in enumerate(pieces):
            staged = coming.result()
            program.stream.upload(stored, staged.ctypes.data, staged.nbytes)
            slots.used(number % 2).record(program.stream)
            if number + 1 < len(pieces):
                coming = slots.copying.submit(copied, number + 1)
            volume = placed.at(PATCHES) + channel * prod(padded) * 4
            launch = rows_into_volume(order, rows, source, stored, volume, padded)
            program.kernels.launch(program.stream, launch)
            if channel == len(seen) - 1:
                came(_so_far(order, rows.stop, padded))
    finally:
        wait([coming])


def take_out(
    placed: PlacedVolume,
    target: Stored,
    slots: PinnedSlots,
    most: int,
    needed: Callable[[AxisRows], None],
) -> bool:
    """Fill the array [C, D, H, W] with what was made; whether all of it is finite. Waits.

    most: voxels that the card has room for at a time, and each slot. needed: told before each piece
    which rows are to go out, so that what makes them can be queued.
    """
    program, padded = placed.program, placed.grid.extents
    order = MemoryOrder.of(target.values)
    seen = order.seen(target.values)
    floats = placed.at(VOXELS_OUT)
    stored = floats + 4 * most
    waiting: deque[Future[None]] = deque()
    try:
        for number, (rows, channel) in enumerate(_pieces(len(seen), order, most)):
            needed(_along(order, rows))
            if len(waiting) == 2:
                waiting.popleft().result()
            slot = slots.slots[number % 2]
            staged = slot.array((len(rows), *order.extents[1:]), seen.dtype)
            volume = placed.at(TRANSLATED) + channel * prod(padded) * 4
            for launch in (
                rows_of_volume(order, rows, volume, padded, floats),
                store_voxels(floats, staged.size, target, stored, placed.at(OVERFLOW)),
            ):
                program.kernels.launch(program.stream, launch)
            program.stream.download(staged.ctypes.data, stored, staged.nbytes)
            copied = slots.used(number % 2)
            copied.record(program.stream)
            place = seen[channel, rows.start : rows.stop]
            final = rows.stop if channel == len(seen) - 1 else None
            waiting.append(slots.copying.submit(_put, copied, staged, place, target, final))
        for put in waiting:
            put.result()
    finally:  # what still comes must not be written over what a next try makes
        wait(waiting)
    flag = slots.slots[0].array((1,), np.int32)
    program.stream.download(flag.ctypes.data, placed.at(OVERFLOW), 4)
    program.stream.wait()
    return not flag[0]


def slowest_axis(target: Stored) -> int:
    """The network's axis along which rows of an array [C, D, H, W] go out."""
    return MemoryOrder.of(target.values).axes[0]


def _pieces(channels: int, order: MemoryOrder, voxels: int) -> Iterator[tuple[Rows, int]]:
    """Rows of all channels before the next rows."""
    for rows in order.pieces(voxels):
        for channel in range(channels):
            yield rows, channel


def _along(order: MemoryOrder, rows: Rows) -> AxisRows:
    """Rows of an array's slowest axis as those of the network's."""
    axis, extent = order.axes[0], order.extents[0]
    if order.flips[0]:
        return AxisRows(axis, extent - rows.stop, extent - rows.start)
    return AxisRows(axis, rows.start, rows.stop)


def _so_far(order: MemoryOrder, stop: int, padded: Triple) -> AxisRows:
    """All rows that are there once those up to `stop` are: with the last voxel what repeats it."""
    rows = _along(order, Rows(0, stop))
    if rows.stop == order.extents[0]:
        return AxisRows(rows.axis, rows.start, padded[rows.axis])
    return rows


def _put(
    copied: CudaEvent, staged: VoxelArray, place: VoxelArray, target: Stored, final: int | None
) -> None:
    """Copy a piece to its place in the target; final: rows of all channels that are there then."""
    copied.wait()
    _copy(place, staged)
    if final is not None:
        target.on_rows(final)


_SHARE = 1 << 19
"""Bytes of a copy between arrays of the host that are worth a thread."""


def _copy(target: VoxelArray, source: VoxelArray) -> None:
    """Some rows of the slowest axis at a time, or of a run of voxels, on several cores."""
    if target.flags.c_contiguous and source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)
    rows = max(1, len(target) * _SHARE // max(1, target.nbytes))

    def copy_from(first: int) -> None:
        target[first : first + rows] = source[first : first + rows]

    beside_each_other(copy_from, range(0, len(target), rows))
