"""Cheap measures of every result against its scan, by which a page orders what deserves a look.

They are taken in a few planes, and do not change if either image is scaled or shifted in value, so
that two contrasts can be compared. They are no quality: each finds one way of going wrong.
"""

from dataclasses import replace
from math import sqrt

import numpy as np
import numpy.typing as npt

from ...engine.network.layers import FloatArray
from ...io.volume import AnyArray
from .figures import Measures
from .geometry import memory_order
from .statistics import level_between

_VOXELS = 1 << 18
"""Voxels that are looked at in each image, unless three planes have more; some 4 ms.

After each step on an array, NumPy waits for the interpreter's lock, so both images are processed
together: some 850 steps plane by plane took 15 ms alone, and 100 ms in each thread of a batch.
"""

_FEWEST_PLANES, _MOST_PLANES = 3, 24
_SAMPLE, _BINS = 1 << 16, 256
"""Voxels from which the foreground level is found, and bins of their histogram."""

_AT_END = 1e-3
"""Part of the result's range within which a value counts as one of its ends."""

_ROUNDING = 1e-5
"""Relative difference between equal gradients, at most, by rounding."""


def measure(scan: AnyArray, result: AnyArray, distance: float | None = None) -> Measures | None:
    """Return the measures of a result, or None if they are not defined, as of an image of one value
    or without numbers.

    scan, result: scan and result [D, H, W] on one grid, in any unit. distance: of the scan from the
    model's calibration, as the measures have it.
    """
    with np.errstate(all="ignore"):
        found = _measured(scan, result)
    if not found or not np.isfinite((found.cut_off, found.edges, found.detail)).all():
        return None
    return replace(found, distance=distance)


def _measured(scan: AnyArray, result: AnyArray) -> Measures | None:
    pair = _planes(scan, result)
    low, high = (end(pair, axis=(1, 2, 3), keepdims=True) for end in (np.min, np.max))
    size = high - low
    if not (size > 0).all() or not np.isfinite(size).all():
        return None
    pair -= low
    pair *= 1 / size
    inside = pair[1][pair[0] > _foreground_level(pair[0])]
    inside -= np.float32(0.5)
    at_end = np.count_nonzero(np.abs(inside, out=inside) >= np.float32(0.5 - _AT_END))
    edges = _edges(pair)
    if not (inside.size and edges.size):
        return None
    means, products = _moments(edges)
    squares = np.diag(products)
    if (squares <= edges[0].size * (_ROUNDING * means) ** 2).any():
        return None
    contrasts = np.sqrt(np.diag(_moments(pair)[1]))
    before, after = means / contrasts
    return Measures(
        cut_off=float(at_end / inside.size),
        edges=max(float(products[0, 1] / np.sqrt(squares[0] * squares[1])), 0.0),
        detail=float(after / before),
    )


def _planes(scan: AnyArray, result: AnyArray) -> FloatArray:
    """Return evenly spaced planes of both images, [image, plane, row, column]."""
    axis = memory_order(scan)[0]
    extent = scan.shape[axis]
    most = min(_MOST_PLANES, max(_FEWEST_PLANES, _VOXELS * extent // scan.size))
    count = min(most, extent)
    places = sorted({(2 * at + 1) * extent // (2 * count) for at in range(count)})
    before, after = (np.moveaxis(image, axis, 0)[places] for image in (scan, result))
    pair = np.empty((2, *before.shape), np.float32)
    pair[0], pair[1] = before, after
    return pair


def _foreground_level(scan: FloatArray) -> float:
    """Return the level above which values from 0 to 1 are foreground."""
    every = max(1, round(sqrt(scan.size / _SAMPLE)))
    sample = scan[:, ::every, ::every] * np.float32(_BINS - 1)
    counts = np.bincount(sample.astype(np.uint8).reshape(-1), minlength=_BINS)
    filled = np.flatnonzero(counts)
    first, last = int(filled[0]), int(filled[-1])
    if first == last:  # all is foreground
        return -1.0
    edges = np.arange(first, last + 2, dtype=np.float64) / (_BINS - 1)
    return level_between(counts[first : last + 1], edges)


def _edges(pair: FloatArray) -> FloatArray:
    """Return the size of the gradient within each plane, by differences of next neighbours."""
    corner = pair[..., :-1, :-1]
    down, across = pair[..., 1:, :-1] - corner, pair[..., :-1, 1:] - corner
    np.add(np.square(down, out=down), np.square(across, out=across), out=down)
    return np.sqrt(down, out=down)


def _moments(pair: FloatArray) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Subtract the mean of each of two images in place; return the means, and the sums of the
    products of each with each.
    """
    flat = pair.reshape(2, -1)
    means = flat.mean(axis=1, dtype=np.float64)
    flat -= means[:, np.newaxis].astype(np.float32)
    # Not by the operator @, which holds the interpreter's lock.
    return means, np.dot(flat, flat.T).astype(np.float64)
