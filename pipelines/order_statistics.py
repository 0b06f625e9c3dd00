"""Single values of a large array as they would stand if it were sorted."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np

from ..io.volume import AnyArray
from .parallel import beside_each_other

_SAMPLE = 1 << 17
_CHUNK = 1 << 20
_DEVIATIONS = 4
"""By how many standard deviations of a random sample's ranks the bounds are set apart."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    low: Any
    high: Any


def order_statistics(flat: AnyArray, ranks: Sequence[int]) -> list[Any]:
    """The values that stand at `ranks`, from 0, of a one-dimensional array in ascending order.

    ranks: ascending and near each other. A sample gives bounds that hold them but for bad luck, and
    only what lies between is sorted (Floyd and Rivest, Expected time bounds for selection, 1975):
    a tenth of the time of numpy.partition, which many equal values slow down, and no copy of the
    array. The result is exact; where the bounds miss, numpy.partition finds it.
    """
    sample = np.sort(flat[:: max(flat.size // _SAMPLE, 1) | 1])
    bounds = _bounds(sample, flat.size, ranks)
    below, between = _counted(flat, bounds) if bounds.low == bounds.high else _sorted(flat, bounds)
    if ranks[0] < below or ranks[-1] - below >= between.size:
        ordered = np.partition(flat, ranks)
        return [ordered[rank] for rank in ranks]
    return [between[rank - below] for rank in ranks]


def _bounds(sample: AnyArray, size: int, ranks: Sequence[int]) -> _Bounds:
    last, scale = sample.size - 1, sample.size / size
    margin = 1 + ceil(_DEVIATIONS * sqrt(sample.size) / 2)
    low, high = int(ranks[0] * scale) - margin, ceil(ranks[-1] * scale) + margin
    return _Bounds(sample[max(low, 0)], sample[min(high, last)])


def _counted(flat: AnyArray, bounds: _Bounds) -> tuple[int, AnyArray]:
    """How many are below the bounds, which are one value, and that as often as it is there."""

    def count(chunk: AnyArray) -> tuple[int, int]:
        equal = np.count_nonzero(chunk == bounds.low)
        return int(np.count_nonzero(chunk < bounds.low)), int(equal)

    counts = beside_each_other(count, _chunks(flat))
    return sum(below for below, _ in counts), np.broadcast_to(
        bounds.low, sum(equal for _, equal in counts)
    )


def _sorted(flat: AnyArray, bounds: _Bounds) -> tuple[int, AnyArray]:
    """How many are below the bounds, and what lies between them in ascending order."""

    def pick(chunk: AnyArray) -> tuple[int, AnyArray]:
        inside = (chunk >= bounds.low) & (chunk <= bounds.high)
        return int(np.count_nonzero(chunk < bounds.low)), chunk[inside]

    picked = beside_each_other(pick, _chunks(flat))
    return sum(below for below, _ in picked), np.sort(np.concatenate([part for _, part in picked]))


def _chunks(flat: AnyArray) -> list[AnyArray]:
    return [flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)]
