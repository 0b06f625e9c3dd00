"""Grids of patches over an array, and the order in which rows of the array are needed and final."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from .network.layers import FloatArray, Triple, triple

Phase: TypeAlias = Literal["copy in", "cut", "compute", "blend", "copy out"]
SmallVolumePadding: TypeAlias = Literal["edge", "reflect", "minimum"]
"""Padding of a volume smaller than the patch: repeat the border, mirror, or lowest value."""

PatchPadding: TypeAlias = SmallVolumePadding | float
"""Padding beyond a volume; a number is the network intensity there."""

GridOrigins: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

VoxelSpan: TypeAlias = tuple[int, int]
"""First voxel and the one after the last."""

Kept: TypeAlias = tuple[tuple[VoxelSpan, ...], tuple[VoxelSpan, ...], tuple[VoxelSpan, ...]]
"""Part of each patch that counts in the result, along each axis for each origin there."""


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Positions of patches in an array, along its axes from the slowest in memory to the fastest.

    extents: of the array. patch: extents of each patch. origins: of the patches' first voxels,
    ascending along each axis; negative if the array is smaller than the patch. axes: the network's
    axis (0 for D, 1 for H, 2 for W) of each of the array's axes. flips: axes that run against the
    network's. voxel_bytes: of the array as stored. mirrored: the network's axes along which each
    patch is mirrored before the network, and back after it.
    """

    extents: Triple
    patch: Triple
    origins: GridOrigins
    axes: Triple
    flips: tuple[bool, bool, bool] = (False, False, False)
    voxel_bytes: int = 4
    mirrored: tuple[bool, bool, bool] = (False, False, False)

    @property
    def patch_steps(self) -> Triple:
        """Stride of a patch, as the network reads it, along each of the array's axes, in voxels."""
        _, height, width = (self.patch[self.axes.index(axis)] for axis in range(3))
        step = height * width, width, 1
        return triple(
            -step[axis] if flip != self.mirrored[axis] else step[axis]
            for axis, flip in zip(self.axes, self.flips, strict=True)
        )

    @property
    def patch_start(self) -> int:
        """Offset in a patch, as the network reads it, of the first voxel in the array's order."""
        ends = zip(self.patch, self.patch_steps, strict=True)
        return sum((edge - 1) * -step for edge, step in ends if step < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchWindow(PatchGrid):
    """A grid with its blending weights and padding.

    weights: of the voxels of a patch in the blend, along the array's axes, in C order; they stay on
    the GPU while the same array is passed. padding: of patches beyond the array. kept: part of each
    patch that is blended; None for all of it.
    """

    weights: FloatArray
    padding: PatchPadding
    kept: Kept | None = None

    def box(self, origin: Triple) -> tuple[VoxelSpan, VoxelSpan, VoxelSpan]:
        """Return the voxels of the patch at an origin that are blended into the array."""
        found = list[VoxelSpan]()
        for axis, at in enumerate(origin):
            start, stop = 0, self.patch[axis]
            if self.kept is not None:
                start, stop = self.kept[axis][self.origins[axis].index(at)]
            found.append((max(start, -at), min(stop, self.extents[axis] - at)))
        return triple(found)

    @property
    def is_padded(self) -> bool:
        """Whether patches extend beyond the array."""
        rows = zip(self.origins, self.patch, self.extents, strict=True)
        return any(row[0] < 0 or row[-1] + edge > extent for row, edge, extent in rows)


@dataclass(frozen=True, slots=True)
class Timing:
    """Time during which the GPU was busy with a phase of the work.

    part: the phase. start, stop: in seconds, on the clock of `time.perf_counter`.
    """

    part: Phase
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [start, stop) along the slowest axis."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def pieces(self, ring: int, most: int) -> "Iterator[Rows]":
        """Split into pieces of at most `most` rows that do not wrap around in a ring buffer."""
        start = self.start
        while start < self.stop:
            stop = min(self.stop, start + most, (start // ring + 1) * ring)
            yield Rows(start, stop)
            start = stop


def steps(window: PatchGrid) -> list[tuple[Rows, Rows]]:
    """Return, for each row of patches, the rows of the array it reads and those final after it."""
    depth = window.extents[0]
    touched = [
        Rows(max(origin, 0), min(origin + window.patch[0], depth)) for origin in window.origins[0]
    ]
    ends = [*(rows.start for rows in touched[1:]), depth]
    return [(rows, Rows(rows.start, end)) for rows, end in zip(touched, ends, strict=True)]


def ring_rows(window: PatchGrid, *, spare: bool) -> int:
    """Return the rows of a ring buffer for one row of patches; spare: with space for copies of the
    neighbouring rows of patches.
    """
    most = min(window.patch[0], window.extents[0])
    gaps = [later.start - sooner.start for (sooner, _), (later, _) in pairwise(steps(window))]
    return min(most + (max(gaps, default=0) if spare else 0), window.extents[0])
