"""The scans of one study on one grid: held against the first, and resampled onto it if asked."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from ....engine.network.layers import FloatArray
from ....io.volume import Affine, Volume
from ...errors import PreparationError
from .grids import grid_difference
from .orientation import check_affine


def on_one_grid(
    volumes: Sequence[Volume], names: Sequence[str], *, resample: bool
) -> tuple[tuple[Volume, ...], tuple[str, ...]]:
    """The scans on the grid of the first, and what was done to which, in words.

    names: of their channels. resample: whether scans on other grids are resampled, by trilinear
    interpolation where the headers say that they lie. Raises PreparationError for grids that
    differ, and for a scan that does not lie where the first does.
    """
    first, reference = volumes[0], names[0]
    aligned, done = [first], list[str]()
    for volume, name in zip(volumes[1:], names[1:], strict=True):
        difference = grid_difference(volume, first)
        if difference is None:
            aligned.append(volume)
        elif resample:
            made, share = _resampled(volume, first, name)
            aligned.append(made)
            done.append(_in_words(f"{name} was resampled onto {reference}", difference, share))
        else:
            raise PreparationError(
                f"The grids of {name} and {reference} differ: {difference}; register the scans to "
                "each other, or, if they lie right in space, use setting resample-channels."
            )
    return tuple(aligned), tuple(done)


def _in_words(done: str, difference: str, share: float) -> str:
    told = f"{done}, trilinearly: {difference}"
    if share == 1:
        return told
    return f"{told}; {1 - share:.1%} of its voxels lie outside and take its lowest value"


def _resampled(volume: Volume, first: Volume, name: str) -> tuple[Volume, float]:
    """The scan on the grid of the first, and the share of that which lies within the scan."""
    check_affine(volume.affine)
    steps = np.linalg.inv(volume.affine) @ first.affine  # from the first's voxels to the scan's
    share = _share_within(volume, first, steps)
    if not share:
        raise PreparationError(
            f"{name} does not lie where the first scan of its study does, by their headers; check "
            "that both are of one patient and session."
        )
    made = first.with_voxels(_interpolated(volume, first, steps))
    return replace(made, notes=volume.notes), share


def _share_within(volume: Volume, first: Volume, steps: Affine) -> float:
    """Of the first scan's voxels, those that lie between centres of the other's."""
    inside = 0
    i, j = np.meshgrid(*map(np.arange, first.shape[:2]), indexing="ij")
    ends = np.array(volume.shape) - 1
    for k in range(first.shape[2]):
        at = np.stack([i.ravel(), j.ravel(), np.full(i.size, k), np.ones(i.size)])
        places = (steps @ at)[:3].T
        inside += int(((places >= -_EDGE) & (places <= ends + _EDGE)).all(axis=1).sum())
    return inside / first.voxels.size


_EDGE = 0.5
"""Voxels beyond the outermost centres that are still a scan's own."""


def _interpolated(volume: Volume, first: Volume, steps: Affine) -> FloatArray:
    """Values [i, j, k] on the first scan's grid; beyond its edges the scan is as dark as it gets.

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
    made = resampler.Execute(sitk.GetImageFromArray(np.ascontiguousarray(values.T)))
    return sitk.GetArrayFromImage(made).T
