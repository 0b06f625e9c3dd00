"""Launches that turn rows of stored voxels into the network's input volume, and back.

An array is read in the order of its voxels in memory; rows are those of its slowest axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ....network.layers import Triple
from ....patch_grid import Rows
from ....scaling import Stored, VoxelArray
from ...kernel_source import constants, structure
from ...kernels.launch import BLOCK, Launch
from .sliding_window import scaling_of


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

    def seen(self, voxels: VoxelArray) -> VoxelArray:
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
    place, patch_steps = 0, [0, 0, 0]
    for number, (axis, flip) in enumerate(zip(order.axes, order.flips, strict=True)):
        at = order.extents[number] - 1 - corner[number] if flip else corner[number]
        place += at * steps[axis]
        patch_steps[number] = -steps[axis] if flip else steps[axis]
    values = structure("sliding_window.cu", "Cut")(
        ring=stored,
        patch=volume + 4 * place,
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
    corner, count, patch_steps, place = [0, 0, 0], [0, 0, 0], [0, 0, 0], 0
    for number, (axis, flip) in enumerate(zip(order.axes, order.flips, strict=True)):
        extent = order.extents[number]
        start, stop = (rows.start, rows.stop) if number == 0 else (0, extent)
        corner[axis] = extent - stop if flip else start
        count[axis] = stop - start
        patch_steps[axis] = -lies[number] if flip else lies[number]
        place += (stop - start - 1) * lies[number] if flip else 0
    values = structure("sliding_window.cu", "Cut")(
        ring=volume,
        patch=into + 4 * place,
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
