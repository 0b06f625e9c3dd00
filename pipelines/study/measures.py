"""Cheap measures of every result against its scan, by which a page orders what deserves a look.

They are taken in a few planes, and do not change if either image is scaled or shifted in value, so
that two contrasts can be compared. They are no quality: each finds one way of going wrong.
"""

from dataclasses import replace

import numpy as np

from ...engine.network.layers import FloatArray
from ...io.volume import AnyArray
from .figures import Measures
from .geometry import memory_order
from .statistics import foreground_level

_VOXELS = 1 << 20
"""Voxels that are looked at in each image, unless a plane has more; some 20 ms."""

_FEWEST_PLANES, _MOST_PLANES = 3, 24
_AT_END = 1e-3
"""Part of the result's range within which a value counts as one of its ends."""


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
    images = before, after
    if not all(np.isfinite(image).all() and np.ptp(image) > 0 for image in images):
        return None
    inside = before > foreground_level(before)
    if not inside.any():
        return None
    low, high = float(after.min()), float(after.max())
    at_end = (after <= low + _AT_END * (high - low)) | (after >= high - _AT_END * (high - low))
    edges = [_edges(image) for image in images]
    if not all(each.size and np.ptp(each) > 0 for each in edges):
        return None
    return Measures(
        cut_off=float(at_end[inside].mean()),
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
    down = np.diff(image, axis=1)[:, :, :-1]
    across = np.diff(image, axis=2)[:, :-1, :]
    return np.hypot(down, across)


def _correlation(one: FloatArray, other: FloatArray) -> float:
    first, second = (each - each.mean(dtype=np.float64) for each in (one, other))
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def _roughness(edges: FloatArray, image: FloatArray) -> float:
    """Return the mean size of the gradient by the contrast of the image."""
    return float(edges.mean(dtype=np.float64) / image.std(dtype=np.float64))
