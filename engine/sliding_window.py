"""Where the patches of an array lie, and which of its rows are needed when."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from .network.layers import FloatArray, Triple, triple

Phase: TypeAlias = Literal["copy in", "cut", "compute", "blend", "copy out"]
SmallVolumePadding: TypeAlias = Literal["edge", "reflect", "minimum"]
"""How a volume smaller than the patch grows: repeat the border, mirror, or lowest value."""

GridOrigins: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Where patches lie in an array, along its axes from the slowest in memory to the fastest.

    extents: of the array, patch: of each patch. origins: ascending along each axis, of the
    patches' first voxels; below 0 where the array is smaller than the patch. axes: which of the
    network's axes (0 for D, 1 for H, 2 for W) each of the array's axes is. flips: which of them run
    against the network's. voxel_bytes: of the array as it is stored. mirrored: along which of the
    network's axes each patch is mirrored before the network, and back after it.
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
        """Voxels of a patch, as the network takes it, from one to its next along each axis."""
        _, height, width = (self.patch[self.axes.index(axis)] for axis in range(3))
        step = height * width, width, 1
        return triple(
            -step[axis] if flip != self.mirrored[axis] else step[axis]
            for axis, flip in zip(self.axes, self.flips, strict=True)
        )

    @property
    def patch_start(self) -> int:
        """Voxels of a patch, as the network takes it, before the first along the array's axes."""
        ends = zip(self.patch, self.patch_steps, strict=True)
        return sum((edge - 1) * -step for edge, step in ends if step < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchWindow(PatchGrid):
    """A grid and how it is gone over.

    weights: of the voxels of a patch in the blend, along the array's axes, in C order; a device
    keeps them on the card for as long as it is given the same array. padding: what fills patches
    beyond the array.
    """

    weights: FloatArray
    padding: SmallVolumePadding

    @property
    def needs_lowest(self) -> bool:
        """Whether patches reach beyond the array, and its lowest value fills them there."""
        edges = zip(self.patch, self.extents, strict=True)
        return self.padding == "minimum" and any(edge > extent for edge, extent in edges)


@dataclass(frozen=True, slots=True)
class Timing:
    """When the card was busy with a part of the work, on the clock of `time.perf_counter`.

    start, stop: in seconds.
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
        """The same in pieces that neither wrap around in a ring nor exceed so many rows."""
        start = self.start
        while start < self.stop:
            stop = min(self.stop, start + most, (start // ring + 1) * ring)
            yield Rows(start, stop)
            start = stop


def steps(window: PatchGrid) -> list[tuple[Rows, Rows]]:
    """For each row of tiles: which rows of the array it touches, and which are finished with it."""
    depth = window.extents[0]
    touched = [
        Rows(max(origin, 0), min(origin + window.patch[0], depth)) for origin in window.origins[0]
    ]
    ends = [*(rows.start for rows in touched[1:]), depth]
    return [(rows, Rows(rows.start, end)) for rows, end in zip(touched, ends, strict=True)]


def ring_rows(window: PatchGrid, *, spare: bool) -> int:
    """Rows of a ring for one row of tiles; spare: with room for the copies of its neighbours."""
    most = min(window.patch[0], window.extents[0])
    gaps = [later.start - sooner.start for (sooner, _), (later, _) in pairwise(steps(window))]
    return min(most + (max(gaps, default=0) if spare else 0), window.extents[0])
