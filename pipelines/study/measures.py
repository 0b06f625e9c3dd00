"""Cheap measures of every result against its scan, by which a page orders what deserves a look.

They are taken in a few planes, and do not change if either image is scaled or shifted in value, so
that two contrasts can be compared. They are no quality: each finds one way of going wrong.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import numpy.typing as npt

from ...engine.network.layers import FloatArray
from ...io.volume import AnyArray
from .figures import Measures
from .geometry import memory_order
from .statistics import foreground_level

_VOXELS = 1 << 20
"""Voxels that are looked at in each image, unless a plane has more; some 10 ms."""

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
    """Return the measures, summed plane by plane in the same few arrays.

    New arrays would be new pages of memory for each step, for which the threads of a batch wait for
    each other: ten times as long as the steps themselves take.
    """
    before, after = planes = _planes(scan, result)
    ranges = [_range(image) for image in planes]
    if not all(0 < high - low < np.finfo(np.float32).max for low, high in ranges):
        return None
    level = _foreground_level(before, *ranges[0])
    scratch = _Scratch(before[0].shape)
    one, other = scratch.pair
    values, edges = _PairSums(), _PairSums()
    inside = at_end = 0
    for plane, translated in zip(before, after, strict=True):
        _scale(plane, *ranges[0], one)
        _scale(translated, *ranges[1], other)
        values.add(one, other, scratch.product)
        is_inside, is_low, is_high = scratch.masks
        np.greater(one, level, out=is_inside)
        np.less_equal(other, _AT_END, out=is_low)
        np.greater_equal(other, 1 - _AT_END, out=is_high)
        np.logical_or(is_low, is_high, out=is_low)
        inside += int(np.count_nonzero(is_inside))
        at_end += int(np.count_nonzero(np.logical_and(is_inside, is_low, out=is_low)))
        for image, gradient in zip((one, other), scratch.edges, strict=True):
            _edges(image, gradient, scratch.inner)
        edges.add(*scratch.edges, scratch.inner)
    if not inside or edges.is_flat:
        return None
    rough = edges.means / values.deviations
    return Measures(
        cut_off=at_end / inside,
        edges=max(edges.correlation, 0.0),
        detail=float(rough[1] / rough[0]),
    )


class _Scratch:
    """Arrays for the planes of both images, and for intermediate results.

    edges, inner: a row and a column smaller.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        inner = tuple(max(extent - 1, 0) for extent in shape)
        self.pair = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.product = np.empty(shape, np.float32)
        self.edges = np.empty(inner, np.float32), np.empty(inner, np.float32)
        self.inner = np.empty(inner, np.float32)
        self.masks = [np.empty(shape, np.bool_) for _ in range(3)]


def _planes(scan: AnyArray, result: AnyArray) -> tuple[list[AnyArray], list[AnyArray]]:
    """Return evenly spaced planes of both images, of which no copies are made."""
    axis = memory_order(scan)[0]
    extent = scan.shape[axis]
    most = min(_MOST_PLANES, max(_FEWEST_PLANES, _VOXELS * extent // scan.size))
    count = min(most, extent)
    places = sorted({(2 * at + 1) * extent // (2 * count) for at in range(count)})
    before, after = (np.moveaxis(image, axis, 0) for image in (scan, result))
    return [before[place] for place in places], [after[place] for place in places]


def _range(planes: Sequence[AnyArray]) -> tuple[float, float]:
    """Return the lowest and the highest value; both NaN if one value is."""
    ends = [(plane.min(), plane.max()) for plane in planes]
    lows, highs = np.array(ends, np.float64).T
    return float(lows.min()), float(highs.max())


def _foreground_level(planes: Sequence[AnyArray], low: float, high: float) -> float:
    """Return the level of the foreground in a sample of the planes, with their range as 0..1."""
    every = max(1, round(sqrt(len(planes) * planes[0].size / _SAMPLE)))
    sample = np.stack([plane[::every, ::every] for plane in planes])
    return (foreground_level(sample) - low) / (high - low)


def _scale(plane: AnyArray, low: float, high: float, out: FloatArray) -> None:
    """Map an image's range to 0..1."""
    np.subtract(plane, np.float32(low), out=out, casting="unsafe")
    np.multiply(out, np.float32(1 / (high - low)), out=out)


def _edges(plane: FloatArray, out: FloatArray, scratch: FloatArray) -> None:
    """Compute the size of the gradient, by differences of next neighbours."""
    corner = plane[:-1, :-1]
    np.square(np.subtract(plane[1:, :-1], corner, out=out), out=out)
    np.square(np.subtract(plane[:-1, 1:], corner, out=scratch), out=scratch)
    np.sqrt(np.add(out, scratch, out=out), out=out)


class _PairSums:
    """Sums over two images, part by part, from which their statistics follow."""

    def __init__(self) -> None:
        self._count = 0
        self._sums, self._products = np.zeros(2), np.zeros((2, 2))
        self._low, self._high = np.full(2, np.inf), np.full(2, -np.inf)

    def add(self, one: FloatArray, other: FloatArray, scratch: FloatArray) -> None:
        """Add a part of both; scratch: an array of the same shape."""
        pair = one, other
        self._count += one.size
        self._sums += [part.sum() for part in pair]
        mixed = np.multiply(one, other, out=scratch).sum()
        squares = [np.square(part, out=scratch).sum() for part in pair]
        self._products += [[squares[0], mixed], [mixed, squares[1]]]
        if one.size:
            self._low = np.minimum(self._low, [part.min() for part in pair])
            self._high = np.maximum(self._high, [part.max() for part in pair])

    @property
    def is_flat(self) -> bool:
        """Whether one of them has one value throughout, but for rounding, or none."""
        return not (self._low < (1 - _ROUNDING) * self._high).all()

    @property
    def means(self) -> npt.NDArray[np.float64]:
        """Mean of each."""
        return self._sums / self._count

    @property
    def deviations(self) -> npt.NDArray[np.float64]:
        """Standard deviation of each."""
        return np.sqrt(np.diag(self._covariance))

    @property
    def correlation(self) -> float:
        """Pearson's correlation."""
        covariance = self._covariance
        return float(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]))

    @property
    def _covariance(self) -> npt.NDArray[np.float64]:
        return self._products / self._count - np.outer(self.means, self.means)
