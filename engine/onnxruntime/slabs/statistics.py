"""Statistics of a map, computed slab by slab and merged in that order, so that they are
reproducible.

Merging is Chan's (Chan, Golub and LeVeque, Am. Stat. 37, 1983).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...cores import beside_each_other
from ...network.graph import Node
from ...network.layers import FloatArray, GroupNorm, InstanceNorm

_Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MapMoments:
    """Moments of C channels. count: voxels. mean: [C]. squares: [C], summed squared deviations."""

    count: int
    mean: _Doubles
    squares: _Doubles

    @classmethod
    def of(cls, slab: FloatArray) -> "MapMoments":
        """Return the moments of [C, D, H, W]."""
        made = beside_each_other(_moments, slab)
        mean, squares = np.array(made).T
        return cls(prod(slab.shape[1:]), mean, squares)

    def merged(self, other: "MapMoments") -> "MapMoments":
        """Return the moments of both together."""
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = apart**2 * (self.count * other.count / count)
        return MapMoments(count, mean, self.squares + other.squares + between)

    def by_groups(self, groups: int) -> "MapMoments":
        """Return the moments of each channel together with all those of its group."""
        size = len(self.mean) // groups
        mean, squares = self.mean.reshape(groups, size), self.squares.reshape(groups, size)
        one = MapMoments(self.count, mean[:, 0], squares[:, 0])
        for at in range(1, size):
            one = one.merged(MapMoments(self.count, mean[:, at], squares[:, at]))
        return MapMoments(one.count, np.repeat(one.mean, size), np.repeat(one.squares, size))


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """value * scale + shift by channel, [C, 1, 1, 1] each."""

    scale: FloatArray
    shift: FloatArray

    def __call__(self, slab: FloatArray) -> FloatArray:
        """Return [C, D, H, W] mapped, in new memory."""
        made = np.empty(slab.shape, np.float32)

        def fill(channel: int) -> None:
            np.multiply(slab[channel], self.scale[channel], out=made[channel])
            made[channel] += self.shift[channel]

        beside_each_other(fill, range(len(slab)))
        return made


def normalisation(node: Node, moments: MapMoments, weights: Mapping[str, FloatArray]) -> ChannelMap:
    """Return the channel map of a norm for a map with these moments."""
    layer = node.layer
    assert isinstance(layer, InstanceNorm | GroupNorm)
    found = moments.by_groups(layer.groups) if isinstance(layer, GroupNorm) else moments
    scale = 1 / np.sqrt(found.squares / found.count + layer.epsilon)
    if layer.scale:
        scale = scale * weights[layer.scale]
    shift = -found.mean * scale
    if layer.shift:
        shift = shift + weights[layer.shift]
    return ChannelMap(_by_channel(scale), _by_channel(shift))


def _by_channel(values: _Doubles) -> FloatArray:
    return values.astype(np.float32).reshape(-1, 1, 1, 1)


def _moments(channel: FloatArray) -> tuple[float, float]:
    values = channel.astype(np.float64)
    mean = float(values.mean())
    values -= mean
    np.square(values, out=values)
    return mean, float(values.sum())
