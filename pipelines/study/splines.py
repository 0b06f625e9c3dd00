"""Interpolation of a volume by a matrix for each axis: nearest, linear and cubic, as nnU-Net does.

nnU-Net resizes with scikit-image, whose cubic splines are those of scipy.ndimage.zoom with the edge
repeated beyond a volume, and clips values that overshoot the input. Planes that lie far
apart are resized one by one, and the nearest of them is taken along the third axis.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...engine.network.layers import FloatArray, Triple

_PADDED = 12
"""Voxels that scipy repeats beyond each end before it fits a cubic spline."""


def resized(values: FloatArray, target: Triple, orders: Triple) -> FloatArray:
    """Resize a volume [D, H, W] to `target`.

    orders: of the spline along each axis, 0, 1 or 3. Cubic splines are cut to the range of the
    volume, or of each plane if one axis has order 0.
    """
    planes = tuple(axis for axis in range(3) if orders[axis])
    low, high = (end(axis=planes, keepdims=True) for end in (values.min, values.max))
    resampled = values
    for axis in planes:
        weights = _weights(values.shape[axis], target[axis], orders[axis])
        resampled = np.moveaxis(np.tensordot(weights, resampled, (1, axis)), 0, axis)
    if 3 in orders:
        resampled = np.clip(resampled, low, high)
    for axis in range(3):
        if axis not in planes:
            resampled = resampled.take(_nearest(values.shape[axis], target[axis]), axis)
    return np.ascontiguousarray(resampled)


def _places(extent: int, target: int) -> npt.NDArray[np.float64]:
    return (np.arange(target, dtype=np.float64) + 0.5) * (extent / target) - 0.5


def _nearest(extent: int, target: int) -> npt.NDArray[np.intp]:
    return np.clip(np.floor(_places(extent, target) + 0.5), 0, extent - 1).astype(np.intp)


@lru_cache(maxsize=6)
def _weights(extent: int, target: int, order: int) -> FloatArray:
    """Return the weight [target, extent] of each voxel of a row in each resized one."""
    if extent == target:
        return np.eye(extent, dtype=np.float32)
    places = _places(extent, target)
    if order == 1:
        return np.maximum(
            1 - abs(places.clip(0, extent - 1)[:, None] - np.arange(extent)), 0
        ).astype(np.float32)
    nodes = np.arange(-_PADDED, extent + _PADDED, dtype=np.float64)
    repeated = np.eye(extent)[nodes.clip(0, extent - 1).astype(np.intp)]
    fitted = np.linalg.solve(_cubic(nodes[:, None] - nodes) + _mirrored(len(nodes)), repeated)
    return (_cubic(places[:, None] - nodes) @ fitted).astype(np.float32)


def _cubic(away: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the cubic B-spline at a distance in voxels."""
    far = np.maximum(2 - abs(away), 0.0)
    near = np.maximum(1 - abs(away), 0.0)
    return (far**3 - 4 * near**3) / 6


def _mirrored(count: int) -> npt.NDArray[np.float64]:
    """Return what mirroring at the ends adds to the matrix of a spline's values at its nodes."""
    ends = np.zeros((count, count))
    ends[0, 1] = ends[-1, -2] = 1 / 6
    return ends
