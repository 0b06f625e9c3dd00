"""Launches of convolutions that no plan of cuDNN's does."""

from ctypes import Structure, c_float, c_int, c_longlong, c_void_p
from math import prod
from typing import Any

from ...network.layers import Triple
from ..convolution import Convolution
from ..steps import Convolve
from .launch import Addresses, Launch, block_shape, vectors
from .tensor_arguments import Three, region_address

_RUN = 4  # voxels of a thread of convolve_depthwise.cu
_STAGES, _PIECE_BYTES = 3, 128  # of convolve_split_fp16.cu

GEOMETRY = (
    ("source_extents", Three),
    ("source_channels", c_int),
    ("target_extents", Three),
    ("target_channels", c_int),
    ("kernel", Three),
    ("stride", Three),
    ("before", Three),
)
"""By which every kernel that convolves knows the shape of its work."""

_CONVOLVED = (
    ("source", c_void_p),
    ("weight", c_void_p),
    ("target", c_void_p),
    ("source_patch", c_longlong),
    ("target_patch", c_longlong),
    *GEOMETRY,
    ("patches", c_int),
)


def convolve(step: Convolve, at: Addresses) -> Launch:
    """A convolution by an own kernel."""
    if step.shape.split_fp16:
        return _convolve_split_fp16(step, at)
    return (_convolve_depthwise if step.shape.is_depthwise else _convolve_plainly)(step, at)


class ConvolveSplitFp16Arguments(Structure):
    __slots__ = ()
    _fields_ = (*_CONVOLVED, ("scale", c_float))


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
        arguments=ConvolveSplitFp16Arguments(**_convolved(step, at), scale=step.scale),
    )


class ConvolveArguments(Structure):
    __slots__ = ()
    _fields_ = (*_CONVOLVED, ("dilation", Three), ("inputs", c_int), ("outputs", c_int))


def _convolve_plainly(step: Convolve, at: Addresses) -> Launch:
    width = _outputs(step)
    kind = "gradient" if step.shape.transposed else "convolve"
    values = ConvolveArguments(
        **_convolved(step, at),
        dilation=Three(*step.shape.dilation),
        inputs=step.shape.summed_channels,
        outputs=step.shape.target_channels // step.shape.groups,
    )
    grid = _tiles(step, 8192 // width, width)
    return Launch("convolve", f"{kind}_{width}", grid, (128, 1, 1), 0, values)


class ConvolveDepthwiseArguments(Structure):
    __slots__ = ()
    _fields_ = (*_CONVOLVED, ("dilation", Three))


def _convolve_depthwise(step: Convolve, at: Addresses) -> Launch:
    shape = step.shape
    kind = "gradient" if shape.transposed else "convolve"
    values = ConvolveDepthwiseArguments(**_convolved(step, at), dilation=Three(*shape.dilation))
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
    """The fields of `GEOMETRY`."""
    return {
        "source_extents": Three(*shape.source_extents),
        "source_channels": shape.source_channels,
        "target_extents": Three(*shape.target_extents),
        "target_channels": shape.target_channels,
        "kernel": Three(*shape.kernel),
        "stride": Three(*shape.stride),
        "before": Three(*shape.before),
    }
