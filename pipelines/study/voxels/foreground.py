"""What of a scan is the patient: intensities above a level that is found in the scan itself."""

from math import ceil

import numpy as np

from ....engine.network.layers import FloatArray, Triple, triple
from ....engine.scaling import Stored

_BINS = 256
_SAMPLED = 96
"""Planes along each axis that are looked at, at most: enough for percentiles to the third digit."""

_COVERED = 0.98
"""Of the foreground, so that single bright voxels of the background do not count."""


def sample_of(given: Stored) -> tuple[FloatArray, Triple]:
    """Some of the network intensities [D, H, W] of a scan of one channel, and each how manieth of
    its planes they are, along each axis.
    """
    [view] = given.values
    d, h, w = (ceil(extent / _SAMPLED) for extent in view.shape)
    return given.scaling.forward(view[::d, ::h, ::w]), (d, h, w)


def level_of(given: Stored) -> float:
    """The network intensity above which a scan of one channel is foreground."""
    return foreground_level(sample_of(given)[0])


def foreground_level(values: FloatArray) -> float:
    """The level above which intensities are foreground, by Otsu's method.

    It parts the values into two classes such that the variance between them is the largest (Otsu,
    IEEE Trans. Syst. Man Cybern. 9, 1979): air and body of a CT, or background and head of an MR.
    values: of any shape, finite. Where all are equal, as in a sample beside a single bright voxel,
    the level is just below, and all is foreground.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low - 1.0
    counts, edges = np.histogram(values, _BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1]
    above = values.size - below
    sums = np.cumsum(counts * centres)
    between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    # Levels within a gap between the classes are equally good: the middle one.
    best = np.flatnonzero(between >= between.max() * (1 - 1e-9))
    return float((edges[best[0] + 1] + edges[best[-1] + 1]) / 2)


def extents_of(inside: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Triple:
    """Voxels along each axis of a 3D mask, from plane to plane, that hold nearly all of it."""
    return triple(
        _covered(np.count_nonzero(inside, axis=tuple(n for n in range(3) if n != axis)))
        for axis in range(3)
    )


def _covered(planes: "np.ndarray[tuple[int, ...], np.dtype[np.int_]]") -> int:
    share = np.cumsum(planes) / max(int(planes.sum()), 1)
    margin = (1 - _COVERED) / 2
    first, last = np.searchsorted(share, [margin, 1 - margin])
    return int(last - first) + 1
