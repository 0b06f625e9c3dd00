"""Axis flips and permutations between a scan's voxels and a model's axes; no interpolation."""

from dataclasses import dataclass
from typing import Any

import nibabel.orientations as _orientations
import numpy as np

from ....engine.network.layers import Triple, triple
from ....io.volume import Affine, AnyArray
from ...errors import PreparationError

orientations: Any = _orientations  # the package's types are loose

_FLATTEST = 1e-3
"""Smallest singular value of the unit axes; below it two of them are one (header rounding)."""


@dataclass(frozen=True, slots=True)
class Orientation:
    """order: which scan axis becomes D, H and W. flips: which of these three run backwards."""

    order: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    def oriented(self, voxels: AnyArray) -> AnyArray:
        """The voxels [i, j, k] seen as [D, H, W]; a view, through which they can be written."""
        steps = tuple(slice(None, None, -1 if flip else None) for flip in self.flips)
        return voxels.transpose(self.order)[steps]

    def place(self, voxel: Triple, extents: Triple) -> Triple:
        """Where a voxel (i, j, k) of a scan of these extents is found among the oriented ones."""
        return triple(
            extents[axis] - 1 - voxel[axis] if flip else voxel[axis]
            for axis, flip in zip(self.order, self.flips, strict=True)
        )

    def sorted_spacing(self, spacing: tuple[float, float, float]) -> tuple[float, float, float]:
        """Spacing along D, H and W, given that along i, j and k."""
        return triple(spacing[axis] for axis in self.order)


def orientation(affine: Affine, axes: str) -> Orientation:
    """How a scan's axes become `axes` ("RAS": D towards the right, H anterior, W superior).

    An oblique scan takes the nearest such orientation (nibabel's io_orientation) and keeps its own
    rotation. Raises PreparationError if the affine does not span three directions.
    """
    check_affine(affine)
    scan = orientations.io_orientation(affine)
    wanted = orientations.axcodes2ornt(tuple(axes))
    target, flip = orientations.ornt_transform(scan, wanted).T
    order = np.argsort(target)
    flips = triple(bool(flip[axis] < 0) for axis in order)
    return Orientation(triple(int(axis) for axis in order), flips)


def memory_order(array: AnyArray) -> Triple:
    """The axes of a 3D array from the slowest in memory to the fastest."""
    return triple(sorted(range(3), key=lambda axis: -abs(array.strides[axis])))


def check_affine(affine: Affine) -> None:
    """Raise PreparationError unless an affine spans three directions."""
    if not _spans_space(affine):
        raise PreparationError(
            "The scan's affine does not give three directions in space; repair its header."
        )


def _spans_space(affine: Affine) -> bool:
    columns = affine[:3, :3]
    lengths = np.linalg.norm(columns, axis=0)
    if not np.isfinite(affine).all() or not lengths.all():
        return False
    return int(np.linalg.matrix_rank(columns / lengths, tol=_FLATTEST)) == 3
