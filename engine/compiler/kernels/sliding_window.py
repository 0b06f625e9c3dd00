"""Launches of sliding_window.cu: cut patches out of a ring of stored rows and blend them into
another one; convert rows to a whole volume and back.

The rings' size and addresses are planned here, too.
"""

from collections.abc import Iterator
from ctypes import Structure
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ...errors import DeviceMemoryError
from ...network.layers import Triple, added, triple
from ...patch_grid import PatchGrid, PatchPadding, PatchWindow, Rows, ring_rows
from ...scaling import VOXEL_TYPES, Clipped, Stored, VoxelArray
from ..kernel_source import constants, size_of, structure
from .launch import BLOCK, Launch


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Device addresses of a sliding window's buffers, rows of the rings, and bytes of all.

    source: ring of voxels to be translated. mean, total: rings of the weighted sums and of their
    weights. weights: of a patch's voxels in the blend. lowest: lowest value of each channel.
    overflowed: a flag. clipped: see `clipped_voxels`. rows: of each ring.
    """

    source: int
    mean: int
    total: int
    weights: int
    lowest: int
    overflowed: int
    clipped: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RingBuffers:
    """Buffers of a sliding window; addresses: from 0 on until memory is allocated.

    lag: steps until a ring's row may be reused. With a lag of 2, the rows of the steps before and
    after are copied concurrently with a step's work.
    """

    addresses: RingLayout
    lag: int

    @property
    def bytes(self) -> int:
        return self.addresses.bytes


def rings(window: PatchGrid, channels: tuple[int, int], most_bytes: int) -> RingBuffers | None:
    """Return the rings for an array within so many bytes; None if a row of tiles does not fit."""
    for spare in (True, False):
        layout = ring_layout(window, ring_rows(window, spare=spare), channels)
        if layout.bytes <= most_bytes:
            return RingBuffers(layout, 2 if spare else 1)
    return None


def ring_memory_error(
    window: PatchGrid, channels: tuple[int, int], most_bytes: int
) -> DeviceMemoryError:
    """Return the error for an array for which `rings` returns None."""
    wanted = ring_layout(window, ring_rows(window, spare=False), channels).bytes
    return DeviceMemoryError(
        f"The rows of one row of patches need {-(-wanted >> 20)} MiB of GPU memory besides the "
        f"program, but only {max(0, most_bytes) >> 20} MiB are left.",
        wanted=wanted,
        free=max(0, most_bytes),
    )


def ring_layout(
    window: PatchGrid, rows: int, channels: tuple[int, int], base: int = 0
) -> RingLayout:
    """Return the buffers of a window, one after another from the address `base` on."""
    voxels = rows * prod(window.extents[1:])
    sizes = [
        channels[0] * voxels * window.voxel_bytes,
        channels[1] * voxels * 4,
        voxels * 4,
        prod(window.patch) * 4,
        4 * channels[0],
        4,
        CLIPPED_BYTES,
    ]
    *addresses, end = accumulate((-(-size // 256) * 256 for size in sizes), initial=base)
    return RingLayout(*addresses, rows=rows, bytes=end - base)


def cut(
    window: PatchWindow, addresses: RingLayout, source: Stored, origin: Triple, patch: int
) -> Launch:
    """Cut the patch at `origin`, below 0 if the array is smaller, to the address `patch`."""
    depth, height, width = window.patch
    values = structure("sliding_window.cu", "Cut")(
        ring=addresses.source,
        lowest=addresses.lowest,
        patch=patch + window.patch_start * 4,
        extents=window.extents,
        patch_extents=window.patch,
        patch_steps=window.patch_steps,
        origin=origin,
        rows=addresses.rows,
        fill=constants("sliding_window.cu")[_fill(window.padding)],
        scaling=scaling_of(source),
    )
    grid = -(-height * width // BLOCK), depth, len(source.values)
    return Launch("sliding_window", "cut", grid, (BLOCK, 1, 1), 0, values)


def blend(
    window: PatchWindow,
    addresses: RingLayout,
    channels: int,
    origin: Triple,
    patch: int,
    overflow: int,
) -> Launch:
    """Blend the patch at the address `patch` into the mean; overflow: address of its run's flag."""
    box = window.box(origin)
    first = triple(start for start, _ in box)
    place = added(first, origin)
    count = tuple(stop - start for start, stop in box)
    values = structure("sliding_window.cu", "Blend")(
        patch=patch + window.patch_start * 4,
        weights=addresses.weights,
        mean=addresses.mean,
        total=addresses.total,
        overflow=overflow,
        overflowed=addresses.overflowed,
        extents=window.extents,
        patch_extents=window.patch,
        patch_steps=window.patch_steps,
        first=first,
        count=count,
        place=place,
        rows=addresses.rows,
        channels=channels,
    )
    grid = -(-count[1] * count[2] // BLOCK), count[0], 1
    return Launch("sliding_window", "blend", grid, (BLOCK, 1, 1), 0, values)


def _fill(padding: PatchPadding) -> str:
    """Return the kernel's name of a padding; a number is uploaded as the lowest value is."""
    return f"FILL_{padding.upper()}" if isinstance(padding, str) else "FILL_MINIMUM"


CLIPPED_BYTES = size_of("sliding_window.cu", "Clipped")
"""Bytes in which `store_voxels` counts what it clips; all 0 before the first launch."""


def clipped_voxels(counted: bytes, stored: "np.dtype[Any]") -> Clipped:
    """Return what all launches of `store_voxels` for one array of integers have clipped."""
    found: Any = structure("sliding_window.cu", "Clipped").from_buffer_copy(counted)
    ends = np.iinfo(stored)
    lowest, highest = ends.min - found.most_below, ends.max + found.most_above
    return Clipped(found.below, found.above, lowest, highest)


def store_voxels(
    mean: int, count: int, target: Stored, address: int, overflowed: int, clipped: int
) -> Launch:
    """Store `count` blended intensities from the address `mean` at `address`, as the target's type.

    overflowed: address of the flag for values that are not finite. clipped: see `clipped_voxels`.
    """
    kind = target.values.dtype
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    values = structure("sliding_window.cu", "StoreVoxels")(
        mean=mean,
        stored=address,
        overflowed=overflowed,
        clipped=clipped,
        count=count,
        lowest=float(limits.min),
        highest=float(limits.max),
        scaling=scaling_of(target),
    )
    blocks = -(-count // (BLOCK * constants("sliding_window.cu")["VOXELS_EACH"]))
    return Launch("sliding_window", "store_voxels", (blocks, 1, 1), (BLOCK, 1, 1), 0, values)


def patch_bytes(window: PatchWindow, channels: int) -> int:
    """Return the bytes of an input or output patch of the program."""
    return channels * prod(window.patch) * 4


def scaling_of(array: Stored) -> Structure:
    """Return an array's intensity mapping and voxel type as a kernel argument."""
    scaling, voxel = array.scaling, VOXEL_TYPES.index(array.values.dtype.name)
    return structure("sliding_window.cu", "Scaling")(
        centre=scaling.centre,
        radius=scaling.radius,
        lowest=scaling.lowest,
        clips=scaling.clips,
        voxel=voxel,
    )


@dataclass(frozen=True, slots=True)
class MemoryOrder:
    """Memory order of an array of one channel, from its slowest axis to its fastest.

    axes: which of the network's axes (0 for D, 1 for H, 2 for W) each is. flips: which of them run
    against the network's. extents: along each.
    """

    axes: Triple
    flips: tuple[bool, bool, bool]
    extents: Triple

    @classmethod
    def of(cls, voxels: VoxelArray) -> "MemoryOrder":
        """Return the memory order of an array [C, D, H, W]."""
        strides, sizes = voxels.strides[1:], voxels.shape[1:]
        # Of axes of one voxel the strides may be anything.
        slow = sorted(range(3), key=lambda axis: (-abs(strides[axis]), axis))
        first, second, third = slow
        flips = tuple(strides[axis] < 0 for axis in slow)
        extents: Triple = sizes[first], sizes[second], sizes[third]
        return cls((first, second, third), (flips[0], flips[1], flips[2]), extents)

    def view(self, voxels: VoxelArray) -> VoxelArray:
        """Return a view of the array [C, ...] in this order, so that nothing is transposed on the
        host.
        """
        steps = tuple(slice(None, None, -1 if flip else None) for flip in self.flips)
        return voxels.transpose(0, *(1 + axis for axis in self.axes))[:, *steps]

    @property
    def plane(self) -> int:
        """Voxels of a row of the slowest axis."""
        return self.extents[1] * self.extents[2]

    def pieces(self, voxels: int) -> Iterator[Rows]:
        """Yield all rows, in chunks of as many rows as have `voxels` voxels."""
        most = max(1, voxels // self.plane)
        for start in range(0, self.extents[0], most):
            yield Rows(start, min(start + most, self.extents[0]))


def rows_into_volume(
    order: MemoryOrder,
    rows: Rows,
    source: Stored,
    stored: int,
    volume: int,
    padded: Triple,
) -> Launch:
    """Return the launch from rows of stored voxels at `stored` into one channel of `volume`.

    The first or the last rows also write the padding that extends the array to the padded extents
    (D, H, W), after its last voxels along the network's axes.
    """
    steps = padded[1] * padded[2], padded[2], 1
    sizes = [padded[axis] for axis in order.axes]
    ends = zip(order.extents, sizes, order.flips, strict=True)
    first = [extent - size if flip else 0 for extent, size, flip in ends]
    begin = first[0] if rows.start == 0 else rows.start
    end = first[0] + sizes[0] if rows.stop == order.extents[0] else rows.stop
    corner = begin, first[1], first[2]
    start, patch_steps = 0, [0, 0, 0]
    for number, (axis, flip) in enumerate(zip(order.axes, order.flips, strict=True)):
        at = order.extents[number] - 1 - corner[number] if flip else corner[number]
        start += at * steps[axis]
        patch_steps[number] = -steps[axis] if flip else steps[axis]
    values = structure("sliding_window.cu", "Cut")(
        ring=stored,
        patch=volume + 4 * start,
        extents=(len(rows), *order.extents[1:]),
        patch_extents=(end - begin, *sizes[1:]),
        patch_steps=tuple(patch_steps),
        origin=(begin - rows.start, *first[1:]),
        rows=len(rows),
        fill=constants("sliding_window.cu")["FILL_EDGE"],
        scaling=scaling_of(source),
    )
    grid = -(-sizes[1] * sizes[2] // BLOCK), end - begin, 1
    return Launch("sliding_window", "cut", grid, (BLOCK, 1, 1), 0, values)


def rows_of_volume(
    order: MemoryOrder, rows: Rows, volume: int, padded: Triple, into: int
) -> Launch:
    """Return the launch from one channel to rows in an array's order, as floats to `into`."""
    lies = order.plane, order.extents[2], 1
    corner, count, patch_steps, offset = [0, 0, 0], [0, 0, 0], [0, 0, 0], 0
    for number, (axis, flip) in enumerate(zip(order.axes, order.flips, strict=True)):
        extent = order.extents[number]
        start, stop = (rows.start, rows.stop) if number == 0 else (0, extent)
        corner[axis] = extent - stop if flip else start
        count[axis] = stop - start
        patch_steps[axis] = -lies[number] if flip else lies[number]
        offset += (stop - start - 1) * lies[number] if flip else 0
    values = structure("sliding_window.cu", "Cut")(
        ring=volume,
        patch=into + 4 * offset,
        extents=padded,
        patch_extents=tuple(count),
        patch_steps=tuple(patch_steps),
        origin=tuple(corner),
        rows=padded[0],
        fill=constants("sliding_window.cu")["FILL_EDGE"],
        scaling=structure("sliding_window.cu", "Scaling")(radius=1.0),  # floats, as they are
    )
    grid = -(-count[1] * count[2] // BLOCK), count[0], 1
    return Launch("sliding_window", "cut", grid, (BLOCK, 1, 1), 0, values)
