"""Between two spacings of one field of view, in slabs along D so that nothing is held twice."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import ceil, floor, prod
from typing import Any, TypeAlias

import numpy as np

from ....engine.network.graph import times
from ....engine.network.layers import FloatArray, Triple, triple
from ...errors import PreparationError

VoxelSpacing: TypeAlias = tuple[float, float, float]
ResampledRows: TypeAlias = Callable[[int, int], FloatArray]
"""Rows [start, stop) along D of some volume, as [rows, H, W]."""

SAME_SPACING = 1e-3
"""Spacings that differ relatively by no more are one: headers round to float32 and decimals."""

LARGEST = 1 << 32
"""Voxels of the largest grid that is made; 16 GiB of intensities, so the header must be wrong."""

FINEST = 512
"""Voxels made of one, at most: an eighth of its edge each way, far beyond what it can tell."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """Linear interpolation from one grid onto another with the same centre.

    Linear, because it stays within the intensities of its neighbours (a spline overshoots at bone
    and air), and because it is what the common training pipelines use. Coordinates are voxel
    indices, not millimetres, so a sheared or otherwise non-orthonormal affine is of no concern.

    extents: of the grid that is read. target: of the grid that is made, [D, H, W] both.
    steps: voxels of the read grid from one made voxel to the next.
    """

    extents: Triple
    target: Triple
    steps: VoxelSpacing

    @property
    def inverse(self) -> "Resampling":
        """From the made grid back onto the read one."""
        return Resampling(self.target, self.extents, triple(1 / step for step in self.steps))

    def rows(self, read: ResampledRows, start: int, stop: int) -> FloatArray:
        """Rows [start, stop) of the made grid; `read` is asked for those rows they lie between.

        Beyond the outermost voxel centres the outermost values continue.
        """
        sitk: Any = import_module("SimpleITK")  # late, as few scans need it; it ships no types
        first = self._origin(0) + start * self.steps[0]
        last = self._origin(0) + (stop - 1) * self.steps[0]
        lowest = min(max(floor(first), 0), self.extents[0] - 1)
        highest = min(max(ceil(last), 0), self.extents[0] - 1)
        resampled = sitk.Resample(
            sitk.GetImageFromArray(np.ascontiguousarray(read(lowest, highest + 1))),
            (self.target[2], self.target[1], stop - start),
            sitk.Transform(),
            sitk.sitkLinear,
            (self._origin(2), self._origin(1), first - lowest),
            (self.steps[2], self.steps[1], self.steps[0]),
            (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
            0.0,
            sitk.sitkFloat32,
            True,
        )
        return sitk.GetArrayFromImage(resampled)

    def _origin(self, axis: int) -> float:
        """Where voxel 0 of the made grid lies in the read one."""
        return (self.extents[axis] - 1 - (self.target[axis] - 1) * self.steps[axis]) / 2


def resampling(
    extents: Triple, spacing: VoxelSpacing, wanted: VoxelSpacing | None
) -> Resampling | None:
    """How a scan comes to the wanted spacing; None if it has it, or if none is wanted.

    The new grid has exactly the wanted spacing and covers the whole field of view, so along each
    axis it may reach beyond it by less than one of its voxels. Raises PreparationError if the grid
    would be absurdly large.
    """
    if wanted is None:
        return None
    steps = triple(
        1.0 if abs(want / have - 1) <= SAME_SPACING else want / have
        for want, have in zip(wanted, spacing, strict=True)
    )
    if steps == (1.0, 1.0, 1.0):
        return None
    target = triple(
        max(ceil(extent / step - SAME_SPACING), 1)
        for extent, step in zip(extents, steps, strict=True)
    )
    voxels, given = prod(target), max(prod(extents), 1)
    if voxels > LARGEST:
        raise PreparationError(
            f"At the model's spacing the scan would have {times(target)} voxels; its header says "
            f"{_edges(spacing)} mm a voxel, so check that."
        )
    if voxels > FINEST * given:
        raise PreparationError(
            f"At the model's spacing of {_edges(wanted)} mm the scan of {_edges(spacing)} mm would "
            f"have {times(target)} voxels, {voxels / given:.0f} for each of its own; the model is "
            "for much finer scans, or one of the two spacings is wrong."
        )
    return Resampling(extents, target, steps)


def _edges(spacing: VoxelSpacing) -> str:
    return " x ".join(f"{edge:g}" for edge in spacing)
