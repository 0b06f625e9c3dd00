"""Statistics of a scan: range, percentiles and foreground."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.cores import in_parallel
from ...engine.model.calibration import EIGHTHS
from ...engine.network.layers import FloatArray, Triple, triple
from ...engine.scaling import Stored
from ...io.volume import AnyArray, Volume
from ..errors import PreparationError

_SAMPLE = 1 << 17
_RANK_DEVIATIONS = 4
"""Standard deviations of a random sample's ranks between the bounds and the rank."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of an order statistic. lower_half: whether fewer values lie below the bounds than
    above.
    """

    low: Any
    high: Any
    lower_half: bool

    def pick(self, chunk: AnyArray) -> tuple[int, AnyArray]:
        """Return how many values are below, and those between; no copy if these are one value."""
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
    """Return the values at ranks, from 0, of a one-dimensional array in ascending order.

    groups: of ranks, ascending and near each other. A sample gives bounds that almost surely
    contain them, and only the values between are sorted (Floyd and Rivest, Expected time bounds for
    selection, 1975): a tenth of the time of numpy.partition, which many equal values slow down, and
    no copy of the array. The result is exact; if the bounds miss, numpy.partition finds it.
    """
    sample = np.sort(flat[:: max(flat.size // _SAMPLE, 1) | 1])
    bounds = [_bounds(sample, flat.size, ranks) for ranks in groups]
    picked = in_parallel(
        lambda chunk: [own.pick(chunk) for own in bounds], _chunks(flat, _LARGE_CHUNK)
    )
    return [
        _at(ranks, own, [chunk[group] for chunk in picked], flat)
        for group, (ranks, own) in enumerate(zip(groups, bounds, strict=True))
    ]


def _bounds(sample: AnyArray, size: int, ranks: Sequence[int]) -> _Bounds:
    last, scale = sample.size - 1, sample.size / size
    margin = 1 + ceil(_RANK_DEVIATIONS * sqrt(sample.size) / 2)
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
"""Voxels per step; their float64 copy stays within a processor's caches."""

_LARGE_CHUNK = 1 << 23
"""Voxels per step without such a copy: the threads of a batch wait for the interpreter's lock after
each step.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest and highest value, in the scan's unit.

    low, high: those values.
    """

    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        """Whether neither is NaN or infinite."""
        return isfinite(self.low) and isfinite(self.high)


def extremes(values: AnyArray) -> Range:
    """Return lowest and highest value; both NaN if one value is."""

    def measure(part: AnyArray) -> tuple[Any, Any]:
        with np.errstate(invalid="ignore"):
            return part.min(), part.max()

    lows, highs = zip(*in_parallel(measure, _chunks(values, _LARGE_CHUNK)), strict=True)
    return Range(float(np.min(lows)), float(np.max(highs)))


def study_range(volume: Volume) -> Range:
    """Return lowest and highest value.

    Raises PreparationError if one of the voxels is NaN or infinite (even if only in the background:
    the network spreads it into the anatomy), all are equal, or they are too large for 32-bit
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
            f"The values reach from {ends[0]:g} to {ends[1]:g}, which 32-bit floats cannot "
            "represent; check the voxel type and the scaling in the scan's header."
        )
    return Range(ends[0], ends[1])


def _not_finite(voxels: AnyArray) -> str:
    missing = sum(int(np.isnan(part).sum()) for part in _chunks(voxels))
    infinite = sum(int(np.isinf(part).sum()) for part in _chunks(voxels))
    if not infinite:
        return f"{missing} of {voxels.size} voxels are NaN; setting nan-to=VALUE replaces them."
    more = f", and {missing} NaN" if missing else ""
    return (
        f"{infinite} of {voxels.size} voxels are infinite{more}; setting nan-to replaces only NaN, "
        "so find the cause of the overflow, and export the scan again."
    )


def percentiles(volume: Volume, low: float, high: float) -> Range:
    """Return the percentiles `low` and `high`, interpolated as numpy.percentile does."""
    flips = volume.slope < 0
    asked = [100 - high, 100 - low] if flips else [low, high]
    flat = _flat(volume.voxels)
    ends = sorted(_scaled(volume, value) for value in _percentiles(flat, asked))
    return Range(ends[0], ends[1])


def mean_and_deviation(volume: Volume) -> tuple[float, float]:
    """Return mean and (population) standard deviation, summed in float64."""
    size = volume.voxels.size
    mean = sum(float(part.sum(dtype=np.float64)) for part in _chunks(volume.voxels)) / size
    squares = sum(
        float(np.square(part.astype(np.float64) - mean).sum()) for part in _chunks(volume.voxels)
    )
    return _scaled(volume, mean), abs(volume.slope) * (squares / size) ** 0.5


def sampled_values(volume: Volume) -> AnyArray:
    """Return the values of evenly spaced voxels."""
    flat = _flat(volume.voxels)
    return flat[:: max(flat.size // _SAMPLE, 1) | 1] * volume.slope + volume.intercept


def share_between(volume: Volume, ends: Range) -> float:
    """Estimate the share of the voxels with a value strictly between two."""
    values = sampled_values(volume)
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
    """View as one-dimensional, in the order of memory, so that a whole array is not copied."""
    return voxels.ravel(order="K")


def _chunks(voxels: AnyArray, size: int = _CHUNK) -> Iterator[AnyArray]:
    flat = _flat(voxels)
    return (flat[start : start + size] for start in range(0, flat.size, size))


_BINS = 256
_SAMPLED = 96
"""Most planes sampled along each axis: enough for percentiles to the third digit."""

_COVERED = 0.98
"""Share of the foreground that counts, so that single bright voxels of the background do not."""


def sample_of(source: Stored) -> tuple[FloatArray, Triple]:
    """Sample the network intensities [D, H, W] of a scan of one channel; return them and the step
    between sampled planes along each axis.
    """
    [view] = source.values
    d, h, w = (ceil(extent / _SAMPLED) for extent in view.shape)
    return source.scaling.forward(view[::d, ::h, ::w]), (d, h, w)


def level_of(source: Stored) -> float:
    """Return the network intensity above which a scan of one channel is foreground."""
    return foreground_level(sample_of(source)[0])


def foreground_level(values: FloatArray) -> float:
    """Return the level above which intensities are foreground, by Otsu's method.

    values: of any shape, finite. If all are equal, as in a sample next to a single bright voxel,
    the level is just below, and all is foreground.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low - 1.0
    return level_between(*np.histogram(values, _BINS))


def level_between(counts: npt.NDArray[Any], edges: npt.NDArray[Any]) -> float:
    """Return the level that splits a histogram into two classes such that the variance between them
    is the largest: air and body of a CT, or background and head of an MR.

    Source: Otsu, IEEE Trans. Syst. Man Cybern. 9, 1979.
    """
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1]
    above = counts.sum() - below
    sums = np.cumsum(counts * centres)
    between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    # Levels within a gap between the classes are equally good: the middle one.
    best = np.flatnonzero(between >= between.max() * (1 - 1e-9))
    return float((edges[best[0] + 1] + edges[best[-1] + 1]) / 2)


def extents_of(inside: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Triple:
    """Return the voxels along each axis, from plane to plane, that hold nearly all of a 3D mask."""
    return triple(last - first for first, last in map(_covered, _planes(inside)))


def profiles_of(
    inside: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]",
) -> tuple[tuple[float, ...], ...]:
    """Return how a 3D mask is distributed along each axis: in each eighth of what holds nearly all
    of it, the number of voxels by the mean of all eighths.
    """
    found = list[tuple[float, ...]]()
    for planes in _planes(inside):
        first, last = _covered(planes)
        ends = np.linspace(first, last, EIGHTHS + 1)
        sums = np.interp(ends, np.arange(planes.size + 1), np.append(0, np.cumsum(planes)))
        each = np.diff(sums) * EIGHTHS / max(float(sums[-1] - sums[0]), 1e-9)
        found.append(tuple(each.tolist()))
    return tuple(found)


def _planes(
    inside: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]",
) -> "list[np.ndarray[tuple[int, ...], np.dtype[np.int_]]]":
    """Return the voxels of a 3D mask in each plane across each axis."""
    return [
        np.count_nonzero(inside, axis=tuple(n for n in range(3) if n != axis)) for axis in range(3)
    ]


def _covered(planes: "np.ndarray[tuple[int, ...], np.dtype[np.int_]]") -> tuple[int, int]:
    """Return the first of the planes that hold nearly all, and the one after the last."""
    share = np.cumsum(planes) / max(int(planes.sum()), 1)
    margin = (1 - _COVERED) / 2
    first, last = np.searchsorted(share, [margin, 1 - margin])
    return int(first), int(last) + 1
