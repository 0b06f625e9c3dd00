"""Visibility of the borders between tiles in a translated volume."""

import numpy as np
import numpy.typing as npt

from ...engine.network.layers import FloatArray, triple
from ..settings import Blend
from .figures import SeamScore
from .tiles import Tiling, patch_weights

Steps = npt.NDArray[np.float64]


def seam_score(
    given: FloatArray, translated: FloatArray, tiling: Tiling, blend: Blend
) -> SeamScore:
    """Compare steps between neighbouring voxels across tile borders with those elsewhere.

    given, translated: [C, D, H, W] in network intensity on the same grid; channels may differ.

    As in metrics of block artefacts (Wu and Yuen, IEEE Signal Process. Lett. 4, 1997), mean
    absolute steps between neighbouring planes are compared at the borders and elsewhere. Two things
    are our own. A blend may pass from tile to tile at once or gradually, so a step counts as border
    by the share of the mix that changes across it, and as elsewhere by the rest. And anatomy steps
    too, so the same ratio of the input, which has no seams, divides that of the output.

    Below 1.0 the overlaps are smoother than the rest, since a mean of tiles has less noise.
    """
    weights = patch_weights(tiling, blend)
    scores = triple(
        _ratio(change, after, before)
        for change, after, before in zip(
            (_change_of_mix(tiling, weights, axis) for axis in range(3)),
            _steps(translated),
            _steps(given),
            strict=True,
        )
    )
    return SeamScore(scores)


def _change_of_mix(tiling: Tiling, weights: FloatArray, axis: int) -> Steps:
    """Return the share of the mix of tiles, 0 to 1, that changes from each voxel of an axis to the
    next, along a line through the middle of the tiles.
    """
    origins, extent = tiling.origins[axis], tiling.extents[axis]
    if len(origins) == 1:
        return np.zeros(extent - 1)
    middle = [edge // 2 for edge in tiling.patch]
    line = weights[tuple(slice(None) if n == axis else m for n, m in enumerate(middle))]
    mix = np.zeros((len(origins), extent))
    for row, origin in zip(mix, origins, strict=True):
        row[origin : origin + len(line)] = line
    mix /= mix.sum(axis=0)
    return np.abs(np.diff(mix, axis=1)).sum(axis=0) / 2


def _steps(array: FloatArray) -> tuple[Steps, Steps, Steps]:
    """Sum absolute steps from each plane to the next, along D, H and W."""
    _, depth, height, width = array.shape
    d, h, w = np.zeros(depth - 1), np.zeros(height - 1), np.zeros(width - 1)
    for channel in array:
        for index, rows in enumerate(channel):
            if index:
                d[index - 1] += np.abs(rows - channel[index - 1]).sum(dtype=np.float64)
            h += np.abs(np.diff(rows, axis=0)).sum(axis=1, dtype=np.float64)
            w += np.abs(np.diff(rows, axis=1)).sum(axis=0, dtype=np.float64)
    return d, h, w


def _ratio(change: Steps, after: Steps, before: Steps) -> float | None:
    if not change.any():
        return None
    rest = 1 - change
    sums = change @ after, rest @ before, rest @ after, change @ before
    if not all(sums):
        return None
    at_borders, elsewhere = sums[0] / sums[3], sums[2] / sums[1]
    return float(at_borders / elsewhere)
