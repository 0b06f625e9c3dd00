"""Cheap measures of every result against its scan, by which a page orders what deserves a look.

They are taken in a few planes, and do not change if either image is scaled or shifted in value, so
that two contrasts can be compared. They are no quality: each finds one way of going wrong.
"""

from dataclasses import replace
from math import sqrt

import numpy as np

from ...engine.network.layers import FloatArray
from ...io.volume import AnyArray
from .figures import Measures
from .geometry import memory_order
from .statistics import foreground_level

_VOXELS = 1 << 18
"""Voxels that are looked at in each image, unless three planes have more; some 5 ms.

Each step on an array waits for the interpreter's lock, and takes new memory: in a batch of sixteen
cores, the same steps plane by plane, on four times as many voxels, held four threads up for 100 ms.
"""

_FEWEST_PLANES, _MOST_PLANES = 3, 24
_SAMPLE = 1 << 16
"""Voxels from which the foreground level is found."""

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
    before, after = _planes(scan, result)
    ranges = [(float(image.min()), float(image.max())) for image in (before, after)]
    if not all(0 < high - low < np.finfo(np.float32).max for low, high in ranges):
        return None
    for image, (low, high) in zip((before, after), ranges, strict=True):
        np.subtract(image, np.float32(low), out=image)
        np.multiply(image, np.float32(1 / (high - low)), out=image)
    every = max(1, round(sqrt(before.size / _SAMPLE)))
    inside = before > foreground_level(before[:, ::every, ::every])
    if not inside.any():
        return None
    in_foreground = after[inside]
    at_end = (in_foreground <= _AT_END) | (in_foreground >= 1 - _AT_END)
    edges = [_edges(image) for image in (before, after)]
    if not all(each.size and np.ptp(each) > _ROUNDING * each.max() for each in edges):
        return None
    return Measures(
        cut_off=float(at_end.mean()),
        edges=max(_correlation(*edges), 0.0),
        detail=_roughness(edges[1], after) / _roughness(edges[0], before),
    )


def _planes(scan: AnyArray, result: AnyArray) -> tuple[FloatArray, FloatArray]:
    """Return evenly spaced planes of both images, [plane, row, column]."""
    axis = memory_order(scan)[0]
    extent = scan.shape[axis]
    most = min(_MOST_PLANES, max(_FEWEST_PLANES, _VOXELS * extent // scan.size))
    count = min(most, extent)
    places = sorted({(2 * at + 1) * extent // (2 * count) for at in range(count)})
    before, after = (
        np.moveaxis(image, axis, 0)[places].astype(np.float32) for image in (scan, result)
    )
    return before, after


def _edges(image: FloatArray) -> FloatArray:
    """Return the size of the gradient within each plane, by differences of next neighbours."""
    corner = image[:, :-1, :-1]
    down, across = image[:, 1:, :-1] - corner, image[:, :-1, 1:] - corner
    np.add(np.square(down, out=down), np.square(across, out=across), out=down)
    return np.sqrt(down, out=down)


def _correlation(one: FloatArray, other: FloatArray) -> float:
    first, second = one - one.mean(), other - other.mean()
    product = first * second
    squares = [np.square(each, out=each).sum(dtype=np.float64) for each in (first, second)]
    return float(product.sum(dtype=np.float64) / sqrt(squares[0] * squares[1]))


def _roughness(edges: FloatArray, image: FloatArray) -> float:
    """Return the mean size of the gradient by the contrast of the image."""
    return float(edges.mean(dtype=np.float64) / image.std(dtype=np.float64))
