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
    every = max(1, round(sqrt(before.size / _SAMPLE)))
    inside = after[before > foreground_level(before[:, ::every, ::every])]
    if not inside.size:
        return None
    low, high = ranges[1]
    inside -= np.float32((low + high) / 2)
    at_end = np.count_nonzero(np.abs(inside, out=inside) >= (0.5 - _AT_END) * (high - low))
    (edges, mean), (other_edges, other_mean) = map(_centred, map(_edges, (before, after)))
    spreads = _products(edges, edges), _products(other_edges, other_edges)
    if not all(
        spread > (_ROUNDING * size) ** 2 * edges.size
        for spread, size in zip(spreads, (mean, other_mean), strict=True)
    ):
        return None
    contrasts = [sqrt(_products(image, image)) for image, _ in map(_centred, (before, after))]
    return Measures(
        cut_off=float(at_end / inside.size),
        edges=max(_products(edges, other_edges) / sqrt(spreads[0] * spreads[1]), 0.0),
        detail=(other_mean / contrasts[1]) / (mean / contrasts[0]),
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


def _centred(values: FloatArray) -> tuple[FloatArray, float]:
    """Subtract the mean in place; return both."""
    mean = values.mean(dtype=np.float64) if values.size else np.float64(0)
    values -= np.float32(mean)
    return values, float(mean)


def _products(one: FloatArray, other: FloatArray) -> float:
    """Return the sum of the products of two images."""
    return float(np.vdot(one, other))
