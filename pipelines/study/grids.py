"""Comparison of grids, and alignment of the scans of a study on one grid."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import product
from typing import Any

import nibabel as _nibabel
import numpy as np

from ...engine.network.layers import FloatArray
from ...io.volume import Affine, Volume
from ..errors import PreparationError
from .geometry import check_affine

nibabel: Any = _nibabel  # typed only in part

MOST_APART = 0.01
"""Largest distance between corners of equal grids, in smallest voxel edges: headers round."""


def grid_difference(one: Volume, other: Volume) -> str | None:
    """Describe the difference between two grids, with the figures of both; None if equal."""
    if one.shape != other.shape:
        return f"{_sizes(one.shape)} voxels against {_sizes(other.shape)}"
    apart = _farthest_corners(one.shape, one.affine, other.affine)
    smallest = min(*one.spacing, *other.spacing)
    if apart <= MOST_APART * smallest:
        return None
    if not np.allclose(one.spacing, other.spacing, rtol=MOST_APART / max(one.shape), atol=0):
        return f"voxels of {_sizes(one.spacing)} mm against {_sizes(other.spacing)} mm"
    axes = _axes(one.affine), _axes(other.affine)
    if axes[0] != axes[1]:
        return f"axes that run to {axes[0]} against {axes[1]}"
    return f"corners that lie up to {apart:.3g} mm apart"


def _farthest_corners(extents: tuple[int, int, int], one: Affine, other: Affine) -> float:
    """Return the largest distance in millimetres between equal corners of two grids."""
    ends = [(0, extent - 1) for extent in extents]
    corners = np.array([(*corner, 1) for corner in product(*ends)])
    return float(np.linalg.norm((corners @ (one - other).T)[:, :3], axis=1).max())


def _axes(affine: Affine) -> str:
    codes: tuple[str | None, ...] = nibabel.aff2axcodes(affine)
    return "".join(code or "?" for code in codes)


def _sizes(sizes: tuple[float, ...]) -> str:
    return " x ".join(f"{size:.6g}" for size in sizes)


def on_one_grid(
    volumes: Sequence[Volume], names: Sequence[str], *, resample: bool
) -> tuple[tuple[Volume, ...], tuple[str, ...]]:
    """Return the scans on the grid of the first, and a line for each that was resampled.

    names: of their channels. resample: whether scans on other grids are resampled, by trilinear
    interpolation at their positions in space. Raises PreparationError for grids that differ, and
    for a scan that does not overlap the first.
    """
    first, reference = volumes[0], names[0]
    aligned, done = [first], list[str]()
    for volume, name in zip(volumes[1:], names[1:], strict=True):
        difference = grid_difference(volume, first)
        if difference is None:
            aligned.append(volume)
        elif resample:
            image, share = _resampled(volume, first, name)
            aligned.append(image)
            done.append(_in_words(f"{name} was resampled onto {reference}", difference, share))
        else:
            raise PreparationError(
                f"The grids of {name} and {reference} differ: {difference}; register the scans to "
                "each other, or, if they are aligned in space, use setting resample-channels."
            )
    return tuple(aligned), tuple(done)


def _in_words(done: str, difference: str, share: float) -> str:
    note = f"{done}, trilinearly: {difference}"
    if share == 1:
        return note
    return f"{note}; {1 - share:.1%} of its voxels are outside and get its lowest value"


def _resampled(volume: Volume, first: Volume, name: str) -> tuple[Volume, float]:
    """Return the scan on the grid of the first, and the share of that grid within the scan."""
    check_affine(volume.affine)
    steps = np.linalg.inv(volume.affine) @ first.affine  # from the first's voxels to the scan's
    share = _share_within(volume, first, steps)
    if not share:
        raise PreparationError(
            f"{name} is at another position than the first scan of its study, according to their "
            "headers; check that both are of one patient and session."
        )
    image = first.with_voxels(_interpolated(volume, first, steps))
    return replace(image, notes=volume.notes), share


def _share_within(volume: Volume, first: Volume, steps: Affine) -> float:
    """Return the share of the first scan's voxels that lie between voxel centres of the other's."""
    inside = 0
    i, j = np.meshgrid(*map(np.arange, first.shape[:2]), indexing="ij")
    ends = np.array(volume.shape) - 1
    for k in range(first.shape[2]):
        at = np.stack([i.ravel(), j.ravel(), np.full(i.size, k), np.ones(i.size)])
        places = (steps @ at)[:3].T
        inside += int(((places >= -_EDGE) & (places <= ends + _EDGE)).all(axis=1).sum())
    return inside / first.voxels.size


_EDGE = 0.5
"""Voxels beyond the outermost centres that are still part of a scan."""


def _interpolated(volume: Volume, first: Volume, steps: Affine) -> FloatArray:
    """Return values [i, j, k] on the first scan's grid; beyond the scan's edges its lowest value.

    Both images are given in voxel coordinates, so that an affine need not be orthonormal.
    """
    sitk: Any = import_module("SimpleITK")  # late, as few scans need it; it ships no types
    values = volume.values()
    resampler = sitk.ResampleImageFilter()
    resampler.SetSize(first.shape)
    resampler.SetInterpolator(sitk.sitkLinear)
    resampler.SetOutputPixelType(sitk.sitkFloat32)
    resampler.SetDefaultPixelValue(float(values.min()))
    transform = sitk.AffineTransform(3)
    transform.SetMatrix(steps[:3, :3].ravel().tolist())
    transform.SetTranslation(steps[:3, 3].tolist())
    resampler.SetTransform(transform)
    image = resampler.Execute(sitk.GetImageFromArray(np.ascontiguousarray(values.T)))
    return sitk.GetArrayFromImage(image).T
