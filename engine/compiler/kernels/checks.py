"""Checks of a convolution: test inputs that expose errors, sampled voxels, error bounds, and the
launches of check.cu that fill inputs and compute fingerprints and errors.
"""

from ctypes import Structure
from dataclasses import dataclass, replace
from itertools import product
from math import prod, sqrt
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...network.layers import FloatArray
from ...options import Precision
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import ConvShape
from ..tensors import Tensor
from .convolutions import convolution_geometry
from .launch import BLOCK, WARP, Launch

RUNS = 96
"""Check runs of each candidate. A tactic that is wrong in one of 20 of its runs passes these and
those of its verdict in 6 of 1,000 trials; more runs would add more to a first start of slow fp32
tactics than the rest of their check.
"""

FillKind: TypeAlias = Literal["noise", "signs", "paired", "opposed", "uneven"]
"""Distribution of generated numbers; `enum Numbers` of check.cu. Uneven ones are 0 or 1, whose
share is drawn per cell of a patch.
"""

_VARIANCE = 400
"""Variance of sums: 12 times their deviation is exact in bf16 too, which represents whole numbers
up to 256 exactly.
"""

_UNLIKE = 2
_CELL = 4, 8, 128
"""Voxels along D, H and W of a cell of uneven numbers: about the part whose moments one block of a
kernel computes, so that a cell that is left out or counted twice shows in mean or variance.
"""
_HIGHEST_SQUARED = 83  # of paired numbers, on average


@dataclass(frozen=True, slots=True)
class Filling:
    """Filling of a tensor. kind: distribution of its numbers.

    density: share that is not 0. fraction: with digits below 2^-11.
    """

    kind: FillKind
    density: float = 1.0
    fraction: bool = False


@dataclass(frozen=True, slots=True)
class NumberSet:
    """Inputs of one trial. name: in words. source, weight: how each is filled."""

    name: str
    source: Filling
    weight: Filling


NOISE = NumberSet("usual numbers", Filling("noise"), Filling("noise"))


def depth_of_sum(shape: ConvShape) -> int:
    """Most products that are summed for an element of the result."""
    return prod(shape.kernel) * shape.summed_channels


def exposing_sets(shape: ConvShape) -> tuple[NumberSet, ...]:
    """Return sets of whole numbers for which every order of summation has the same, exact result.

    Signs: each tap of each channel counts, at every border and in every patch, in a sum near 0.
    Cancellation: half of the channels sum up to hundreds of times what is left once the others have
    taken it away again; an odd number of channels has no halves. For split fp16, the low parts have
    signs, too: those of the source, then those of the weight.
    """
    source = Filling("signs", 0.75)
    weight = sparse_signs(shape, source)
    signs = [NumberSet("signs", source, weight)]
    if shape.split_fp16:
        source, weight = (Filling("signs", one.density, fraction=True) for one in (source, weight))
        signs = [
            NumberSet("low parts of the source", source, signs[0].weight),
            NumberSet("low parts of the weight", signs[0].source, weight),
        ]
    if shape.summed_channels % 2:
        return tuple(signs)
    few = min(0.75, 2 * _VARIANCE / (_HIGHEST_SQUARED * depth_of_sum(shape)))
    return (
        *signs,
        NumberSet("cancellation", Filling("paired"), Filling("opposed", few)),
    )


def unlike_patches(shape: ConvShape) -> ConvShape:
    """Return the convolution of only the patches that differ: a third one repeats the first.

    That saves most of the reference convolution; the usual test inputs differ in all patches.
    """
    return replace(shape, batch=min(shape.batch, _UNLIKE))


def sparse_signs(shape: ConvShape, source: Filling) -> Filling:
    """Return signs for a weight, so sparse that their sums with those of a source are exact."""
    few = _VARIANCE / (source.density * depth_of_sum(shape))
    return Filling("signs", min(source.density, few))


def host_signs(count: int, density: float, seed: int) -> FloatArray:
    """Return signs for data that is not filled on the GPU."""
    random = np.random.default_rng(seed)
    signs = random.integers(0, 2, count, np.int8) * np.int8(2) - np.int8(1)
    signs *= random.random(count, np.float32) < density
    return signs.astype(np.float32)


def whole_numbers(patches: int, channels: int) -> FloatArray:
    """Return factors 1 and -1 and summands from -1 to 1, [2, patches, channels], in turns.

    With signs they result in whole numbers of about the signs' variance.
    """
    numbers = np.arange(patches * channels).reshape(patches, channels)
    return np.stack([1 - 2 * (numbers // 3 % 2), numbers % 3 - 1]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of the error of a sum y of products x w.

    It is of_result |y| + of_products sum |x w| + smallest. of_result: a share of y. of_products: a
    share of the products' magnitudes. smallest: where both are tiny.
    """

    of_result: float
    of_products: float
    smallest: float


_STORED: dict[Precision, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0**-24}
_TRUNCATED_TF32, _OMITTED_LOW_PARTS = 2.0**-10, 2.0**-22
_FLOAT = 2.0**-24
_CERTAINTY, _DRIFT = 8.0, 1 / 8


def rounding_bound(shape: ConvShape) -> Bound:
    """Return the bound of rounding errors of a sum of n products in this precision.

        |y' - y| <= (u_out + 2 u_in) |y|
                    + (2 u_in c / sqrt(n) + (c sqrt(n) + n / 8) 2^-24) sum |x w| + smallest

    u_out: half a last place of the result. u_in: by how much the inputs are off when they are
    multiplied; 0 except for TF32, whose truncation leaves 2^-10, and for split fp16, whose omitted
    products are 2^-22. The sum is accumulated in float. Instead of N. Higham's gamma_n = n u / (1 -
    n u) ("Accuracy and Stability of Numerical Algorithms", 2002, section 3.1), which no long sum
    approaches, the bound uses the probabilistic form c sqrt(n) u, which one in exp(c^2 / 2) / 2
    sums exceeds, with c = 8 one in 4e13 (N. Higham and T. Mary, "A new approach to probabilistic
    rounding error analysis", 2019). Errors of the inputs average out alike; if all are truncated
    towards zero, the remainder is a share of y. Tensor Cores truncate their sum, too (M. Fasi et
    al., "Numerical behavior of NVIDIA tensor cores", 2021), once in some 8 products; that drifts,
    hence n / 8. tests/benchmarks/results/checked_plans.json shows how close correct tactics come to
    the bound on a GPU.
    """
    n = depth_of_sum(shape)
    stored = _STORED.get(shape.precision, _FLOAT)
    inputs = _TRUNCATED_TF32 if shape.precision == "tf32" else 0.0
    if shape.split_fp16:
        inputs = _OMITTED_LOW_PARTS
    sums = (_CERTAINTY * sqrt(n) + _DRIFT * n) * _FLOAT
    smallest = 2.0**-25 if shape.precision == "fp16" else 1e-30
    return Bound(
        of_result=stored + 2 * inputs,
        of_products=2 * inputs * min(1.0, _CERTAINTY / sqrt(n)) + sums,
        smallest=smallest,
    )


_MOST_SAMPLES, _MOST_SUMS = 1024, 1 << 18
_BORDERS = 5**3
"""Most voxels of a patch that are sampled for its borders."""

_TILE = 64
"""Voxels of which the tiles of kernels are whole multiples."""


def most_samples(shape: ConvShape) -> int:
    """Return the most voxels that `sampled_voxels` may choose."""
    most = _samples(shape)
    return max(most, 2 * _BORDERS + most // 4 + 1)


def _samples(shape: ConvShape) -> int:
    return max(64, min(_MOST_SAMPLES, _MOST_SUMS // shape.target_channels))


def sampled_voxels(shape: ConvShape) -> npt.NDArray[np.int64]:
    """Return voxels of the result, counted through all patches, to compute in double.

    In the first and the last patch, these are the corners and the middles of edges and faces, each
    with the adjacent voxel; in all patches, some next to the ends of tiles, and others at random.
    """
    most = _samples(shape)
    each = prod(shape.target_extents)
    count = shape.batch * each
    random = np.random.default_rng(0)
    ends = [sorted({0, 1, e // 2, e - 2, e - 1} & set(range(e))) for e in shape.target_extents]
    borders = np.array(list(product(*ends))).T
    inside = np.ravel_multi_index(tuple(borders), shape.target_extents)
    outer = [patch * each + inside for patch in {0, shape.batch - 1}]
    tiles = random.integers(0, count // _TILE + 1, most // 4) * _TILE + random.integers(
        -1, 2, most // 4
    )
    chosen = np.concatenate([*outer, tiles[(tiles >= 0) & (tiles < count)], [count - 1]])
    if len(chosen) < most:
        chosen = np.concatenate([chosen, random.integers(0, count, most - len(chosen))])
    return np.array(sorted({*chosen.tolist()}), np.int64)  # np.unique imports numpy.ma: 20 ms


_SEEDS = {"source": 1, "weight": 2}
_WAVES = 8
"""Blocks per multiprocessor that process a tensor."""

_CHANNELS = 64  # of a block that sums


def fill_tensor(
    tensor: Tensor, numbers: Filling, target: int, gpu: GpuProperties, groups: int = 1
) -> Launch:
    """Return the launch that fills a tensor of groups of channels, as fp16 pairs if stored so."""
    count = tensor.batch * prod(tensor.extents) * tensor.channels
    is_split = tensor.scale is not None
    values = _numbers(numbers, target, count, tensor.channels // groups, split_fp16=is_split)
    values.seed, values.inner = _SEEDS["source"], 1
    values.extents[:], values.cell[:] = tensor.extents, _CELL
    return _over(gpu, count, "fill_numbers", values)


def fill_patches(
    shape: tuple[int, ...], numbers: Filling, target: int, gpu: GpuProperties
) -> Launch:
    """Return the launch that fills float patches [N, C, D, H, W]."""
    values = _numbers(numbers, target, prod(shape), channels=1, split_fp16=False)
    values.seed, values.inner, values.is_float = _SEEDS["source"], 1, True
    values.extents[:], values.cell[:] = shape[2:], _CELL
    return _over(gpu, prod(shape), "fill_numbers", values)


def fill_weight(shape: ConvShape, numbers: Filling, target: int, gpu: GpuProperties) -> Launch:
    """Return the launch that fills the weight; of a gradient, source channels come first."""
    values = _numbers(numbers, target, shape.weights, shape.summed_channels, shape.split_fp16)
    values.seed = _SEEDS["weight"]
    outputs = shape.target_channels // shape.groups
    values.inner = prod(shape.kernel) * outputs if shape.transposed else 1
    return _over(gpu, shape.weights, "fill_numbers", values)


def _numbers(
    numbers: Filling, target: int, count: int, channels: int, split_fp16: bool
) -> Structure:
    return structure("check.cu", "FillNumbers")(
        target=target,
        count=count,
        channels=channels,
        kind=constants("check.cu")[numbers.kind.upper()],
        density=round(numbers.density * 65536),
        fraction=numbers.fraction,
        split_fp16=split_fp16,
    )


def fingerprint(
    address: int, size: int, number_bytes: int, into: int, gpu: GpuProperties
) -> Launch:
    """Return the launch that adds the fingerprint of so many bytes, in whole words, to the uint64
    `into`.
    """
    values = structure("check.cu", "Fingerprint")(
        words=address, count=size // 4, are_pairs=number_bytes == 2, sum=into
    )
    return _over(gpu, size // 4, "fingerprint", values)


def plain_convolution(
    shape: ConvShape,
    addresses: tuple[int, int, int],
    used_channels: int | None = None,
    *,
    is_translated: bool = False,
) -> Launch:
    """Return the plainest launch of the convolution; addresses: of source, weight and target.

    used_channels: of the source, where the others are 0. is_translated: the result is float [N, K,
    D, H, W].
    """
    values = structure("check.cu", "Plain")(
        source=addresses[0],
        weight=addresses[1],
        target=addresses[2],
        **convolution_geometry(shape),
        dilation=shape.dilation,
        groups=shape.groups,
        patches=shape.batch,
        used_channels=used_channels or shape.summed_channels,
        is_gradient=shape.transposed,
        is_translated=is_translated,
    )
    each = constants("check.cu")["EACH"]
    in_eights = shape.target_channels // shape.groups % each == 0
    threads = shape.target_channels // each if in_eights else shape.target_channels
    across = min(BLOCK // WARP, 1 << (threads - 1).bit_length())
    along = BLOCK // across
    voxels = shape.batch * prod(shape.target_extents)
    grid = -(-voxels // along), -(-threads // across), 1
    kernel = "plain_eights" if in_eights else "plain"
    return Launch("check", kernel, grid, (along, across, 1), 0, values)


def expect(
    shape: ConvShape, addresses: tuple[int, int], voxels: int, sums: int, samples: int
) -> Launch:
    """Return the launch of sums in double at the voxels listed; addresses: of source and weight."""
    values = structure("check.cu", "Expect")(
        source=addresses[0],
        weight=addresses[1],
        voxels=voxels,
        sums=sums,
        **convolution_geometry(shape),
        dilation=shape.dilation,
        groups=shape.groups,
        samples=samples,
        is_gradient=shape.transposed,
        split_fp16=shape.split_fp16,
    )
    grid = samples, -(-shape.target_channels // _CHANNELS), 1
    return Launch("check", "expect", grid, (_CHANNELS, 1, 1), 0, values)


def compare(
    shape: ConvShape, target: int, voxels: int, sums: int, samples: int, bound: Bound, found: int
) -> Launch:
    """Compare a result with those sums; found: two uint32, how many are wrong and the largest
    error.
    """
    values = structure("check.cu", "Compare")(
        target=target,
        voxels=voxels,
        sums=sums,
        found=found,
        of_result=bound.of_result,
        of_products=bound.of_products,
        smallest=bound.smallest,
        samples=samples,
        channels=shape.target_channels,
    )
    grid = -(-samples * shape.target_channels // BLOCK), 1, 1
    return Launch("check", "compare", grid, (BLOCK, 1, 1), 0, values)


def _over(
    gpu: GpuProperties,
    count: int,
    kernel: str,
    values: Structure,
) -> Launch:
    blocks = max(1, min(-(-count // BLOCK), _WAVES * gpu.multiprocessors))
    return Launch("check", kernel, (blocks, 1, 1), (BLOCK, 1, 1), 0, values)
