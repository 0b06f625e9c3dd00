"""Positions and weights of patches along one axis, as the codes compute them that models come from.

`CODES` is the table: for each code where patches lie, how many voxels neighbours nominally share,
and the Gaussian. What a GPU computes follows from it, as it takes origins, intervals and weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from typing import TypeAlias

import numpy as np

from ...engine.model.tiling import Shares, TilingCode
from ...engine.network.layers import FloatArray, Triple
from ...engine.options import Blend
from ...engine.patch_grid import VoxelSpan

Origins: TypeAlias = tuple[int, ...]
Gaussian: TypeAlias = Callable[[Triple, Shares], FloatArray]


@dataclass(frozen=True, slots=True)
class Code:
    """Rules of one code.

    origins: from the last origin that fits, the patch's extent, the overlap as a share of it and
    the network's stride to all origins, ascending from 0. shared: from extent and share to the
    voxels that neighbours nominally share. gaussian: weights of a patch [D, H, W].
    """

    origins: Callable[[int, int, float, int], Origins]
    shared: Callable[[int, float], int]
    gaussian: Gaussian


def _interval(patch: int, overlap: float) -> int:
    return max(int(patch * (1 - overlap)), 1)


def _even(last: int, patch: int, overlap: float, stride: int) -> Origins:
    """Fewest positions that the overlap requires, evenly spread; multiples of the stride where that
    costs no patch.
    """
    interval = _interval(patch, overlap)
    gaps = _ceil_div(last, interval)
    aligned = interval // stride * stride
    if not aligned or _ceil_div(last, aligned) > gaps:
        stride = 1
    return (*(_ceil_div(i * last, gaps * stride) * stride for i in range(gaps)), last)


def _monai(last: int, patch: int, overlap: float, _stride: int) -> Origins:
    """Multiples of the interval, the last patch flush with the end (dense_patch_slices)."""
    return _flush(last, _interval(patch, overlap))


def _torchio(last: int, patch: int, overlap: float, _stride: int) -> Origins:
    """Positions as MONAI's, with an even number of shared voxels (GridSampler)."""
    return _flush(last, patch - _even_shared(patch, overlap))


def _nnunet(last: int, patch: int, overlap: float, _stride: int) -> Origins:
    """Evenly spread and rounded (compute_steps_for_sliding_window); those that coincide, at less
    than a voxel apart, count once.
    """
    gaps = ceil(last / (patch * (1 - overlap)))
    rounded = (round(last / gaps * at) for at in range(gaps + 1)) if gaps else (0,)
    return tuple(dict.fromkeys(rounded))


def _flush(last: int, interval: int) -> Origins:
    return (*range(0, last, interval), last)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _shared(patch: int, overlap: float) -> int:
    return patch - _interval(patch, overlap)


def _even_shared(patch: int, overlap: float) -> int:
    return min(2 * int(patch * overlap / 2 + _ROUNDING), (patch - 1) // 2 * 2)


_ROUNDING = 1e-6
"""Voxels by which a share of an edge may miss a whole number."""

_LOWEST = 1e-3
"""Floor of the Gaussian, whose peak is 1; without it a patch's corners would count nothing."""


def _monai_gaussian(patch: Triple, sigma: Shares) -> FloatArray:
    """Return MONAI's importance map (compute_importance_map)."""
    weights = outer([_bell(*both) for both in zip(patch, sigma, strict=True)])
    return np.maximum(weights, max(float(weights.min()), _LOWEST), dtype=np.float32)


def _bell(edge: int, sigma: float) -> FloatArray:
    offset = np.arange(edge, dtype=np.float32) - np.float32((edge - 1) / 2)
    return np.exp(offset**2 / np.float32(-2 * (sigma * edge) ** 2))


def _nnunet_gaussian(patch: Triple, sigma: Shares) -> FloatArray:
    """Return nnU-Net's weights (compute_gaussian): cut off at 4 sigma, in half precision."""
    rows = list[FloatArray]()
    for edge, share in zip(patch, sigma, strict=True):
        away = np.arange(edge, dtype=np.float64) - edge // 2
        row = np.exp(-0.5 * (away / (share * edge)) ** 2)
        rows.append(np.where(abs(away) <= int(4 * share * edge + 0.5), row, 0))
    halves = (10 * outer(rows)).astype(np.float16).astype(np.float32)
    return np.where(halves == 0, halves[halves > 0].min(), halves)


CODES: dict[TilingCode, Code] = {
    "even": Code(_even, _shared, _monai_gaussian),
    "monai": Code(_monai, _shared, _monai_gaussian),
    "torchio": Code(_torchio, _even_shared, _monai_gaussian),
    "nnunet": Code(_nnunet, _shared, _nnunet_gaussian),
}


def window(
    code: TilingCode, blend: Blend, patch: Triple, steps: Triple, sigma: Shares
) -> FloatArray:
    """Return the weight of each voxel of a patch [D, H, W], positive and not normalised.

    steps: largest distance of neighbours along each axis.
    """
    match blend:
        case "gaussian":
            return CODES[code].gaussian(patch, sigma)
        case "linear":
            return outer([_ramps(*both) for both in zip(patch, steps, strict=True)])
        case "hann":
            return outer([_hann(edge) for edge in patch])
        case "constant" | "crop":
            return np.ones(patch, np.float32)


def _ramps(edge: int, step: int) -> FloatArray:
    """Return weights such that ramps of neighbours that are `step` voxels apart add up to 1."""
    shared = edge - step
    from_border = np.minimum(np.arange(edge), np.arange(edge)[::-1]) + 1
    return np.minimum(from_border / (shared + 1), 1).astype(np.float32)


def _hann(edge: int) -> FloatArray:
    """Return a Hann window without its zeros (TorchIO's GridAggregator)."""
    at = np.arange(1, edge + 1)
    return (0.5 - 0.5 * np.cos(2 * np.pi * at / (edge + 1))).astype(np.float32)


def outer(axes: Sequence[FloatArray]) -> FloatArray:
    """Return the product of weights along each axis."""
    return reduce(np.multiply.outer, axes)


def cropped(
    origins: Origins, padded: int, patch: int, shared: int, *, border: bool
) -> tuple[VoxelSpan, ...]:
    """Return the part of each patch along an axis that is in the result if patches are cropped.

    Half the shared voxels are cut off, except at the ends of a volume that was not padded for it;
    where patches still overlap, the later one is kept (GridAggregator).
    """
    half = shared // 2
    starts = [at + half if at or border else 0 for at in origins]
    last = origins[-1] + patch
    ends = [*starts[1:], last - half if last != padded or border else last]
    intervals = zip(origins, starts, ends, strict=True)
    return tuple((start - at, end - at) for at, start, end in intervals)
