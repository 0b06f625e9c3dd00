"""Kernels that compute a bare convolution between tensors in place of a cuDNN plan."""

from math import prod
from typing import Any

from ...network.layers import Triple
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import Conv, ConvShape
from ..tensors import VECTOR_BYTES
from .launch import WARP, Addresses, Launch, block_shape, cpp, region_address, vectors
from .spec import ConvKernel

_OUTPUT_TILES = {32: 256, 64: 128, 128: 64}
"""Voxels of a block of convolve.cu, by its output channels."""

_SPLIT_TILES = {32: 128, 64: 128, 128: 64}
"""Voxels of a block of convolve_split_fp16.cu, by its output channels."""


def _convolve_split_fp16(
    conv: Conv, at: Addresses, _gpu: GpuProperties, _partials: int | None
) -> Launch:
    shape, tile = conv.shape, constants("convolve_split_fp16.cu")
    width = _outputs(shape)
    voxels, piece = _SPLIT_TILES[width], tile["VECTORS"] * VECTOR_BYTES
    warps = voxels // tile["WARP_VOXELS"] * width // tile["WARP_OUTPUTS"]
    has_border = any(shape.before + shape.after)
    return Launch(
        source="convolve_split_fp16",
        kernel=_split_instance(width, has_border=has_border),
        grid=_tiles(shape, voxels, width),
        block=(warps * WARP, 1, 1),
        shared=tile["STAGES"] * (voxels + width) * piece,
        arguments=structure("convolve_split_fp16.cu", "ConvolveSplitFp16")(
            **_convolved(conv, shape, at), scale=conv.scale
        ),
    )


def _convolve(conv: Conv, at: Addresses, _gpu: GpuProperties, _partials: int | None) -> Launch:
    shape = conv.shape
    width = _outputs(shape)
    values = structure("convolve.cu", "Convolve")(
        **_convolved(conv, shape, at),
        dilation=shape.dilation,
        inputs=shape.summed_channels,
        outputs=shape.target_channels // shape.groups,
    )
    grid, threads = _tiles(shape, _OUTPUT_TILES[width], width), constants("convolve.cu")["THREADS"]
    kernel = _instance(width, is_gradient=shape.transposed)
    return Launch("convolve", kernel, grid, (threads, 1, 1), 0, values)


def _convolve_depthwise(
    conv: Conv, at: Addresses, _gpu: GpuProperties, _partials: int | None
) -> Launch:
    shape = conv.shape
    values = structure("convolve_depthwise.cu", "ConvolveDepthwise")(
        **_convolved(conv, shape, at), dilation=shape.dilation
    )
    across, along = block_shape(shape.target_channels, shape.precision)
    depth, height, width = shape.target_extents
    run = constants("convolve_depthwise.cu")["ACROSS"]
    runs = shape.batch * depth * height * -(-width // run)
    columns = -(-vectors(shape.target_channels, shape.precision) // across)
    grid, block = (-(-runs // along), columns, 1), (across, along, 1)
    kernel = f"convolve_depthwise<{cpp(shape.transposed)}>"
    return Launch("convolve_depthwise", kernel, grid, block, 0, values)


def _instance(outputs: int, *, is_gradient: bool) -> str:
    return f"convolve<{_OUTPUT_TILES[outputs]}, {outputs}, {cpp(is_gradient)}>"


def _split_instance(outputs: int, *, has_border: bool) -> str:
    return f"convolve_split_fp16<{cpp(has_border)}, {_SPLIT_TILES[outputs]}, {outputs}>"


def _outputs(shape: ConvShape) -> int:
    """Return how many output channels a block computes."""
    outputs = shape.target_channels // shape.groups
    return next((width for width in _OUTPUT_TILES if outputs <= width), max(_OUTPUT_TILES))


def _tiles(shape: ConvShape, voxels: int, outputs: int) -> Triple:
    """Return the grid of blocks, each of which computes `outputs` channels of `voxels` voxels."""
    total = shape.batch * prod(shape.target_extents)
    columns = shape.groups * -(-shape.target_channels // shape.groups // outputs)
    return -(-total // voxels), columns, 1


def _convolved(conv: Conv, shape: ConvShape, at: Addresses) -> dict[str, Any]:
    """Return the fields that all three structures have."""
    return {
        "source": at(conv.source.name),
        "weight": at(conv.weight),
        "target": region_address(conv, at),
        "source_patch": prod(shape.source_extents) * shape.source_channels,
        "target_patch": prod(shape.target_extents) * shape.target_channels,
        **convolution_geometry(shape),
        "patches": shape.batch,
    }


def convolution_geometry(shape: ConvShape) -> dict[str, Any]:
    """Return the geometry fields shared by the arguments of every convolution kernel."""
    return {
        "source_extents": shape.source_extents,
        "source_channels": shape.source_channels,
        "target_extents": shape.target_extents,
        "target_channels": shape.target_channels,
        "kernel": shape.kernel,
        "stride": shape.stride,
        "before": shape.before,
    }


KERNELS = (
    ConvKernel(
        "convolve_split_fp16",
        tuple(_split_instance(n, has_border=each) for each in (False, True) for n in _SPLIT_TILES),
        ("tf32", "fp32"),
        launch=_convolve_split_fp16,
        replaces_plan=lambda shape: shape.split_fp16,
    ),
    ConvKernel(
        "convolve_depthwise",
        ("convolve_depthwise<false>", "convolve_depthwise<true>"),
        launch=_convolve_depthwise,
        replaces_plan=lambda shape: shape.is_depthwise,
    ),
    ConvKernel(
        "convolve",
        tuple(_instance(n, is_gradient=each) for each in (False, True) for n in _OUTPUT_TILES),
        launch=_convolve,
        replaces_plan=lambda _: True,
    ),
)
"""Candidates in order: the first whose `replaces_plan` accepts a shape computes it."""
