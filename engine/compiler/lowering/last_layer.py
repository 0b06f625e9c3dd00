"""The last layer: its taps as channels, or by one of its own kernels."""

from dataclasses import replace
from math import prod

import numpy as np

from ...network.graph import Node
from ...network.graph_analysis import can_be_subpixels
from ...network.layers import Constant, Conv3d, ConvTranspose3d, Pad, Triple
from .. import weight_layout
from ..kernels import LAST_STAGES
from ..launches.last_layer import cells_shared, last_layer_shared, sums_voxels
from ..launches.launch import most_shared
from ..steps import (
    IDENTITY,
    ActivatedView,
    Activation,
    ConvolveToPatches,
    ConvolveVoxels,
    ConvTransposeToPatches,
    Pointwise,
    SumTaps,
)
from ..tensors import NUMBER_BYTES, Region, TensorView
from .activations import activation_of
from .convolutions import emit
from .slabs import slabs
from .writer import Value, ValuePart, Writer, negative, whole

_MOST_TAPS = 256
"""Taps as channels at most: beyond it the packed tensor costs more than it saves."""

_MATRIX_KERNEL = 7
"""Extent of the kernel up to which convolve_to_patches.cu takes it."""

_MOST_NUMBERS = 2**31
"""Numbers of a patch's tensor that convolve_to_patches.cu can tell apart."""

_MOST_PARTS = 2
"""Of the source of conv_transpose_to_patches.cu."""

_ZERO: Triple = (0, 0, 0)
_ONE: Triple = (1, 1, 1)

_NARROW, _NARROW_OF_BLOCKS = 64, 48
"""Columns up to which convolve_to_patches.cu is no slower than with warp groups, of a patch and of
a block of a volume: of 60 columns these take 1.04 ms in place of 1.19 at 256x256x180 on an H200.
"""


def lower_to_output(writer: Writer, node: Node) -> bool:
    """Lower a layer straight to the translated patches; whether it is the last one and can be."""
    activation = _final_activation(writer, node)
    if activation is None or writer.is_input(node.inputs[0]):
        return False
    match node.layer:
        case Conv3d() as conv if _is_wide(writer, node, conv):
            _convolve_wide(writer, node, conv, activation)
        case ConvTranspose3d() as conv if _fits_transposed_kernel(writer, node, conv):
            _conv_transpose_to_patches(writer, node, conv, activation)
        case Conv3d() as conv if _fits_voxel_kernel(writer, node, conv):
            _convolve_voxels(writer, node, conv, activation)
        case _:
            return False
    return True


def _is_wide(writer: Writer, node: Node, conv: Conv3d) -> bool:
    """Whether a kernel is wide enough for its taps to become outputs."""
    if conv.stride != _ONE or conv.dilation != _ONE or conv.groups > 1 or conv.kernel[2] < 5:
        return False
    if any(conv.padding) and writer.values[node.inputs[0]].pad is not None:
        return False
    lane = writer.stored(conv.kernel[2])
    return conv.out_channels * conv.kernel[1] * lane <= _MOST_TAPS


def _final_activation(writer: Writer, node: Node) -> Activation | None:
    """The activation behind the last layer; None for a layer that is not, or if more follows."""
    *_, last = writer.graph.nodes
    if node is last:
        return IDENTITY
    if last.inputs != (node.name,) or not writer.is_read_only_by(node.name, type(last.layer)):
        return None
    return activation_of(last.layer)


def _fits_last_kernel(writer: Writer, value: Value, conv: Conv3d, columns: int) -> bool:
    """Whether convolve_to_patches.cu takes a value; that of blocks is written for it.

    columns: of a translated patch.
    """
    part = value.parts[0]
    numbers = prod(value.extents) * value.stored
    if not writer.layout.in_blocks:
        numbers = prod(part.source.tensor.extents) * part.source.tensor.channels
    return (
        (_fits_last_of_groups(writer, value, columns) or writer.layout.takes("convolve_to_patches"))
        and (writer.layout.in_blocks or _is_read_by_last_kernel(value, part))
        and numbers < _MOST_NUMBERS
        and value.stored % 32 == 0
        and max(conv.kernel) <= _MATRIX_KERNEL
        and last_layer_shared(conv.kernel, value.stored) <= most_shared(writer.card)
    )


def _is_read_by_last_kernel(value: Value, part: ValuePart) -> bool:
    """Whether the kernel finds a value, but for its table and activation, where its source is."""
    return (
        len(value.parts) == 1
        and value.sampling is None
        and not isinstance(value.border, Constant)
        and part.residual is None
        and not (part.source.shuffled and (part.activation.slopes or any(part.source.origin)))
    )


def _convolve_to_patches(
    writer: Writer,
    node: Node,
    conv: Conv3d,
    value: Value,
    activation: Activation,
    bias: str | None,
) -> None:
    """The last layer by its own kernel, which looks past patches, and by warp groups into other
    blocks.
    """
    assert value.pad is not None
    origin, mode = negative(value.pad.before), value.pad.mode
    extents = writer.shapes[node.name].extents
    wgmma = _fits_last_of_groups(writer, value, extents[2])
    part = value.parts[0]
    if writer.layout.in_blocks and not wgmma:
        bordered = writer.tensor(f"{node.name}.bordered", value.extents, value.stored)
        writer.write_part(value, bordered, writer.all_patches, origin)
        read, origin, mode = ActivatedView(whole(bordered)), _ZERO, "replicate"
    elif wgmma and part.is_fusible and 0 <= part.activation.slope <= 1:
        read = ActivatedView(part.source, part.table, part.activation)
    else:
        read = ActivatedView(_activated(writer, node.name, part))
    lay = weight_layout.turned_operands if wgmma else weight_layout.column_operands
    laid = lay(writer.weights[conv.weight], value.slots, value.stored)
    writer.steps.append(
        ConvolveToPatches(
            node.name,
            read,
            origin,
            mode,
            conv.kernel,
            writer.weight(f"{node.name}.stored", laid),
            conv.out_channels,
            extents,
            bias,
            activation,
            wgmma,
        )
    )


def _fits_last_of_groups(writer: Writer, value: Value, columns: int) -> bool:
    narrow = _NARROW_OF_BLOCKS if writer.layout.in_blocks else _NARROW
    return (
        writer.layout.takes("convolve_to_patches_wgmma")
        and columns > narrow
        and value.stored in LAST_STAGES
        and _is_read_by_last_kernel(value, value.parts[0])
    )


def _activated(writer: Writer, name: str, part: ValuePart) -> TensorView:
    """The part in memory, in the layout of its source, sub-pixels as channels where they are."""
    if part.is_bare:
        return part.source
    source = part.source.tensor
    target = writer.tensor(f"{name}.source", source.extents, source.channels)
    writer.steps.append(
        Pointwise(
            whole(source),
            target,
            writer.all_patches,
            source.extents,
            (0, 0, 0),
            "zero",
            table=part.table,
            activation=part.activation,
        )
    )
    return replace(part.source, tensor=target)


def _convolve_wide(writer: Writer, node: Node, conv: Conv3d, activation: Activation) -> None:
    """By the kernel for matrix units, else with taps as output channels, which are then summed."""
    name = node.inputs[0]
    value = writer.operand(name)
    pad = value.pad or Pad("zero", conv.padding, conv.padding)
    inside = value.sampled_extents
    sizes = zip(inside, pad.before, pad.after, strict=True)
    depth, height, width = (extent + before + after for extent, before, after in sizes)
    padded: Triple = depth, height, width
    value = Value(value.parts, value.slots, padded, value.sampling, pad)
    bias = _bias(writer, node, conv)
    if _fits_last_kernel(writer, value, conv, writer.shapes[node.name].extents[2]):
        _convolve_to_patches(writer, node, conv, value, activation, bias)
        return
    taps, lane = conv.kernel[1:], writer.stored(conv.kernel[2])
    channels = writer.matrix_channels(conv.out_channels * taps[0] * lane)
    laid = weight_layout.taps_as_outputs(
        writer.weights[conv.weight], value.slots, value.stored, channels, lane
    )
    plane_bytes = height * width * NUMBER_BYTES[writer.layout.precision]
    extents = writer.shapes[node.name].extents
    border = conv.kernel[0] - 1
    for region, planes in slabs(
        writer.layout.batch,
        extents[0],
        plane_bytes * (value.stored + channels),
        plane_bytes * value.stored * border,
        writer.layout.slab_bytes,
    ):
        source = writer.tensor(
            f"{node.name}.padded",
            (planes + border, height, width),
            value.stored,
            region.count,
            writer.scale(name),
        )
        origin = region.plane - pad.before[0], -pad.before[1], -pad.before[2]
        writer.write_part(value, source, region, origin)
        summands = writer.tensor(
            f"{node.name}.taps", (planes, height, width), channels, region.count
        )
        whole_slab = Region(0, region.count)
        emit(writer, node.name, laid, source, summands, region=whole_slab)
        writer.steps.append(
            SumTaps(summands, region, conv.out_channels, extents, taps, lane, bias, activation)
        )


def _fits_transposed_kernel(writer: Writer, node: Node, conv: ConvTranspose3d) -> bool:
    """Whether conv_transpose_to_patches.cu takes a layer with the operand as it is."""
    value = writer.values[node.inputs[0]]
    return (
        writer.layout.takes("conv_transpose_to_patches")
        and not writer.layout.in_blocks  # it looks at neighbours
        and can_be_subpixels(conv)
        and (conv.kernel, conv.padding) == ((4, 4, 4), _ONE)
        and value.is_elementwise
        and len(value.parts) <= _MOST_PARTS
        and all(_is_read_by_transposed_kernel(part) for part in value.parts)
        and cells_shared(value.stored) <= most_shared(writer.card)
    )


def _is_read_by_transposed_kernel(part: ValuePart) -> bool:
    return part.is_fusible and part.source.channels % 32 == 0


def _conv_transpose_to_patches(
    writer: Writer, node: Node, conv: ConvTranspose3d, activation: Activation
) -> None:
    """Straight from the unwritten operand."""
    value = writer.values[node.inputs[0]]
    laid = weight_layout.cell_operands(writer.weights[conv.weight], value.slots, value.stored)
    writer.steps.append(
        ConvTransposeToPatches(
            node.name,
            tuple(ActivatedView(p.source, p.table, p.activation) for p in value.parts),
            writer.weight(f"{node.name}.stored", laid),
            conv.out_channels,
            writer.shapes[node.name].extents,
            _bias(writer, node, conv),
            activation,
        )
    )


def _fits_voxel_kernel(writer: Writer, node: Node, conv: Conv3d) -> bool:
    """Whether convolve_voxels.cu takes a layer, which sums over the channels of each voxel."""
    if (conv.kernel, conv.stride, conv.padding, conv.groups) != (_ONE, _ONE, _ZERO, 1):
        return False
    value, precision = writer.values[node.inputs[0]], writer.layout.precision
    return (
        not writer.layout.in_blocks
        and writer.scale(node.inputs[0]) is None
        and sums_voxels(value.stored, conv.out_channels, precision)
    )


def _convolve_voxels(writer: Writer, node: Node, conv: Conv3d, activation: Activation) -> None:
    """Straight from the unwritten operand where that is one part."""
    name = node.inputs[0]
    value = writer.values[name]
    part = value.parts[0]
    if not (value.is_simple and part.is_fusible and part.source.is_whole):
        value, tensor = writer.dense(name)
        part = ValuePart(whole(tensor))
    weight = np.zeros((conv.out_channels, value.stored), np.float32)
    weight[:, list(value.slots)] = writer.weights[conv.weight].reshape(conv.out_channels, -1)
    writer.steps.append(
        ConvolveVoxels(
            node.name,
            ActivatedView(part.source, part.table, part.activation),
            writer.constant(f"{node.name}.weights", weight),
            conv.out_channels,
            _bias(writer, node, conv),
            activation,
        )
    )


def _bias(writer: Writer, node: Node, conv: Conv3d | ConvTranspose3d) -> str | None:
    return conv.bias and writer.constant(f"{node.name}.bias", writer.weights[conv.bias])
