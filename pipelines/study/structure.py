"""Measures of a whole result against its scan, on a lattice of voxels through both.

They find what a few planes do not show: a result that is mirrored or moved, lacks slices or parts,
breaks from one slice to the next, has other levels, or repeats that of another scan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...engine.network.layers import FloatArray, triple
from ...io.volume import AnyArray
from .figures import Levels
from .geometry import memory_order
from .statistics import level_between

Bins: TypeAlias = npt.NDArray[np.intp]
"""Values in steps, in the type by which arrays are indexed: counting does not convert it."""
Sums: TypeAlias = npt.NDArray[np.float64]
"""Values in the type in which they are summed."""

_VOXELS = 1 << 16
"""Voxels of the lattice in each image, about."""

_BINS = 256
"""Bins of a histogram, and steps of values that differ."""

_BLOCK = 5
"""Voxels of the lattice along each side of a block within a slice."""

_PRESENT, _EMPTY = 0.25, 0.05
"""Mean edges of a block or slice of the scan that has structure, at least, by their median; and of
a block of the result that lacks it, at most, by the median of those that have it.
"""

_TRIED = 6.0
"""Millimetres, about, by which a result is moved to find its shift."""

_TOP = 0.95
"""Quantile of the highest level."""

_PATTERN_SIDE = 8, 4, 4
"""Places along each axis at which the sign of a step is a bit of a pattern."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Structure of a result against its scan, in fields of `Measures`.

    match: explained share of the variance. mirrored: gain by a mirror image. shift: in millimetres.
    empty: share of parts. breaks: between slices. values: number. local: largest deviation of a
    part. levels: in the stored unit. patterns: of scan and result.
    """

    match: float
    mirrored: float
    shift: float
    empty: float
    breaks: float
    values: int
    local: float
    levels: Levels
    patterns: tuple[str, str]

    @property
    def figures(self) -> tuple[float, ...]:
        """All numbers."""
        numbers = self.match, self.mirrored, self.shift, self.empty, self.breaks, self.local
        return *numbers, *self.levels


def structure(
    scan: AnyArray,
    result: AnyArray,
    spacing: tuple[float, float, float],
    signs: tuple[int, int] = (1, 1),
) -> Structure | None:
    """Return the structure of a result, or None if an image has one value or is not finite, or the
    scan has no edges on the lattice.

    scan, result: [D, H, W] on one grid, in any unit. spacing: along D, H and W, in millimetres.
    signs: -1 for an image whose values descend as the stored ones ascend. The levels are as the
    result is stored.
    """
    with np.errstate(all="ignore"):
        found = _structure(scan, result, spacing, signs)
    return found if found and np.isfinite(found.figures).all() else None


def _structure(
    scan: AnyArray,
    result: AnyArray,
    spacing: tuple[float, float, float],
    signs: tuple[int, int],
) -> Structure | None:
    order = memory_order(scan)
    pair, every = _lattice(scan.transpose(order), result.transpose(order))
    pair *= np.array(signs, np.float32).reshape(2, 1, 1, 1)
    low = pair.min(axis=(1, 2, 3), keepdims=True)
    size = pair.max(axis=(1, 2, 3), keepdims=True) - low
    if not (size > 0).all() or not np.isfinite(size).all() or min(pair.shape[1:]) < 2:
        return None
    pair -= low
    pair *= 1 / size
    edges = gradient_sizes(pair)
    if not edges.any(axis=(1, 2, 3)).all():
        return None
    bins = np.minimum(pair * np.float32(_BINS), np.float32(_BINS - 1)).astype(np.intp)
    result = pair[1].astype(np.float64)
    steps = [spacing[axis] * step for axis, step in zip(order, (1, every, every), strict=True)]
    levels, values = _levels(bins)
    images = result, result[::-1], result[:, ::-1], result[:, :, ::-1]
    match, *mirrored = _matches(bins[0], images)
    return Structure(
        match=match,
        mirrored=max(mirrored) - match,
        shift=_shift(bins[0], result, steps),
        empty=_empty(edges),
        breaks=_breaks(edges),
        values=values,
        local=_local(bins[0], result),
        levels=triple(signs[1] * float(low[1].item() + size[1].item() * level) for level in levels),
        patterns=(_pattern(pair[0]), _pattern(pair[1])),
    )


def _lattice(scan: AnyArray, result: AnyArray) -> tuple[FloatArray, int]:
    """Return all slices of both images [image, slice, row, column], with every n-th row and column,
    which lie symmetrically, and n.
    """
    slices, rows, columns = scan.shape
    every = max(1, min(ceil(sqrt(slices * rows * columns / _VOXELS)), min(rows, columns) // 2))
    places = tuple(slice((extent - 1) % every // 2, None, every) for extent in (rows, columns))
    before, after = (image[:, places[0], places[1]] for image in (scan, result))
    pair = np.empty((2, *before.shape), np.float32)
    pair[0], pair[1] = before, after
    return pair, every


def gradient_sizes(pair: FloatArray) -> FloatArray:
    """Return the size of the gradient within each plane, by differences of next neighbours."""
    corner = pair[..., :-1, :-1]
    down, across = pair[..., 1:, :-1] - corner, pair[..., :-1, 1:] - corner
    np.add(np.square(down, out=down), np.square(across, out=across), out=down)
    return np.sqrt(down, out=down)


def _matches(bins: Bins, results: Sequence[Sums]) -> list[float]:
    """Return the correlation ratio of each result given the scan's value.

    Source: Roche et al., "The correlation ratio as a new similarity measure for multimodal image
    registration", MICCAI 1998.
    """
    chosen = bins.reshape(-1)
    counts = np.bincount(chosen, minlength=_BINS)
    present = np.maximum(counts, 1)
    found = list[float]()
    for result in results:
        values = result.reshape(-1)
        sums = np.bincount(chosen, values, _BINS)
        mean = sums.sum() / values.size
        between = ((sums - counts * mean) ** 2 / present).sum()
        squares = np.einsum("i,i", values, values)  # np.dot would wait for BLAS's threads
        found.append(float(between / (squares - values.size * mean**2)))
    return found


def _local(bins: Bins, result: Sums) -> float:
    """Return the largest mean deviation in a block from the mean at the scan's values, in shares of
    the result's range.
    """
    counts = np.bincount(bins.reshape(-1), minlength=_BINS)
    means = np.bincount(bins.reshape(-1), result.reshape(-1), _BINS) / np.maximum(counts, 1)
    apart = result - means[bins]
    blocks = [max(1, extent // _BLOCK) for extent in apart.shape]
    sizes = [extent // count for extent, count in zip(apart.shape, blocks, strict=True)]
    whole = apart[tuple(slice(size * count) for size, count in zip(sizes, blocks, strict=True))]
    split = whole.reshape(blocks[0], sizes[0], blocks[1], sizes[1], blocks[2], sizes[2])
    return float(np.abs(split.mean(axis=(1, 3, 5))).max())


def _shift(bins: Bins, result: Sums, steps: Sequence[float]) -> float:
    """Return the largest shift along an axis in millimetres, at most twice the step that is tried:
    the match falls as fast on both sides of its top, so this lies where two lines meet through the
    matches one step back, unmoved, and one step on.

    All three are of the same part of the scan: a body that reaches beyond the field of view fits
    worse at that end, and would seem to be moved if each match omitted another end.
    """
    largest = 0.0
    for axis, step in enumerate(steps):
        extent = result.shape[axis]
        moved = min(max(1, round(_TRIED / step)), (extent - 1) // 3)
        if not moved:
            continue

        def part(at: int, axis: int = axis, inner: int = extent - 2 * moved) -> tuple[slice, ...]:
            return (slice(None),) * axis + (slice(at, at + inner),)

        placed = [result[part(at)] for at in (0, moved, 2 * moved)]
        back, own, on = _matches(bins[part(moved)], placed)
        fall = own - min(back, on)
        share = min(abs(back - on) / (2 * fall), 2.0) if fall > 0 else 2.0
        largest = max(largest, share * moved * step)
    return largest


def _empty(edges: FloatArray) -> float:
    """Return the share of blocks with edges in the scan that have none in the result."""
    rows, columns = (max(1, extent // _BLOCK) for extent in edges.shape[2:])
    high, wide = edges.shape[2] // rows, edges.shape[3] // columns
    whole = edges[:, :, : rows * high, : columns * wide]
    blocks = whole.reshape(2, edges.shape[1], rows, high, columns, wide).mean(axis=(3, 5))
    scan, result = blocks[:, _has_structure(blocks[0])]
    if not scan.size:
        return 0.0
    ratio = result / scan
    return float((ratio <= _EMPTY * _median(ratio)).mean())


def _has_structure(amounts: FloatArray) -> npt.NDArray[np.bool_]:
    """Return which amounts of edges are structure: not those of air with a little noise."""
    filled: FloatArray = amounts[amounts > 0.1 * amounts.max()]
    return amounts > (_PRESENT * _median(filled) if filled.size else 0.0)


def _breaks(edges: FloatArray) -> float:
    """Return the largest difference of the edges' correlation in a slice from its neighbours."""
    flat = edges.reshape(2, edges.shape[1], -1)
    scan, result = flat[:, _has_structure(flat[0].mean(axis=1))]
    scan, result = (each - each.mean(axis=1, keepdims=True) for each in (scan, result))
    products = np.einsum("ij,ij->i", scan, result)
    sizes = np.linalg.norm(scan, axis=1) * np.linalg.norm(result, axis=1)
    each = np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)
    return float(np.abs(each[1:-1] - (each[:-2] + each[2:]) / 2).max(initial=0.0))


def _levels(bins: Bins) -> tuple[tuple[float, ...], int]:
    """Return medians of the result outside and inside the scan's foreground, and the highest level
    but for outliers, in shares of the result's range; and the number of bins that it fills inside.
    """
    scan = np.bincount(bins[0].reshape(-1), minlength=_BINS)
    filled = np.flatnonzero(scan)
    first, last = int(filled[0]), int(filled[-1])
    ends = np.arange(first, last + 2, dtype=np.float64)
    inside: npt.NDArray[np.bool_] = bins[0] >= level_between(scan[first : last + 1], ends)
    body: npt.NDArray[Any] = np.bincount(bins[1][inside], minlength=_BINS)
    air: npt.NDArray[Any] = np.bincount(bins[1].reshape(-1), minlength=_BINS) - body
    asked = (air if air.any() else body, 0.5), (body, 0.5), (body, _TOP)
    return tuple(_quantile(*each) for each in asked), int(np.count_nonzero(body))


def _median(values: npt.NDArray[Any]) -> float:
    """Return the median of an array; NumPy's own would load its masked arrays."""
    ordered = np.sort(values, axis=None)
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2


def _quantile(counts: npt.NDArray[Any], share: float) -> float:
    """Return a quantile of a histogram over bins of 0 to 1; the lowest bin counts as 0."""
    sums: npt.NDArray[np.int64] = np.cumsum(counts)
    below: npt.NDArray[np.bool_] = sums < share * sums[-1]
    return sum(below.tolist()) / (_BINS - 1)


def _pattern(image: FloatArray) -> str:
    """Return the signs of steps at places in the middle of an image, as hexadecimal digits.

    Images of other patients differ in many of them, and repetitions in few, whatever their scale.
    """
    extents = image.shape
    places = [
        ((0.2 + 0.6 * (np.arange(count) + 0.5) / count) * extent).astype(np.intp)
        for count, extent in zip(_PATTERN_SIDE, extents, strict=True)
    ]
    there = image[np.ix_(*places)]
    moved = [
        np.minimum(place + max(1, extent // 12), extent - 1)
        for place, extent in zip(places, extents, strict=True)
    ]
    bits = there > image[np.ix_(*moved)]
    return np.packbits(bits.reshape(-1)).tobytes().hex()
