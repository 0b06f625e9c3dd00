"""A study's own statistics, exact and without a second volume's worth of memory where possible."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from ..io.volume import AnyArray, Volume
from .errors import PreparationError
from .order_statistics import order_statistics

_CHUNK = 1 << 20
"""Voxels handled at once; their float64 copy stays within a processor's caches."""


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest and highest value of something, in the scan's unit."""

    low: float
    high: float


def study_range(volume: Volume) -> Range:
    """Lowest and highest value.

    Raises PreparationError if there are no voxels, one of them is NaN or infinite (also if only the
    background is: what a network makes of it reaches the anatomy), all are equal, or they are too
    large for 32-bit floats.
    """
    if volume.voxels.size == 0:
        extents = "x".join(str(extent) for extent in volume.shape)
        raise PreparationError(f"The volume of {extents} holds no voxels; check how it was saved.")
    with np.errstate(invalid="ignore"):
        low, high = float(volume.voxels.min()), float(volume.voxels.max())
    if not np.isfinite([low, high]).all():
        bad = sum(part.size - int(np.isfinite(part).sum()) for part in _chunks(volume.voxels))
        raise PreparationError(
            f"{bad} of {volume.voxels.size} voxels are NaN or infinite; "
            "replace them by finite values and translate the scan again."
        )
    if low == high:
        raise PreparationError(
            f"Every voxel has the value {_scaled(volume, low):g}, so there is nothing to "
            "translate; check how the scan was saved."
        )
    ends = sorted((_scaled(volume, low), _scaled(volume, high)))
    if max(-ends[0], ends[1]) > float(np.finfo(np.float32).max):
        raise PreparationError(
            f"The values reach from {ends[0]:g} to {ends[1]:g}, which 32-bit floats cannot hold; "
            "check the voxel type and the scaling in the scan's header."
        )
    return Range(ends[0], ends[1])


def percentiles(volume: Volume, low: float, high: float) -> Range:
    """Values below which `low` and `high` percent lie, interpolated as numpy.percentile does."""
    flips = volume.slope < 0
    asked = [100 - high, 100 - low] if flips else [low, high]
    flat = _flat(volume.voxels)
    ends = sorted(_scaled(volume, _percentile(flat, percent)) for percent in asked)
    return Range(ends[0], ends[1])


def mean_and_deviation(volume: Volume) -> tuple[float, float]:
    """Mean and (population) standard deviation, summed in float64."""
    size = volume.voxels.size
    mean = sum(float(part.sum(dtype=np.float64)) for part in _chunks(volume.voxels)) / size
    squares = sum(
        float(np.square(part.astype(np.float64) - mean).sum()) for part in _chunks(volume.voxels)
    )
    return _scaled(volume, mean), abs(volume.slope) * (squares / size) ** 0.5


def _percentile(flat: AnyArray, percent: float) -> float:
    rank = percent / 100 * (flat.size - 1)
    below, above = map(float, order_statistics(flat, [floor(rank), ceil(rank)]))
    return below + (above - below) * (rank - floor(rank))


def _scaled(volume: Volume, stored: float) -> float:
    return stored * volume.slope + volume.intercept


def _flat(voxels: AnyArray) -> AnyArray:
    """One-dimensional, in the order of memory, so that a whole array is not copied."""
    return voxels.ravel(order="K")


def _chunks(voxels: AnyArray) -> Iterator[AnyArray]:
    flat = _flat(voxels)
    return (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))
