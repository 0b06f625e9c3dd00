"""Single values of a large array as they would stand if it were sorted."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np

from ..engine.cores import beside_each_other
from ..io.volume import AnyArray

_SAMPLE = 1 << 17
_CHUNK = 1 << 20
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


def _chunks(flat: AnyArray) -> list[AnyArray]:
    return [flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)]
