"""What of a scan is the patient: intensities above a level that is found in the scan itself."""

import numpy as np

from ....engine.network.layers import FloatArray, Triple

_BINS = 256
_COVERED = 0.98
"""Of the foreground, so that single bright voxels of the background do not count."""


def foreground_level(values: FloatArray) -> float:
    """The level above which intensities are foreground, by Otsu's method.

    It parts the values into two classes such that the variance between them is the largest (Otsu,
    IEEE Trans. Syst. Man Cybern. 9, 1979): air and body of a CT, or background and head of an MR.
    values: of any shape, finite and not all equal.
    """
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
    d, h, w = (
        _covered(np.count_nonzero(inside, axis=tuple(n for n in range(3) if n != axis)))
        for axis in range(3)
    )
    return d, h, w


def _covered(planes: "np.ndarray[tuple[int, ...], np.dtype[np.int_]]") -> int:
    share = np.cumsum(planes) / max(int(planes.sum()), 1)
    margin = (1 - _COVERED) / 2
    first, last = np.searchsorted(share, [margin, 1 - margin])
    return int(last - first) + 1
