"""A volume's voxels between an array of the host and the GPU, some rows at a time.

Voxels come and go as they are stored: the GPU maps their intensities. While they are copied, the
caller queues what is done with them.
"""

from collections.abc import Callable, Iterable, Iterator
from math import prod

from ...compiler.kernels.launch import CLIPPED, OVERFLOW
from ...compiler.kernels.sliding_window import (
    MemoryOrder,
    rows_into_volume,
    rows_of_volume,
    store_voxels,
)
from ...compiler.tensors import PATCHES, TRANSLATED
from ...compiler.volume.volume_memory import VOXELS_IN, VOXELS_OUT
from ...network.layers import Triple
from ...patch_grid import Rows
from ...scaling import Stored, VoxelArray
from ..driver import CudaEvent, Stream
from ..streaming import PinnedSlots, StagedRows
from .overlap import AxisRows
from .program import PlacedVolume

_SLOT_VOXELS = 4 << 20
"""Voxels of a slot: enough to copy at full speed."""


def slot_voxels(extents: Triple) -> int:
    """Return the voxels of a slot for volumes (D, H, W), whatever their slowest axis in memory."""
    shortest, *others = sorted(extents)
    del shortest
    return max(_SLOT_VOXELS, prod(others))


def upload_voxels(
    placed: PlacedVolume,
    source: Stored,
    slots: PinnedSlots,
    most: int,
    stream: Stream,
    on_rows: Callable[[AxisRows], None],
) -> None:
    """Queue the volume's voxels [C, D, H, W] on a stream of their own; the network's extents beyond
    them repeat the last.

    most: voxels of four bytes that fit on the GPU at a time, and in each slot. on_rows: called
    after each piece with the rows of the network's extents that have been queued so far.
    """
    program, padded = placed.program, placed.grid.extents
    order = MemoryOrder.of(source.values)
    voxels = order.view(source.values)
    pieces = list(_pieces(len(voxels), order, most * 4 // voxels.itemsize))
    stored = placed.at(VOXELS_IN)

    def queue(number: int, staged: StagedRows) -> None:
        rows, channel = pieces[number]
        staged.upload(stream, stored)
        volume = placed.at(PATCHES) + channel * prod(padded) * 4
        launch = rows_into_volume(order, rows, source, stored, volume, padded)
        program.kernels.launch(stream, launch)
        if channel == len(voxels) - 1:
            on_rows(_so_far(order, rows.stop, padded))

    slots.upload([voxels[channel, rows.start : rows.stop] for rows, channel in pieces], queue)


def download_voxels(
    placed: PlacedVolume,
    target: Stored,
    slots: PinnedSlots,
    most: int,
    stream: Stream,
    computed: Iterable[CudaEvent],
) -> bool:
    """Fill the array [C, D, H, W] with the result; return whether all of it is finite. Waits.

    most: voxels that fit on the GPU at a time, and in each slot. stream: of the copies. computed:
    an event after each piece of `rows_to_download`.
    """
    program, padded = placed.program, placed.grid.extents
    order = MemoryOrder.of(target.values)
    voxels = order.view(target.values)
    pieces = list(_pieces(len(voxels), order, most))
    floats = placed.at(VOXELS_OUT)
    stored = floats + 4 * most
    flags = placed.at(OVERFLOW), placed.at(CLIPPED)

    def targets() -> Iterator[VoxelArray]:
        for (rows, channel), event in zip(pieces, computed, strict=True):
            stream.after(event)
            yield voxels[channel, rows.start : rows.stop]

    def queue(number: int, staged: StagedRows) -> None:
        rows, channel = pieces[number]
        volume = placed.at(TRANSLATED) + channel * prod(padded) * 4
        for launch in (
            rows_of_volume(order, rows, volume, padded, floats),
            store_voxels(floats, staged.voxels.size, target, stored, *flags),
        ):
            program.kernels.launch(stream, launch)
        staged.download(stream, stored)

    def put(number: int) -> None:
        rows, channel = pieces[number]
        if channel == len(voxels) - 1:
            target.on_rows(rows.stop)

    slots.download(targets(), queue, put)
    return slots.is_finite(stream, target, *flags)


def rows_to_download(target: Stored, most: int) -> Iterator[AxisRows]:
    """Yield the rows of each piece that `download_voxels` copies, in its order."""
    order = MemoryOrder.of(target.values)
    for rows, _ in _pieces(len(target.values), order, most):
        yield _along(order, rows)


def slowest_axis(target: Stored) -> int:
    """Return the network's axis along which rows of an array [C, D, H, W] go out."""
    return MemoryOrder.of(target.values).axes[0]


def _pieces(channels: int, order: MemoryOrder, voxels: int) -> Iterator[tuple[Rows, int]]:
    """Yield rows of all channels before the next rows."""
    for rows in order.pieces(voxels):
        for channel in range(channels):
            yield rows, channel


def _along(order: MemoryOrder, rows: Rows) -> AxisRows:
    """Return rows of an array's slowest axis as those of the network's."""
    axis, extent = order.axes[0], order.extents[0]
    if order.flips[0]:
        return AxisRows(axis, extent - rows.stop, extent - rows.start)
    return AxisRows(axis, rows.start, rows.stop)


def _so_far(order: MemoryOrder, stop: int, padded: Triple) -> AxisRows:
    """Return all rows that are complete once those up to `stop` are; the last one is repeated."""
    rows = _along(order, Rows(0, stop))
    if rows.stop == order.extents[0]:
        return AxisRows(rows.axis, rows.start, padded[rows.axis])
    return rows
