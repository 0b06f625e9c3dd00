"""Launches of convolutions that no plan of cuDNN's does."""

from math import prod
from typing import Any

from ...network.layers import Triple
from ..convolution import Convolution
from ..kernel_source import structure
from ..steps import Convolve
from .launch import Addresses, Launch, block_shape, vectors
from .tensor_arguments import region_address

_RUN = 4  # voxels of a thread of convolve_depthwise.cu
_STAGES, _PIECE_BYTES = 3, 128  # of convolve_split_fp16.cu


def convolve(step: Convolve, at: Addresses) -> Launch:
    """A convolution by an own kernel."""
    if step.shape.split_fp16:
        return _convolve_split_fp16(step, at)
    return (_convolve_depthwise if step.shape.is_depthwise else _convolve_plainly)(step, at)


def _convolve_split_fp16(step: Convolve, at: Addresses) -> Launch:
    shape, width = step.shape, _outputs(step)
    tile = 64 if width == 128 else 128
    border = "_border" if any(shape.before + shape.after) else ""
    return Launch(
        source="convolve_split_fp16",
        kernel=f"convolve_split_fp16_{width}{border}",
        grid=_tiles(step, tile, width),
        block=(tile * width // 64, 1, 1),
        shared=_STAGES * (tile + width) * _PIECE_BYTES,
        arguments=structure("convolve_split_fp16.cu", "ConvolveSplitFp16")(
            **_convolved(step, at), scale=step.scale
        ),
    )


def _convolve_plainly(step: Convolve, at: Addresses) -> Launch:
    width = _outputs(step)
    kind = "gradient" if step.shape.transposed else "convolve"
    values = structure("convolve.cu", "Convolve")(
        **_convolved(step, at),
        dilation=step.shape.dilation,
        inputs=step.shape.summed_channels,
        outputs=step.shape.target_channels // step.shape.groups,
    )
    grid = _tiles(step, 8192 // width, width)
    return Launch("convolve", f"{kind}_{width}", grid, (128, 1, 1), 0, values)


def _convolve_depthwise(step: Convolve, at: Addresses) -> Launch:
    shape = step.shape
    kind = "gradient" if shape.transposed else "convolve"
    values = structure("convolve_depthwise.cu", "ConvolveDepthwise")(
        **_convolved(step, at), dilation=shape.dilation
    )
    across, beside = block_shape(shape.target_channels, shape.precision)
    depth, height, width = shape.target_extents
    runs = shape.batch * depth * height * -(-width // _RUN)
    columns = -(-vectors(shape.target_channels, shape.precision) // across)
    grid, block = (-(-runs // beside), columns, 1), (across, beside, 1)
    return Launch("convolve_depthwise", f"{kind}_depthwise", grid, block, 0, values)


def _outputs(step: Convolve) -> int:
    """Channels that a block of the own kernel makes."""
    outputs = step.shape.target_channels // step.shape.groups
    return next((width for width in (32, 64) if outputs <= width), 128)


def _tiles(step: Convolve, voxels: int, outputs: int) -> Triple:
    """The grid of blocks that each make so many outputs of so many voxels."""
    shape = step.shape
    made = shape.batch * prod(shape.target_extents)
    columns = shape.groups * -(-shape.target_channels // shape.groups // outputs)
    return -(-made // voxels), columns, 1


def _convolved(step: Convolve, at: Addresses) -> dict[str, Any]:
    """What both kinds of convolution take."""
    shape = step.shape
    return {
        "source": at(step.source.name),
        "weight": at(step.weight),
        "target": region_address(step, at),
        "source_patch": prod(shape.source_extents) * shape.source_channels,
        "target_patch": prod(shape.target_extents) * shape.target_channels,
        **convolution_geometry(shape),
        "patches": shape.batch,
    }


def convolution_geometry(shape: Convolution) -> dict[str, Any]:
    """Fields by which every kernel that convolves knows the shape of its work."""
    return {
        "source_extents": shape.source_extents,
        "source_channels": shape.source_channels,
        "target_extents": shape.target_extents,
        "target_channels": shape.target_channels,
        "kernel": shape.kernel,
        "stride": shape.stride,
        "before": shape.before,
    }
