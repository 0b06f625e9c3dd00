"""Picture of a study: truth, result and their difference in the planes where they differ most."""

from dataclasses import replace
from io import BytesIO
from math import ceil

import numpy as np

from ...io.volume import DoubleArray, Volume
from ..report.previews import small_webp
from ..study.geometry import slices_through
from ..study.preview import Column, difference_shades, drawn, grey_shades
from ..study.statistics import Range
from .images import Flags, StoredImage

_SAMPLED_VOXELS = 1 << 18
_OUTLIERS = 0.5
"""Percent of the truth's voxels left outside the grey window at either end."""


def draw(
    truth: Volume, result: Volume, inside: Flags | None, at: tuple[int, int, int]
) -> bytes | None:
    """Draw a WebP of three planes of each, both in the truth's grey window.

    inside: [k, j, i], the voxels that count; the difference is 0 elsewhere. at: plane k, row j and
    column i that the planes go through. Raises PreparationError if the affine is unusable.
    """
    voxel = at[2], at[1], at[0]
    window = _grey_window(StoredImage.of(truth), inside)
    true, made = slices_through(truth, voxel), slices_through(result, voxel)
    before, after = ([_finite(plane.values, window) for plane in each] for each in (true, made))
    changes = [b - a for a, b in zip(before, after, strict=True)]
    if inside is not None:
        counted = slices_through(truth.with_voxels(inside.T), voxel)
        pairs = zip(changes, counted, strict=True)
        changes = [np.where(flags.values > 0, change, 0.0) for change, flags in pairs]
    grey = grey_shades(before, window)
    columns = [
        Column("truth", before, grey),
        Column("result", after, grey),
        Column("result - truth", changes, difference_shades(changes)),
    ]
    return small_webp(BytesIO(drawn(true, columns)))


def _grey_window(truth: StoredImage, inside: Flags | None) -> Range:
    """Return the range of the truth's voxels that count, without outliers, from a sample."""
    step = ceil((truth.voxels.size / _SAMPLED_VOXELS) ** (1 / 3))
    thinned = (slice(None, None, step),) * 3
    values = replace(truth, voxels=truth.voxels[thinned]).values(slice(None))
    flags = np.isfinite(values)
    if inside is not None:
        flags &= inside[thinned]
    if not flags.any():
        return Range(0.0, 1.0)
    low, high = np.percentile(values[flags], [_OUTLIERS, 100 - _OUTLIERS])
    return Range(float(low), float(high)) if low < high else Range(float(low), float(low) + 1.0)


def _finite(values: DoubleArray, window: Range) -> DoubleArray:
    return np.nan_to_num(values, nan=window.low, posinf=window.high, neginf=window.low)
