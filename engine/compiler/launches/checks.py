"""Launches that check a convolution: fill its inputs, compute fingerprints and errors."""

from ctypes import Structure
from math import prod

from ..card_properties import CardProperties
from ..checks import Bound, Filling
from ..convolution import Convolution
from ..kernel_source import constants, structure
from ..kernels.convolutions import convolution_geometry
from ..kernels.launch import BLOCK, Launch
from ..tensors import Tensor

_SEEDS = {"source": 1, "weight": 2}
_WAVES = 8
"""Blocks per multiprocessor that process a tensor."""

_CHANNELS = 64  # of a block that sums


def fill_tensor(
    tensor: Tensor, numbers: Filling, target: int, card: CardProperties, groups: int = 1
) -> Launch:
    """Return the launch that fills a tensor of groups of channels, as fp16 pairs if stored so."""
    count = tensor.batch * prod(tensor.extents) * tensor.channels
    is_split = tensor.scale is not None
    values = _numbers(numbers, target, count, tensor.channels // groups, split_fp16=is_split)
    values.seed, values.inner = _SEEDS["source"], 1
    return _over(card, count, "fill_numbers", values)


def fill_weight(shape: Convolution, numbers: Filling, target: int, card: CardProperties) -> Launch:
    """Return the launch that fills the weight; of a gradient, source channels come first."""
    values = _numbers(numbers, target, shape.weights, shape.summed_channels, shape.split_fp16)
    values.seed = _SEEDS["weight"]
    outputs = shape.target_channels // shape.groups
    values.inner = prod(shape.kernel) * outputs if shape.transposed else 1
    return _over(card, shape.weights, "fill_numbers", values)


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
    address: int, size: int, number_bytes: int, into: int, card: CardProperties
) -> Launch:
    """Return the launch that adds the fingerprint of so many bytes, in whole words, to the uint64
    `into`.
    """
    values = structure("check.cu", "Fingerprint")(
        words=address, count=size // 4, are_pairs=number_bytes == 2, sum=into
    )
    return _over(card, size // 4, "fingerprint", values)


def plain(
    shape: Convolution,
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
    across = min(_CHANNELS, 1 << (shape.target_channels - 1).bit_length())
    beside, each = BLOCK // across, constants("check.cu")["EACH"]
    voxels = shape.batch * prod(shape.target_extents)
    grid = (
        -(-voxels // (beside * each)),
        -(-shape.target_channels // across),
        1,
    )
    return Launch("check", "plain", grid, (across, beside, 1), 0, values)


def expect(
    shape: Convolution, addresses: tuple[int, int], voxels: int, sums: int, samples: int
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
    shape: Convolution, target: int, voxels: int, sums: int, samples: int, bound: Bound, found: int
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
    card: CardProperties,
    count: int,
    kernel: str,
    values: Structure,
) -> Launch:
    blocks = max(1, min(-(-count // BLOCK), _WAVES * card.multiprocessors))
    return Launch("check", kernel, (blocks, 1, 1), (BLOCK, 1, 1), 0, values)
