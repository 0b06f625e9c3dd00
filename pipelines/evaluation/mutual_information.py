"""Normalised mutual information of truth and result."""

from math import inf

import numpy as np
import numpy.typing as npt

from ...io.volume import DoubleArray
from .images import Images

_BINS = 100
"""Bins along each image's values, as in scikit-image."""


def normalised_mutual_information(images: Images) -> float | None:
    """Return the sum of both entropies, divided by the joint entropy: 1 to 2, 2 if both are equal.

    Some voxels must count, and all of these must be finite. None if both images are constant.
    Studholme et al., An overlap invariant entropy measure of 3D medical image alignment, 1999.
    """
    edges = _edges(images)
    counts = np.zeros(_BINS * _BINS, np.int64)
    for _, _, truth, result in images.counted():
        places = _bins(truth, edges[0]) * _BINS + _bins(result, edges[1])
        counts += np.bincount(places, minlength=counts.size)
    joint = counts.reshape(_BINS, _BINS)
    whole = _entropy(joint.ravel())
    return (_entropy(joint.sum(axis=0)) + _entropy(joint.sum(axis=1))) / whole if whole else None


def _edges(images: Images) -> tuple[DoubleArray, DoubleArray]:
    """Return the edges of the bins of truth and result, from the least to the greatest value."""
    ends = [[inf, -inf], [inf, -inf]]
    for _, _, *both in images.counted():
        for each, values in zip(ends, both, strict=True):
            if values.size:
                each[:] = min(each[0], float(values.min())), max(each[1], float(values.max()))
    return _between(*ends[0]), _between(*ends[1])


def _between(low: float, high: float) -> DoubleArray:
    # as in numpy.histogram, the range of a constant is 1
    widened = 0.5 if low == high else 0.0
    return np.linspace(low - widened, high + widened, _BINS + 1)


def _bins(values: DoubleArray, edges: DoubleArray) -> npt.NDArray[np.intp]:
    """Return the bin of each value; the last one includes its upper edge."""
    scaled = (values - edges[0]) * (_BINS / (edges[-1] - edges[0]))
    found = np.minimum(scaled.astype(np.intp), _BINS - 1)
    found -= values < edges[found]  # rounding may be a bin off next to an edge
    found += (values >= edges[found + 1]) & (found < _BINS - 1)
    return found


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
