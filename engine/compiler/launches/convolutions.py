"""Launches of convolutions that no plan of cuDNN's does."""

from collections.abc import Callable
from math import prod
from typing import Any

from ...network.layers import Triple
from ..convolution import Convolution
from ..kernel_source import constants, structure
from ..kernels import OUTPUT_TILES, SPLIT_TILES, own_kernel
from ..steps import Convolve
from ..tensors import VECTOR_BYTES
from .launch import WARP, Addresses, Launch, block_shape, vectors
from .tensor_arguments import region_address


def convolve(step: Convolve, at: Addresses) -> Launch:
    """Return the launch of a convolution by an own kernel."""
    return _LAUNCHES[own_kernel(step.shape).source](step, at)


def _convolve_split_fp16(step: Convolve, at: Addresses) -> Launch:
    shape, width, tile = step.shape, _outputs(step), constants("convolve_split_fp16.cu")
    voxels, piece = SPLIT_TILES[width], tile["VECTORS"] * VECTOR_BYTES
    warps = voxels // tile["WARP_VOXELS"] * width // tile["WARP_OUTPUTS"]
    border = "_border" if any(shape.before + shape.after) else ""
    return Launch(
        source="convolve_split_fp16",
        kernel=f"convolve_split_fp16_{width}{border}",
        grid=_tiles(step, voxels, width),
        block=(warps * WARP, 1, 1),
        shared=tile["STAGES"] * (voxels + width) * piece,
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
    grid, threads = _tiles(step, OUTPUT_TILES[width], width), constants("convolve.cu")["THREADS"]
    return Launch("convolve", f"{kind}_{width}", grid, (threads, 1, 1), 0, values)


def _convolve_depthwise(step: Convolve, at: Addresses) -> Launch:
    shape = step.shape
    kind = "gradient" if shape.transposed else "convolve"
    values = structure("convolve_depthwise.cu", "ConvolveDepthwise")(
        **_convolved(step, at), dilation=shape.dilation
    )
    across, beside = block_shape(shape.target_channels, shape.precision)
    depth, height, width = shape.target_extents
    run = constants("convolve_depthwise.cu")["ACROSS"]
    runs = shape.batch * depth * height * -(-width // run)
    columns = -(-vectors(shape.target_channels, shape.precision) // across)
    grid, block = (-(-runs // beside), columns, 1), (across, beside, 1)
    return Launch("convolve_depthwise", f"{kind}_depthwise", grid, block, 0, values)


def _outputs(step: Convolve) -> int:
    """Channels that a block of the own kernel makes."""
    outputs = step.shape.target_channels // step.shape.groups
    return next((width for width in OUTPUT_TILES if outputs <= width), max(OUTPUT_TILES))


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


_LAUNCHES: dict[str, Callable[[Convolve, Addresses], Launch]] = {
    "convolve_split_fp16": _convolve_split_fp16,
    "convolve_depthwise": _convolve_depthwise,
    "convolve": _convolve_plainly,
}
"""By the kernels of `own_kernel`."""
