"""A study's own statistics, exact and without a second volume's worth of memory where possible."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, sqrt
from typing import Any

import numpy as np

from ....engine.cores import beside_each_other
from ....io.volume import AnyArray, Volume
from ...errors import PreparationError

_SAMPLE = 1 << 17
_DEVIATIONS = 4
"""By how many standard deviations of a random sample's ranks the bounds are set apart."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """lower_half: whether fewer values lie below the bounds than above."""

    low: Any
    high: Any
    lower_half: bool

    def pick(self, chunk: AnyArray) -> tuple[int, AnyArray]:
        """How many are below, and what lies between, without a copy where that is one value."""
        if self.low == self.high:
            below = int(np.count_nonzero(chunk < self.low))
            equal = int(np.count_nonzero(chunk == self.low))
            return below, np.broadcast_to(self.low, equal)
        if self.lower_half:
            reached = chunk[chunk <= self.high]
            between = reached[reached >= self.low]
            return reached.size - between.size, between
        reached = chunk[chunk >= self.low]
        return chunk.size - reached.size, reached[reached <= self.high]


def order_statistics(flat: AnyArray, groups: Sequence[Sequence[int]]) -> list[list[Any]]:
    """The values that stand at ranks, from 0, of a one-dimensional array in ascending order.

    groups: of ranks, ascending and near each other. A sample gives bounds that hold them but for
    bad luck, and only what lies between is sorted (Floyd and Rivest, Expected time bounds for
    selection, 1975): a tenth of the time of numpy.partition, which many equal values slow down, and
    no copy of the array. The result is exact; where the bounds miss, numpy.partition finds it.
    """
    sample = np.sort(flat[:: max(flat.size // _SAMPLE, 1) | 1])
    bounds = [_bounds(sample, flat.size, ranks) for ranks in groups]
    picked = beside_each_other(lambda chunk: [own.pick(chunk) for own in bounds], _chunks(flat))
    return [
        _at(ranks, own, [chunk[group] for chunk in picked], flat)
        for group, (ranks, own) in enumerate(zip(groups, bounds, strict=True))
    ]


def _bounds(sample: AnyArray, size: int, ranks: Sequence[int]) -> _Bounds:
    last, scale = sample.size - 1, sample.size / size
    margin = 1 + ceil(_DEVIATIONS * sqrt(sample.size) / 2)
    low, high = int(ranks[0] * scale) - margin, ceil(ranks[-1] * scale) + margin
    return _Bounds(sample[max(low, 0)], sample[min(high, last)], 2 * ranks[0] < size)


def _at(
    ranks: Sequence[int], bounds: _Bounds, picked: list[tuple[int, AnyArray]], flat: AnyArray
) -> list[Any]:
    below = sum(count for count, _ in picked)
    between = sum(part.size for _, part in picked)
    if ranks[0] < below or ranks[-1] - below >= between:
        ordered = np.partition(flat, ranks)
        return [ordered[rank] for rank in ranks]
    if bounds.low == bounds.high:
        return [bounds.low for _ in ranks]
    ascending = np.sort(np.concatenate([part for _, part in picked]))
    return [ascending[rank - below] for rank in ranks]


_CHUNK = 1 << 20
"""Voxels handled at once; their float64 copy stays within a processor's caches."""


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest and highest value of something, in the scan's unit.

    low, high: those values.
    """

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

    Raises PreparationError if one of the voxels is NaN or infinite (also if only the background is:
    what a network makes of it reaches the anatomy), all are equal, or they are too large for 32-bit
    floats.
    """
    stored = extremes(volume.voxels)
    if not stored.is_finite:
        raise PreparationError(_not_finite(volume.voxels))
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


def _not_finite(voxels: AnyArray) -> str:
    missing = sum(int(np.isnan(part).sum()) for part in _chunks(voxels))
    infinite = sum(int(np.isinf(part).sum()) for part in _chunks(voxels))
    if not infinite:
        return f"{missing} of {voxels.size} voxels are NaN; setting nan-to=VALUE replaces them."
    more = f", and {missing} NaN" if missing else ""
    return (
        f"{infinite} of {voxels.size} voxels are infinite{more}; setting nan-to replaces NaN only, "
        "so find out what overflowed, and export the scan again."
    )


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


def share_between(volume: Volume, ends: Range) -> float:
    """About which share of the voxels has a value between two, and neither of them."""
    flat = _flat(volume.voxels)
    values = flat[:: max(flat.size // _SAMPLE, 1) | 1] * volume.slope + volume.intercept
    return float(np.mean((values > ends.low) & (values < ends.high)))


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
