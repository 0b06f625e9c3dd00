"""How overlapping translated patches become one volume."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from ...engine.network.layers import FloatArray, Triple, triple
from ..settings import Blend
from .tiling import Origins, Tile, Tiling

_SIGMA = 0.125
"""Standard deviation of the gaussian as a share of the patch edge (MONAI, nnU-Net)."""

_LOWEST = 1e-3
"""Floor of the gaussian, whose peak is 1; without it a patch's corners would hold nothing."""


def patch_weights(tiling: Tiling, blend: Blend, axes: Triple = (0, 1, 2)) -> FloatArray:
    """Weight of each voxel of a patch, positive and not yet normalised, not to be written to.

    gaussian: MONAI's importance map. linear: rises over the voxels shared with the neighbour and
    is flat between. constant: the mean of all patches. axes: which of D, H and W come first to
    last, in memory too. For like studies it is the same array.
    """
    steps = tiling.patch
    if blend == "linear":
        pairs = zip(tiling.patch, tiling.origins, strict=True)
        steps = triple(_farthest(edge, origins) for edge, origins in pairs)
    return _weights(tiling.patch, steps, blend, axes)


@lru_cache(maxsize=2)
def _weights(patch: Triple, steps: Triple, blend: Blend, axes: Triple) -> FloatArray:
    match blend:
        case "gaussian":
            weights = _outer([_gaussian(edge) for edge in patch])
            weights = np.maximum(weights, max(float(weights.min()), _LOWEST), dtype=np.float32)
        case "linear":
            weights = _outer([_ramps(*both) for both in zip(patch, steps, strict=True)])
        case "constant":
            weights = np.ones(patch, np.float32)
    laid = np.ascontiguousarray(weights.transpose(axes))
    laid.setflags(write=False)
    return laid


def _farthest(edge: int, origins: Origins) -> int:
    """The most voxels from one patch to the next."""
    return int(max(np.diff(origins), default=edge))


def _gaussian(edge: int) -> FloatArray:
    offset = np.arange(edge, dtype=np.float32) - np.float32((edge - 1) / 2)
    return np.exp(offset**2 / np.float32(-2 * (_SIGMA * edge) ** 2))


def _ramps(edge: int, step: int) -> FloatArray:
    """Two neighbours' ramps add up to 1 where they are `step` voxels apart."""
    shared = edge - step
    from_border = np.minimum(np.arange(edge), np.arange(edge)[::-1]) + 1
    return np.minimum(from_border / (shared + 1), 1).astype(np.float32)


def _outer(axes: Sequence[FloatArray]) -> FloatArray:
    return reduce(np.multiply.outer, axes)


@dataclass(frozen=True, slots=True)
class BlendedSlab:
    """Finished rows of the volume: values [C, rows, H, W], the first one at `start` along D."""

    start: int
    values: FloatArray


class Blender:
    """Weighted mean of translated patches, released slab by slab along D.

    It holds as many rows as a patch is deep, never the volume. Tiles come in the tiling's order.

    The mean is kept up to date patch by patch (West, Comm. ACM 22, 1979) instead of as a sum to be
    divided at the end: where all patches agree, the result is their value to the last bit.
    """

    def __init__(self, tiling: Tiling, channels: int, blend: Blend) -> None:
        depth, height, width = tiling.extents
        rows = min(tiling.patch[0], depth)
        self._tiling = tiling
        self._patch_weights = patch_weights(tiling, blend)
        self._mean = np.zeros((channels, rows, height, width), np.float32)
        self._weights = np.zeros((rows, height, width), np.float32)
        self._start = 0
        self._released = 0
        self._tiles = iter(tiling)

    def add(self, tile: Tile, patch: FloatArray) -> BlendedSlab | None:
        """Add a translated patch [C, D, H, W]; a slab comes back once no later tile touches it.

        The slab's values are overwritten by the next `add`.
        """
        if tile != next(self._tiles, None):
            raise ValueError(f"tile {tile.origin} is out of the tiling's order")
        self._forget_released()
        part = self._tiling.within_patch(tile)
        depth, height, width = self._tiling.within_volume(tile)
        rows = slice(depth.start - self._start, depth.stop - self._start)
        mean, weights = self._mean[:, rows, height, width], self._weights[rows, height, width]
        weights += self._patch_weights[part]
        with np.errstate(invalid="ignore"):  # infinities become NaN, which `finish` refuses
            change = patch[:, *part] - mean
            change *= self._patch_weights[part] / weights
            mean += change
        return self._release(tile)

    def _release(self, tile: Tile) -> BlendedSlab | None:
        along_d, along_h, along_w = self._tiling.origins
        depth, height, width = tile.origin
        if (height, width) != (along_h[-1], along_w[-1]):
            return None
        following = along_d.index(depth) + 1
        if following == len(along_d):
            self._released = self._tiling.extents[0] - self._start
        else:
            self._released = along_d[following] - self._start
        return BlendedSlab(self._start, self._mean[:, : self._released])

    def _forget_released(self) -> None:
        if not self._released:
            return
        kept = len(self._weights) - self._released
        for row in range(kept):  # row by row: numpy would copy an overlapping move as a whole
            self._mean[:, row] = self._mean[:, row + self._released]
            self._weights[row] = self._weights[row + self._released]
        self._mean[:, kept:] = 0
        self._weights[kept:] = 0
        self._start += self._released
        self._released = 0
