"""A stand-in for cuDNN: convolutions by PyTorch, block by block."""

from typing import Any

import numpy as np
from support.gpu_on_cpu.memory import array_at

from cuda_cyclegan.engine.compiler.steps import Conv, ConvShape


def convolved_exactly(step: Conv, addresses: tuple[int, int, int, int]) -> bool:
    """Convolve in double precision; a voxel's bytes then do not depend on its place in a block."""
    return convolved_by_torch(step, addresses, "f8")


def convolved_by_torch(
    step: Conv, addresses: tuple[int, int, int, int], number_of_sums: str = "f4"
) -> bool:
    """A convolution block by block, so that no block's bytes depend on those beside it."""
    import torch

    shape = step.shape
    if shape.split_fp16:
        return False
    number = np.float16 if shape.precision == "fp16" else np.float32
    source, target = (
        array_at(place, number, shape.batch, *extents, channels)
        for place, extents, channels in (
            (addresses[0], shape.source_extents, shape.source_channels),
            (addresses[2], step.target.extents, shape.target_channels),
        )
    )
    ends = shape.target_channels, shape.summed_channels
    if shape.transposed:
        ends = shape.source_channels, shape.target_channels // shape.groups
    weights = ends[0], *shape.kernel, ends[1]
    weight = torch.from_numpy(
        np.moveaxis(array_at(addresses[1], number, *weights), -1, 1).astype(number_of_sums)
    )
    planes = shape.target_extents[0]
    for source_block, target_block in zip(source, target, strict=True):
        block = torch.from_numpy(np.moveaxis(source_block, -1, 0).astype(number_of_sums))[None]
        if shape.transposed:
            result = _transposed(shape, block, weight)
        else:
            result = torch.nn.functional.conv3d(
                block, weight, None, shape.stride, 0, shape.dilation, shape.groups
            )
        target_block[:planes] = np.moveaxis(result[0].numpy(), 0, -1).astype(number)
    return True


def _transposed(shape: ConvShape, block: Any, weight: Any) -> Any:
    """All that the source adds to, without the padding of the forward convolution."""
    import torch

    full = torch.nn.functional.conv_transpose3d(
        block, weight, None, shape.stride, 0, 0, shape.groups, shape.dilation
    )
    sizes = zip(shape.target_extents, shape.before, full.shape[2:], strict=True)
    missing = [max(0, first + extent - size) for extent, first, size in sizes]
    filled = torch.nn.functional.pad(full, [side for m in reversed(missing) for side in (0, m)])
    ends = zip(shape.before, shape.target_extents, strict=True)
    return filled[(..., *(slice(first, first + extent) for first, extent in ends))]
