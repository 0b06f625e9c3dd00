"""Convolutions between tensors in memory, and the two forms of a transposed one."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from msgspec import structs

from ...network.graph import Node
from ...network.layers import Conv3d, ConvTranspose3d, FloatArray, InstanceNorm, Pad, Triple
from ...network.subpixels import can_be_subpixels, reach_of
from .. import weight_layout
from ..launches import cells
from ..steps import (
    NUMBER_BYTES,
    VECTOR_BYTES,
    Convolution,
    Convolve,
    ConvTransposeToCells,
    Region,
    Tensor,
    TensorView,
    TransposedForm,
)
from ..weight_layout import LaidWeight
from .split_fp16 import power_of_two
from .writer import Value, ValuePart, Writer, in_memory, whole

_ZERO: Triple = (0, 0, 0)
_ONE: Triple = (1, 1, 1)
_TWO: Triple = (2, 2, 2)

_SUBPIXEL_CHANNELS = 32
"""Output channels up to which sub-pixels beat the data gradient; measured on an H200."""


def convolve(writer: Writer, node: Node, conv: Conv3d) -> Value:
    """A convolution; its bias is left to the next pass."""
    weight = writer.weights[conv.weight]
    if _fits_cells(writer, node, conv):
        return _convolve_cells(writer, node, conv)
    target = convolve_dense(writer, node.name, node.inputs[0], conv, weight)
    return biased(writer, node, whole(target), conv.bias)


def _fits_cells(writer: Writer, node: Node, conv: Conv3d) -> bool:
    """Whether a convolution of stride 2 may read whole cells of voxels instead."""
    if writer.layout.in_blocks or writer.layout.strided.get(node.name) == "strided":
        return False
    if conv.stride != _TWO or conv.dilation != _ONE or conv.groups > 1:
        return False
    value = writer.operand(node.inputs[0])
    if any(conv.padding) and value.pad is not None:
        return False
    if value.is_bare and max(conv.kernel) == 2:
        return False  # it would be written for nothing but this
    padded = (e + 2 * p for e, p in zip(value.extents, conv.padding, strict=True))
    return not any(e % 2 for e in (*conv.kernel, *value.sampled_extents, *padded))


def _convolve_cells(writer: Writer, node: Node, conv: Conv3d) -> Value:
    """A convolution of stride 1 over cells of 2 x 2 x 2 voxels."""
    slots, source = writer.shuffled(node.inputs[0], conv.padding)
    shape = writer.shapes[node.name]
    target = writer.tensor(node.name, shape.extents, writer.stored(shape.channels))
    weight = writer.weights[conv.weight]
    laid = weight_layout.cells_as_inputs(weight, slots, source.channels // 8, target.channels)
    region = writer.all_patches
    emit(writer, node.name, laid, source, target, region, _ONE, (_ZERO, _ZERO))
    return biased(writer, node, whole(target), conv.bias)


def convolve_dense(
    writer: Writer, name: str, source: str, conv: Conv3d, weight: FloatArray
) -> Tensor:
    """A convolution of a value in memory, without its bias."""
    value, tensor = writer.dense(source)
    shape = writer.shapes[name]
    target = writer.tensor(name, shape.extents, writer.stored(shape.channels))
    groups, slots, channels = conv.groups, value.slots, tensor.channels
    if not _are_stored_apart(conv, value, tensor, target.channels):
        weight, groups = weight_layout.block_diagonal(weight, groups), 1
    elif groups > 1:
        slots, channels = range(weight.shape[1]), weight.shape[1]
    laid = weight_layout.forward(weight, slots, channels, target.channels)
    border = conv.padding, conv.padding
    region, dilation = writer.all_patches, conv.dilation
    emit(
        writer,
        name,
        laid,
        tensor,
        target,
        region,
        conv.stride,
        border,
        dilation=dilation,
        groups=groups,
    )
    return target


def _are_stored_apart(
    conv: Conv3d | ConvTranspose3d, value: Value, source: Tensor, target_channels: int
) -> bool:
    """Whether the channels of each group are whole vectors, or one that is convolved by itself."""
    if conv.groups == 1:
        return True
    ends = conv.in_channels, conv.out_channels
    in_order = value.slots == tuple(range(conv.in_channels))
    if not in_order or (source.channels, target_channels) != ends:
        return False
    each = [channels // conv.groups for channels in ends]
    lanes = VECTOR_BYTES // NUMBER_BYTES[source.precision]
    return each == [1, 1] or not any(channels % lanes for channels in each)


def convolve_transposed(writer: Writer, node: Node, conv: ConvTranspose3d) -> Value:
    """A transposed convolution; its bias is left to the next pass."""
    if writer.layout.in_blocks:
        return _convolve_subpixels(writer, node, conv)
    value, tensor = writer.dense(node.inputs[0])
    extents = writer.shapes[node.name].extents
    channels = writer.stored(conv.out_channels)
    weight = writer.weights[conv.weight]
    if not _are_stored_apart(conv, value, tensor, channels):
        weight = weight_layout.block_diagonal(weight, conv.groups)
        conv = structs.replace(conv, groups=1)
    form = _transposed_form(writer, node, conv, tensor)
    if form == "own":
        return _convolve_by_own_kernel(writer, node, conv, weight, value.slots, tensor)
    if form == "cells":
        return _convolve_to_cells(writer, node, conv, weight, value.slots, tensor)
    if tensor.scale is None and form == "gradient":
        outputs = channels // conv.groups
        laid = weight_layout.transposed(weight, value.slots, tensor.channels, outputs)
        target = writer.tensor(node.name, extents, channels)
        border = conv.padding, conv.padding
        emit(
            writer,
            node.name,
            laid,
            tensor,
            target,
            writer.all_patches,
            conv.stride,
            border,
            True,
            conv.dilation,
            conv.groups,
        )
        return biased(writer, node, whole(target), conv.bias)
    laid = weight_layout.subpixels(weight, conv.padding, value.slots, tensor.channels, channels)
    target = writer.tensor(node.name, tensor.extents, 8 * channels)
    reach = reach_of(conv)
    before: Triple = -reach[0][0], -reach[1][0], -reach[2][0]
    after: Triple = reach[0][1], reach[1][1], reach[2][1]
    region = writer.all_patches
    emit(writer, node.name, laid, tensor, target, region, (1, 1, 1), (before, after))
    return biased(writer, node, TensorView(target, extents, shuffled=True), conv.bias)


def _convolve_by_own_kernel(
    writer: Writer,
    node: Node,
    conv: ConvTranspose3d,
    weight: FloatArray,
    slots: Sequence[int],
    source: Tensor,
) -> Value:
    laid = weight_layout.doubling_operands(weight, slots, source.channels)
    extents = writer.shapes[node.name].extents
    target = writer.tensor(node.name, source.extents, 8 * conv.out_channels)
    view = TensorView(target, extents, shuffled=True)
    key = writer.weight(f"{node.name}.stored", laid)
    writer.steps.append(ConvTransposeToCells(node.name, source, view, key))
    return biased(writer, node, view, conv.bias)


def _fits_own_kernel(writer: Writer, conv: ConvTranspose3d, source: Tensor) -> bool:
    return (
        writer.layout.wgmma
        and can_be_subpixels(conv)
        and (conv.kernel, conv.padding) == ((3, 3, 3), _ONE)
        and source.channels in cells.CHANNELS
        and conv.out_channels % cells.OUTPUTS == 0
    )


def _convolve_to_cells(
    writer: Writer,
    node: Node,
    conv: ConvTranspose3d,
    weight: FloatArray,
    slots: Sequence[int],
    source: Tensor,
) -> Value:
    """To all cells that the kernel reaches, of which the padding cuts some voxels off."""
    channels = writer.stored(conv.out_channels)
    depth, height, width = (k // 2 - 1 for k in conv.kernel)
    border = depth, height, width
    sizes = zip(source.extents, border, strict=True)
    depth, height, width = (extent + beside for extent, beside in sizes)
    laid = weight_layout.cells_as_outputs(weight, slots, source.channels, channels)
    target = writer.tensor(node.name, (depth, height, width), 8 * channels)
    emit(writer, node.name, laid, source, target, writer.all_patches, _ONE, (border, border))
    extents = writer.shapes[node.name].extents
    return biased(writer, node, TensorView(target, extents, conv.padding, True), conv.bias)


def _leads_to_cells(conv: ConvTranspose3d) -> bool:
    """Whether each pair of taps leads to a whole cell of 2 x 2 x 2 voxels."""
    is_even = not any(extent % 2 for extent in conv.kernel)
    is_plain = conv.dilation == _ONE and conv.output_padding == _ZERO and conv.groups == 1
    return conv.stride == _TWO and is_even and is_plain


def _convolve_subpixels(writer: Writer, node: Node, conv: ConvTranspose3d) -> Value:
    """A transposed convolution whose source is written with the border that sub-pixels see."""
    name, bordered = node.inputs[0], f"{node.name}.bordered"
    reach = reach_of(conv)
    before: Triple = -reach[0][0], -reach[1][0], -reach[2][0]
    after: Triple = reach[0][1], reach[1][1], reach[2][1]
    value = writer.operand(name)
    if value.pad is not None:
        value, _ = writer.view(name)
    inside = value.extents
    depth, height, width = (sum(sizes) for sizes in zip(inside, before, after, strict=True))
    border = Pad("zero", before, after)
    writer.values[bordered] = replace(
        value, extents=(depth, height, width), pad=border, unpadded=name
    )
    if name in writer.scales:
        writer.scales[bordered] = writer.scales[name]
    value, tensor = writer.dense(bordered)
    channels = writer.stored(conv.out_channels)
    weight = writer.weights[conv.weight]
    laid = weight_layout.subpixels(weight, conv.padding, value.slots, tensor.channels, channels)
    target = writer.tensor(node.name, inside, 8 * channels)
    region, none = writer.all_patches, (0, 0, 0)
    emit(writer, node.name, laid, tensor, target, region, (1, 1, 1), (none, none))
    extents = writer.shapes[node.name].extents
    return biased(writer, node, TensorView(target, extents, shuffled=True), conv.bias)


def _transposed_form(
    writer: Writer, node: Node, conv: ConvTranspose3d, source: Tensor
) -> TransposedForm:
    asked = writer.layout.transposed.get(node.name)
    if _fits_own_kernel(writer, conv, source) and asked in (None, "own"):
        return "own"
    if _leads_to_cells(conv) and asked in (None, "cells"):
        return "cells"
    if not can_be_subpixels(conv):
        return "gradient"
    if asked in ("gradient", "subpixel"):
        return asked
    if writer.layout.precision == "fp32":
        return "subpixel"  # the plain arithmetic of the gradient multiplies 8 times too often
    reach = prod(last - first + 1 for first, last in reach_of(conv))
    pays = conv.out_channels <= _SUBPIXEL_CHANNELS and 8 * reach <= 3 * prod(conv.kernel)
    return "subpixel" if pays else "gradient"


def biased(writer: Writer, node: Node, view: TensorView, bias: str | None) -> Value:
    """What a convolution gives; its bias is left to the next pass."""
    plain = in_memory(view, tuple(range(writer.shapes[node.name].channels)))
    # Before a norm a bias is a constant that the mean takes away again.
    if bias is None or writer.is_read_only_by(node.name, InstanceNorm):
        return plain
    summand = writer.by_slot(bias, plain)
    table = writer.fixed_table(node.name, np.ones_like(summand), summand)
    part = ValuePart(view, table, is_biased_only=True)
    return Value((part,), plain.slots, plain.extents)


def emit(
    writer: Writer,
    layer: str,
    weight: LaidWeight,
    source: Tensor,
    target: Tensor,
    region: Region,
    stride: Triple,
    border: tuple[Triple, Triple],
    transposed: bool = False,
    dilation: Triple = (1, 1, 1),
    groups: int = 1,
) -> None:
    """Append a convolution into a region, with its weight as laid out for source and target.

    border: the zero padding before and behind.
    """
    _, depth, height, width, _ = weight.shape
    kernel = depth, height, width
    extents = target.extents
    if not transposed:  # of a slab, as many planes as the source gives
        reach = (depth - 1) * dilation[0] + 1
        planes = (source.extents[0] + border[0][0] + border[1][0] - reach) // stride[0] + 1
        extents = (planes, *extents[1:])
    shape = Convolution(
        source.batch,
        source.extents,
        source.channels,
        extents,
        target.channels,
        kernel,
        stride,
        *border,
        source.precision,
        transposed,
        source.scale is not None,
        dilation,
        groups,
    )
    scale = 1.0
    if source.scale is not None:
        power = power_of_two(float(np.abs(weight.trained).max()))
        weight, scale = weight.split_fp16(power), 1 / (power * source.scale)
    key = writer.weight(f"{layer}.stored", weight)
    writer.steps.append(Convolve(layer, shape, source, target, region, key, scale))
