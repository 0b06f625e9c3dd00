"""A study's own statistics, exact and without a second volume's worth of memory where possible."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from typing import Any

import numpy as np

from ..engine.cores import beside_each_other
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

    @property
    def is_finite(self) -> bool:
        """Whether neither is NaN or infinite."""
        return isfinite(self.low) and isfinite(self.high)


def extremes(values: AnyArray) -> Range:
    """Lowest and highest of some values; both NaN if one of them is."""

    def measure(part: AnyArray) -> tuple[Any, Any]:
        with np.errstate(invalid="ignore"):
            return part.min(), part.max()

    lows, highs = zip(*beside_each_other(measure, _chunks(values)), strict=True)
    return Range(float(np.min(lows)), float(np.max(highs)))


def study_range(volume: Volume) -> Range:
    """Lowest and highest value.

    Raises PreparationError if there are no voxels, one of them is NaN or infinite (also if only the
    background is: what a network makes of it reaches the anatomy), all are equal, or they are too
    large for 32-bit floats.
    """
    if volume.voxels.size == 0:
        extents = "x".join(str(extent) for extent in volume.shape)
        raise PreparationError(f"The volume of {extents} holds no voxels; check how it was saved.")
    stored = extremes(volume.voxels)
    if not stored.is_finite:
        bad = sum(part.size - int(np.isfinite(part).sum()) for part in _chunks(volume.voxels))
        raise PreparationError(
            f"{bad} of {volume.voxels.size} voxels are NaN or infinite; "
            "replace them by finite values and translate the scan again."
        )
    if stored.low == stored.high:
        raise PreparationError(
            f"Every voxel has the value {_scaled(volume, stored.low):g}, so there is nothing to "
            "translate; check how the scan was saved."
        )
    ends = sorted((_scaled(volume, stored.low), _scaled(volume, stored.high)))
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
    ends = sorted(_scaled(volume, value) for value in _percentiles(flat, asked))
    return Range(ends[0], ends[1])


def mean_and_deviation(volume: Volume) -> tuple[float, float]:
    """Mean and (population) standard deviation, summed in float64."""
    size = volume.voxels.size
    mean = sum(float(part.sum(dtype=np.float64)) for part in _chunks(volume.voxels)) / size
    squares = sum(
        float(np.square(part.astype(np.float64) - mean).sum()) for part in _chunks(volume.voxels)
    )
    return _scaled(volume, mean), abs(volume.slope) * (squares / size) ** 0.5


def _percentiles(flat: AnyArray, percents: Sequence[float]) -> list[float]:
    ranks = [percent / 100 * (flat.size - 1) for percent in percents]
    found = order_statistics(flat, [(floor(rank), ceil(rank)) for rank in ranks])
    return [
        float(below) + (float(above) - float(below)) * (rank - floor(rank))
        for rank, (below, above) in zip(ranks, found, strict=True)
    ]


def _scaled(volume: Volume, stored: float) -> float:
    return stored * volume.slope + volume.intercept


def _flat(voxels: AnyArray) -> AnyArray:
    """One-dimensional, in the order of memory, so that a whole array is not copied."""
    return voxels.ravel(order="K")


def _chunks(voxels: AnyArray) -> Iterator[AnyArray]:
    flat = _flat(voxels)
    return (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))
