"""Axes of scans, slabs in memory order, and slices as a reader of scans sees them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import nibabel.orientations as _orientations
import numpy as np
import numpy.typing as npt

from ...engine.network.layers import Triple, triple
from ...io.volume import Affine, AnyArray, Volume
from ..errors import PreparationError

orientations: Any = _orientations  # the package's types are loose

_FLATTEST = 1e-3
"""Smallest singular value of the unit axes; below it two of them are one (header rounding)."""


@dataclass(frozen=True, slots=True)
class Orientation:
    """Order of axes and flips. order: which scan axis becomes D, H and W. flips: which of these
    three run backwards.
    """

    order: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    def oriented(self, voxels: AnyArray) -> AnyArray:
        """View the voxels [i, j, k] as [D, H, W]; writing to the view changes them."""
        steps = tuple(slice(None, None, -1 if flip else None) for flip in self.flips)
        return voxels.transpose(self.order)[steps]

    def in_scan(self, array: AnyArray) -> AnyArray:
        """View an array [D, H, W] along the scan's axes [i, j, k], the reverse of `oriented`."""
        steps = tuple(slice(None, None, -1 if flip else None) for flip in self.flips)
        return array[steps].transpose(np.argsort(self.order))

    def place(self, voxel: Triple, extents: Triple) -> Triple:
        """Return where a voxel (i, j, k) of a scan of these extents lies among oriented ones."""
        return triple(
            extents[axis] - 1 - voxel[axis] if flip else voxel[axis]
            for axis, flip in zip(self.order, self.flips, strict=True)
        )

    def sorted_spacing(self, spacing: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return the spacing along D, H and W, from that along i, j and k."""
        return triple(spacing[axis] for axis in self.order)


def orientation(affine: Affine, axes: str) -> Orientation:
    """Return how a scan's axes become `axes` ("RAS": D towards the right, H anterior, W superior).

    An oblique scan takes the nearest such orientation (nibabel's io_orientation) and keeps its own
    rotation. Raises PreparationError if the affine does not span three directions.
    """
    return _orientation(affine.astype(np.float64).tobytes(), axes)


@lru_cache
def _orientation(stored: bytes, axes: str) -> Orientation:
    """Return `orientation`, which is needed several times per study, of an affine's bytes."""
    affine = np.frombuffer(stored).reshape(4, 4)
    check_affine(affine)
    scan = orientations.io_orientation(affine)
    wanted = orientations.axcodes2ornt(tuple(axes))
    target, flip = orientations.ornt_transform(scan, wanted).T
    order = np.argsort(target)
    flips = triple(bool(flip[axis] < 0) for axis in order)
    return Orientation(triple(int(axis) for axis in order), flips)


def memory_order(array: AnyArray) -> Triple:
    """Return the axes of a 3D array from the slowest in memory to the fastest."""
    return triple(sorted(range(3), key=lambda axis: -abs(array.strides[axis])))


def check_affine(affine: Affine) -> None:
    """Raise PreparationError unless an affine spans three directions."""
    columns = affine[:3, :3]
    lengths = np.linalg.norm(columns, axis=0)
    is_flat = not np.isfinite(affine).all() or not lengths.all()
    if is_flat or np.linalg.matrix_rank(columns / lengths, tol=_FLATTEST) != 3:
        raise PreparationError(
            "The scan's affine does not give three directions in space; repair its header."
        )


Slab: TypeAlias = tuple[slice, ...]
VoxelSpacing: TypeAlias = tuple[float, float, float]

_VOXELS = 1 << 19
"""Voxels of a slab: a few times their float64 copy is all the memory that a step takes, and stays
near a processor's caches.
"""


def slabs(source: AnyArray) -> Iterator[Slab]:
    """Split an array along whichever of its axes is the slowest in memory."""
    axis = memory_order(source)[0]
    extent = source.shape[axis]
    count = max(_VOXELS * extent // source.size, 1)
    for start in range(0, extent, count):
        yield (slice(None),) * axis + (slice(start, start + count),)


def rows(extents: Triple, voxels: int = _VOXELS) -> Iterator[tuple[int, int]]:
    """Split a volume along its first axis; yield first and last plane (exclusive) of each part.

    voxels: of a part, unless a plane has more.
    """
    depth, height, width = extents
    count = max(voxels // max(height * width, 1), 1)
    return ((start, min(start + count, depth)) for start in range(0, depth, count))


@dataclass(frozen=True, slots=True)
class Slice:
    """A plane through the patient: values [row, column], the first row on top.

    name: of the plane. edges: letters of the patient's sides at the left, right, top and bottom
    (radiological convention: the patient's right is on the left). extents: millimetres along rows
    and columns.
    """

    name: str
    values: npt.NDArray[np.float64]
    edges: tuple[str, str, str, str]
    extents: tuple[float, float]


def mid_slices(volume: Volume) -> tuple[Slice, Slice, Slice]:
    """Return slices as `slices_through`, through the middle of the grid."""
    return slices_through(volume)


def slices_through(
    volume: Volume, voxel: tuple[int, int, int] | None = None
) -> tuple[Slice, Slice, Slice]:
    """Return the axial, coronal and sagittal slice, in the scan's unit.

    voxel: [i, j, k] on all three; None takes the middle of the grid. An oblique scan is shown along
    its own axes, under the letters of the nearest patient axes. Raises PreparationError if the
    affine is unusable.
    """
    turned = orientation(volume.affine, "RAS")
    voxels_seen = turned.oriented(volume.voxels)
    right, front, top = (
        turned.place(voxel, volume.shape)
        if voxel
        else (extent // 2 for extent in voxels_seen.shape)
    )
    x, y, z = turned.sorted_spacing(volume.spacing)

    def shown(
        name: str, plane: AnyArray, edges: tuple[str, str, str, str], across: float, up: float
    ) -> Slice:
        """Return a plane [across, up], whose axes both run against those of the picture."""
        values = plane.T[::-1, ::-1] * np.float64(volume.slope) + volume.intercept
        rows, columns = values.shape
        return Slice(name, values, edges, (rows * up, columns * across))

    return (
        shown("axial", voxels_seen[:, :, top], ("R", "L", "A", "P"), x, y),
        shown("coronal", voxels_seen[:, front, :], ("R", "L", "S", "I"), x, z),
        shown("sagittal", voxels_seen[right, :, :], ("A", "P", "S", "I"), y, z),
    )
