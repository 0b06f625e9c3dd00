"""Resampling of a scan to the grid of a model, and back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from math import ceil, floor, prod
from typing import Any, Literal, TypeAlias

import numpy as np

from ...engine.model.model_card import GridRule
from ...engine.network.graph import times
from ...engine.network.layers import FloatArray, Triple, triple
from ...io.volume import Affine, AnyArray
from ..errors import PreparationError
from .geometry import VoxelSpacing, rows

ResampledRows: TypeAlias = Callable[[int, int], AnyArray]
"""Callback that returns rows [start, stop) along D of a volume, as [rows, H, W]."""

SAME_SPACING = 1e-3
"""Relative difference up to which spacings are equal: headers round to float32 and decimals."""

LARGEST = 1 << 32
"""Voxels of the largest resampled grid; 16 GiB of intensities, so the header must be wrong."""

FINEST = 512
"""Most voxels made of one: an eighth of its edge each way, far beyond its information."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """Interpolation from one grid onto another, linear unless a code's own is asked for.

    Linear, because it stays within the intensities of its neighbours (a spline overshoots at bone
    and air), and because the common training pipelines use it. Coordinates are voxel indices, not
    millimetres, so a sheared or otherwise non-orthonormal affine does not matter.

    extents: of the input grid, [D, H, W]. target: of the output grid, [D, H, W]. steps: voxels of
    the input grid from one output voxel to the next. orders, orders_back: of the splines along D, H
    and W, and those of the way back; grids of others than linear ones share their outermost edges.
    origin: input coordinate of output voxel 0; None if both grids have the same centre. clamps:
    whether more than half a voxel beyond the scan the outermost values continue along each axis by
    itself, instead of as those of the nearest voxel. keeps_integers: whether what is interpolated
    linearly between integers becomes an integer again, as SimpleITK makes it for the image's type.
    """

    extents: Triple
    target: Triple
    steps: VoxelSpacing
    orders: Triple = (1, 1, 1)
    orders_back: Triple = (1, 1, 1)
    origin: VoxelSpacing | None = None
    clamps: bool = False
    keeps_integers: bool = False

    @property
    def inverse(self) -> "Resampling":
        """Resampling from the output grid back onto the input grid."""
        steps = triple(1 / step for step in self.steps)
        origin = triple(-self.first(axis) / self.steps[axis] for axis in range(3))
        return replace(
            self,
            extents=self.target,
            target=self.extents,
            steps=steps,
            orders=self.orders_back,
            orders_back=self.orders,
            origin=origin,
        )

    def parts(self, read: ResampledRows) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the output grid part by part along D, with where each lies."""
        whole = None if self.orders == (1, 1, 1) else self._whole(read(0, self.extents[0]))
        for start, stop in rows(self.target):
            part = slice(start, stop)
            yield part, self.rows(read, start, stop) if whole is None else whole[part]

    def _whole(self, values: FloatArray) -> FloatArray:
        from .splines import resized  # late, as few models need it

        return resized(values, self.target, self.orders)

    def rows(self, read: ResampledRows, start: int, stop: int) -> FloatArray:
        """Return rows [start, stop) of the output grid by linear interpolation.

        read: returns the input rows around them, as float32 or as integers.

        Beyond the outermost voxel centres the outermost values continue.
        """
        sitk: Any = import_module("SimpleITK")  # late, as few scans need it; it ships no types
        first = self.first(0) + start * self.steps[0]
        last = self.first(0) + (stop - 1) * self.steps[0]
        lowest = min(max(floor(first), 0), self.extents[0] - 1)
        highest = min(max(ceil(last), 0), self.extents[0] - 1)
        values = np.ascontiguousarray(read(lowest, highest + 1))
        origin = first - lowest, self.first(1), self.first(2)
        if self.clamps:
            ends = last - lowest, *map(self._end, (1, 2))
            around = [
                (max(ceil(-low), 0), max(ceil(high) - (extent - 1), 0))
                for low, high, extent in zip(origin, ends, values.shape, strict=True)
            ]
            values = np.pad(values, around, mode="edge")
            origin = triple(at + pad for at, (pad, _) in zip(origin, around, strict=True))
        is_whole = self.keeps_integers and values.dtype.kind in "iu"
        resampled = sitk.Resample(
            sitk.GetImageFromArray(values),
            (self.target[2], self.target[1], stop - start),
            sitk.Transform(),
            sitk.sitkLinear,
            (origin[2], origin[1], origin[0]),
            (self.steps[2], self.steps[1], self.steps[0]),
            (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
            0.0,
            sitk.sitkUnknown if is_whole else sitk.sitkFloat32,
            True,
        )
        return sitk.GetArrayFromImage(resampled).astype(np.float32, copy=False)

    def _end(self, axis: int) -> float:
        """Return the input coordinate of the last output voxel."""
        return self.first(axis) + (self.target[axis] - 1) * self.steps[axis]

    def first(self, axis: int) -> float:
        """Return the input coordinate of output voxel 0."""
        if self.origin is not None:
            return self.origin[axis]
        return _centred(self.extents[axis], self.target[axis], self.steps[axis])


def resizing(extents: Triple, target: Triple) -> Resampling | None:
    """Return how a scan comes to fixed extents; None if it has them. The outermost edges of both
    grids are the same, as in PyTorch's interpolation without aligned corners.
    """
    if extents == target:
        return None
    return Resampling(extents, target, triple(e / t for e, t in zip(extents, target, strict=True)))


ANISOTROPIC = 3.0
"""Ratio of spacings above which nnU-Net resizes planes one by one."""


def _orders(order: int, here: VoxelSpacing, there: VoxelSpacing) -> Triple:
    """Return nnU-Net's order of each axis (determine_do_sep_z_and_axis)."""
    for spacing in (here, there):
        if max(spacing) / min(spacing) > ANISOTROPIC:
            coarse = [edge == max(spacing) for edge in spacing]
            return triple(0 if at and coarse.count(True) == 1 else order for at in coarse)
    return (order, order, order)


@dataclass(frozen=True, slots=True)
class SpacingGrid:
    """Rule for the grid of a spacing along one axis.

    extent: number of voxels from that of the scan, its spacing and the wanted one. keeps: place
    that both grids share, and so the origin. same: whether two spacings count as equal, so that the
    axis stays. step: between voxels of the new grid; "edges" divides the scan's field of view.
    keeps_integers: as of a `Resampling`.
    """

    extent: Callable[[int, float, float], int]
    keeps: Literal["centre", "first voxel", "scan's first voxel"]
    same: Callable[[float, float], bool] = lambda have, want: have == want
    step: Literal["spacing", "edges"] = "spacing"
    keeps_integers: bool = False


_MONAI_TOLERANCE = 1e-3
"""Millimetres up to which MONAI's Spacing takes spacings as equal (AFFINE_TOL)."""

_ROUNDING = 1e-9


def _monai_extent(extent: int, have: float, want: float) -> int:
    return int(np.round((extent - 1) * have / want + 1))


def _is_monais(have: float, want: float) -> bool:
    return abs(have - want) <= _MONAI_TOLERANCE


GRIDS: dict[GridRule, SpacingGrid] = {
    "cover": SpacingGrid(
        lambda extent, have, want: ceil(extent * have / want - SAME_SPACING),
        "centre",
        lambda have, want: abs(want / have - 1) <= SAME_SPACING,
    ),
    "monai": SpacingGrid(_monai_extent, "first voxel", _is_monais),
    "monai-scan": SpacingGrid(_monai_extent, "scan's first voxel", _is_monais),
    "torchio": SpacingGrid(
        lambda extent, have, want: 1 if extent == 1 else floor(extent * have / want + _ROUNDING),
        "centre",
        keeps_integers=True,
    ),
    "simpleitk": SpacingGrid(
        lambda extent, have, want: round(extent * have / want),
        "scan's first voxel",
        keeps_integers=True,
    ),
    "nnunet": SpacingGrid(
        lambda extent, have, want: round(have / want * extent), "centre", step="edges"
    ),
}
"""Rules of all codes; docs/preprocessing.md has them as formulas, with their sources."""


def resampling(
    extents: Triple,
    spacing: VoxelSpacing,
    wanted: VoxelSpacing | None,
    rule: GridRule = "cover",
    flips: tuple[bool, bool, bool] = (False, False, False),
    *,
    is_right_angled: bool = True,
) -> Resampling | None:
    """Return how a scan comes to the wanted spacing; None if it has it, or if none is wanted.

    extents, spacing: along the model's axes. rule: of the new grid. flips: axes along which the
    scan's own order of voxels is the reverse. is_right_angled: see `is_rectangular`. Raises
    PreparationError if the grid would be absurdly large.
    """
    if wanted is None:
        return None
    grid = GRIDS[rule]
    pairs = [*zip(extents, spacing, wanted, strict=True)]
    kept = [grid.same(have, want) for _, have, want in pairs]
    target = triple(
        extent if stays else max(grid.extent(extent, have, want), 1)
        for stays, (extent, have, want) in zip(kept, pairs, strict=True)
    )
    _check_size(extents, target, spacing, wanted)
    if grid.step == "edges":
        steps = triple(extent / made for extent, made in zip(extents, target, strict=True))
    else:
        steps = triple(
            1.0 if stays else want / have
            for stays, (_, have, want) in zip(kept, pairs, strict=True)
        )
    if target == extents and steps == (1.0, 1.0, 1.0):
        return None
    orders, back = (1, 1, 1), (1, 1, 1)
    if rule == "nnunet":
        orders, back = _orders(3, spacing, wanted), _orders(1, wanted, spacing)
    ends = zip(extents, target, steps, flips, strict=True)
    origin = triple(_origin(grid, *each, is_right_angled=is_right_angled) for each in ends)
    return Resampling(
        extents,
        target,
        steps,
        orders,
        back,
        origin,
        clamps=rule != "cover",
        keeps_integers=grid.keeps_integers,
    )


def _origin(
    grid: SpacingGrid, extent: int, target: int, step: float, flip: bool, *, is_right_angled: bool
) -> float:
    """Return the input coordinate of output voxel 0."""
    if grid.keeps == "centre":
        return _centred(extent, target, step)
    first = 0.0 if is_right_angled else (extent - target * step) / 2
    if grid.keeps == "scan's first voxel" and flip:
        return extent - 1 - (target - 1) * step - first
    return first


_AT_ZERO = 1e-8
"""Voxels by which a corner may lie before the first voxel in MONAI (NumPy's allclose)."""

_MOST_SHEAR = 0.01
"""Voxels by which a corner may move with the shear that MONAI's grid lacks."""


def is_rectangular(matrix: Affine, extents: Triple, wanted: VoxelSpacing) -> bool:
    """Return whether MONAI's Spacing keeps the first voxel; elsewhere it centres the new grid.

    It does if no corner lies before the first voxel, along axes as its zoom_affine orthogonalises
    them: the rounding in the header of an oblique scan decides (compute_shape_offset). matrix: 3x3,
    from voxels to millimetres. Raises PreparationError if the axes are sheared.
    """
    upper = np.linalg.cholesky(matrix.T @ matrix).T
    rotation = matrix @ np.linalg.inv(upper)
    onto = np.linalg.solve(rotation @ np.diag(wanted), matrix)
    corners = np.array([*product(*((0.0, extent - 1.0) for extent in extents))]).T
    sheared = np.abs((onto - np.diag(np.diag(onto))) @ corners).max()
    if sheared > _MOST_SHEAR:
        raise PreparationError(
            "The scan's axes are not at right angles, and MONAI resamples such a scan onto a grid "
            "that has them, which is not reproduced; resample the scan before."
        )
    found = onto @ corners
    return bool(np.any(np.min(found[:, None, :] - found[:, :, None], axis=(0, 2)) >= -_AT_ZERO))


def _centred(extent: int, target: int, step: float) -> float:
    return (extent - 1 - (target - 1) * step) / 2


def _check_size(
    extents: Triple, target: Triple, spacing: VoxelSpacing, wanted: VoxelSpacing
) -> None:
    """Raise PreparationError if a grid would be absurdly large."""
    voxels, available = prod(target), max(prod(extents), 1)
    if voxels > LARGEST:
        raise PreparationError(
            f"At the model's spacing the scan would have {times(target)} voxels; its header states "
            f"{_edges(spacing)} mm per voxel, so check that."
        )
    if voxels > FINEST * available:
        raise PreparationError(
            f"At the model's spacing of {_edges(wanted)} mm the scan of {_edges(spacing)} mm would "
            f"have {times(target)} voxels, {voxels / available:.0f} for each of its own; the model "
            "is for much finer scans, or one of the two spacings is wrong."
        )


def _edges(spacing: VoxelSpacing) -> str:
    return " x ".join(f"{edge:g}" for edge in spacing)
