"""How far translations of one scan through mirrored patches lie apart, voxel by voxel."""

from collections.abc import Iterable
from math import fsum

import numpy as np

from ....engine.cores import beside_each_other
from ....engine.network.layers import FloatArray
from ....engine.scaling import Stored
from ..voxels.foreground import level_of
from ..voxels.planes import Slab, slabs


class SpreadMoments:
    """Mean and standard deviation of arrays that come one after another, in memory for two.

    They are kept up to date array by array (West, Comm. ACM 22, 1979): where all arrays agree, the
    mean is their value and the deviation 0 to the last bit. The deviation is that of a sample: the
    squares are divided by one less than the number of arrays.

    mean, deviation: [D, H, W], what is to hold them, its values whatever they were.
    """

    def __init__(self, mean: FloatArray, deviation: FloatArray) -> None:
        self.mean, self.deviation = mean, deviation
        self.count = 0

    def add(self, made: FloatArray) -> None:
        """One more array [D, H, W]; until `end`, the deviation holds sums of squares."""
        self.count += 1

        def fill(slab: Slab) -> None:
            mean, squares = self.mean[slab], self.deviation[slab]
            if self.count == 1:
                mean[...] = made[slab]
                squares[...] = 0
                return
            change = made[slab] - mean
            mean += change / np.float32(self.count)
            change *= made[slab] - mean
            squares += change

        beside_each_other(fill, slabs(made))

    def end(self) -> None:
        """All arrays were added, two or more."""

        def fill(slab: Slab) -> None:
            deviation = self.deviation[slab]
            deviation /= np.float32(self.count - 1)
            np.sqrt(deviation, out=deviation)

        beside_each_other(fill, slabs(self.deviation))


def mean_in_foreground(map_values: FloatArray, given: Stored) -> float:
    """Mean of a map [D, H, W] where the first scan of a study is not air.

    given: the scans [C, D, H, W] as the network takes them.
    """
    view = given.values[0]
    level = level_of(Stored(given.values[:1], given.scaling))

    def measure(slab: Slab) -> tuple[int, float]:
        inside = given.scaling.forward(view[slab]) > level
        return int(np.count_nonzero(inside)), float(map_values[slab][inside].sum(dtype=np.float64))

    return _mean(beside_each_other(measure, slabs(view)))


def _mean(parts: Iterable[tuple[int, float]]) -> float:
    counts, sums = zip(*parts, strict=True)
    return fsum(sums) / max(sum(counts), 1)
