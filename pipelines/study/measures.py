"""Cheap measures of every result against its scan, by which suspicious ones are found.

Those of `structure` are taken on a lattice, and the others in a few planes. But for the levels they
do not change if either image is scaled or shifted in value, so that two contrasts can be compared.
They are no quality: each finds one way of going wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from math import log, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...engine.network.layers import FloatArray, triple
from ...io.volume import AnyArray, Volume
from .figures import Measures
from .finish import Canvas
from .geometry import memory_order
from .prepare import Prepared
from .statistics import level_between
from .structure import gradient_sizes, structure

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


_CONSTANT = Measures(cut_off=1.0, edges=0.0, detail=0.0, values=1)
"""Measures of a result of one value: it has the lowest and highest value everywhere."""


def measures_of(prepared: Prepared, volumes: Sequence[Volume], output: Canvas) -> Measures | None:
    """Return the measures of the results of all channels against the first scan.

    volumes: results on the scan's grid, whose stored values are measured; if the network has
    another grid, its intensities in `output` are measured instead.
    """
    plan, scan = prepared.plan, prepared.network_input.values[0]
    spacing = plan.orientation.sorted_spacing(prepared.source.spacing)
    sign = sign_of(prepared.source) if plan.is_input_as_stored else 1
    steps = plan.resampling.steps if plan.resampling else (1.0, 1.0, 1.0)
    edges = triple(edge * step for edge, step in zip(spacing, steps, strict=True))
    each = list[Measures | None]()
    for channel, volume in enumerate(volumes):
        if not plan.is_on_scan:
            result, outward = output.target.values[channel], prepared.fit.outward[channel]
            each.append(measure(scan, result, edges, outward.values, (sign, 1)))
        else:
            stored = plan.orientation.oriented(plan.part(volume).voxels)
            signs = sign, sign_of(volume)
            each.append(measure(scan, stored, edges, partial(values_of, volume), signs))
    found = worst(each)
    levels = tuple(chain.from_iterable(one.levels for one in each if one))
    is_complete = len(levels) == len(volumes)
    return found and replace(found, levels=levels if is_complete else (), spacing=spacing)


def values_of(volume: Volume, stored: AnyArray) -> AnyArray:
    """Return the values of stored ones of a volume."""
    return stored * volume.slope + volume.intercept


def sign_of(volume: Volume) -> Literal[-1, 1]:
    """Return -1 if a volume's values descend as the stored ones ascend."""
    return -1 if volume.slope < 0 else 1


def measure(
    scan: AnyArray,
    result: AnyArray,
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
    unit: Callable[[AnyArray], AnyArray] = np.asarray,
    signs: tuple[int, int] = (1, 1),
) -> Measures | None:
    """Return the measures of a result, or None if they are not defined, as of a scan of one value
    or of images without numbers.

    scan, result: scan and result [D, H, W] on one grid, in any unit. spacing: along D, H and W, in
    millimetres. unit: returns values of the result, which the levels are, from the stored ones.
    signs: of scan and result, by `sign_of`.
    """
    with np.errstate(all="ignore"):
        found = _measured(scan, result, signs)
    if not found or not np.isfinite((found.cut_off, found.edges, found.detail)).all():
        return None
    whole = structure(scan, result, spacing, signs)
    if found is _CONSTANT or whole is None:
        return found
    levels = triple(unit(np.array(whole.levels)).tolist())
    return replace(found, **{**asdict(whole), "levels": (levels,)})


def worst(each: Sequence[Measures | None]) -> Measures | None:
    """Return the worst of each measure over channels or volumes; None if one has no measures.

    Levels, patterns and what belongs to the scan are those of the first.
    """
    known = [one for one in each if one]
    if not known or len(known) < len(each):
        return None
    detail = max((one.detail for one in known), key=lambda value: abs(log(max(value, 1e-6))))
    return replace(
        known[0],
        cut_off=max(one.cut_off for one in known),
        edges=min(one.edges for one in known),
        detail=detail,
        match=min((one.match for one in known if one.match is not None), default=None),
        values=min((one.values for one in known if one.values is not None), default=None),
        **{
            name: max(
                (value for one in known if (value := getattr(one, name)) is not None), default=None
            )
            for name in ("mirrored", "shift", "empty", "breaks", "local")
        },
    )


def _measured(scan: AnyArray, result: AnyArray, signs: tuple[int, int]) -> Measures | None:
    pair = _planes(scan, result)
    pair *= np.array(signs, np.float32).reshape(2, 1, 1, 1)
    low, high = (end(pair, axis=(1, 2, 3), keepdims=True) for end in (np.min, np.max))
    size = high - low
    if not np.isfinite(size).all() or not size[0].item() > 0:
        return None
    if not size[1].item() > 0:
        return _CONSTANT
    pair -= low
    pair *= 1 / size
    inside = pair[1][pair[0] > _foreground_level(pair[0])]
    inside -= np.float32(0.5)
    at_end = np.count_nonzero(np.abs(inside, out=inside) >= np.float32(0.5 - _AT_END))
    edges = gradient_sizes(pair)
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


def _moments(pair: FloatArray) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Subtract the mean of each of two images in place; return the means, and the sums of the
    products of each with each.
    """
    flat = pair.reshape(2, -1)
    means = flat.mean(axis=1, dtype=np.float64)
    flat -= means[:, np.newaxis].astype(np.float32)
    # Not by BLAS, for whose threads a small product waits if other studies use the cores.
    both = [np.einsum("i,i", flat[one], flat[two]) for one, two in ((0, 0), (0, 1), (1, 1))]
    return means, np.array([both[:2], both[1:]], np.float64)
