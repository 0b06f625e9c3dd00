"""Lower convolutions between tensors in memory."""

from dataclasses import replace

import numpy as np

from ...network.graph import Node
from ...network.layers import ONES, TWOS, Conv3d, ConvTranspose3d, FloatArray, added, triple
from .. import weight_layout
from ..kernels.narrow_layers import MOST_OUTPUTS
from ..steps import ActivatedView, Conv, Geometry
from ..tensors import NUMBER_BYTES, VECTOR_BYTES, Region, Tensor, TensorView
from ..weight_layout import PackedWeight
from .builder import ProgramBuilder, Value, ValuePart, in_memory
from .custom_kernels import append_custom, geometry_of, operands_of, unwritten
from .split_fp16 import power_of_two

PLAIN = Geometry(ONES)
"""Geometry of a convolution without stride, border and dilation; the kernel is replaced."""


def convolve(builder: ProgramBuilder, node: Node, conv: Conv3d) -> Value:
    """Lower a convolution; its bias is left to the next pass."""
    weight = builder.weights[conv.weight]
    if _fits_cells(builder, node, conv):
        return _convolve_cells(builder, node, conv)
    if conv.out_channels > MOST_OUTPUTS:  # of fewer, `convolve_narrow` decided already
        extents = builder.shapes[node.name].extents
        target = unwritten(builder, node.name, extents, conv.out_channels)
        wanted = Conv(node.name, None, geometry_of(conv), (), target.whole, "")
        operands = operands_of(builder, node.inputs[0], conv)
        if own := append_custom(builder, wanted, weight, operands):
            return biased(builder, node, own.target.whole, conv.bias)
    written = convolve_dense(builder, node.name, node.inputs[0], conv, weight)
    return biased(builder, node, written.whole, conv.bias)


def _fits_cells(builder: ProgramBuilder, node: Node, conv: Conv3d) -> bool:
    """Return whether a convolution of stride 2 may read whole cells of voxels instead."""
    if builder.layout.in_blocks or builder.layout.forms.get(node.name) == "plain":
        return False
    if conv.stride != TWOS or conv.dilation != ONES or conv.groups > 1:
        return False
    value = builder.operand(node.inputs[0])
    if any(conv.padding) and value.pad is not None:
        return False
    if value.is_bare and max(conv.kernel) == 2:
        return False  # it would be written for nothing but this
    padded = added(value.extents, conv.padding, conv.padding)
    return not any(e % 2 for e in (*conv.kernel, *value.sampled_extents, *padded))


def _convolve_cells(builder: ProgramBuilder, node: Node, conv: Conv3d) -> Value:
    """Lower a convolution of stride 2 to one of stride 1 over cells of 2 x 2 x 2 voxels."""
    slots, source = builder.shuffled(node.inputs[0], conv.padding)
    shape = builder.shapes[node.name]
    target = builder.tensor(node.name, shape.extents, builder.stored(shape.channels))
    weight = builder.weights[conv.weight]
    packed = weight_layout.cells_as_inputs(weight, slots, source.channels // 8, target.channels)
    emit(builder, node.name, packed, source, target)
    return biased(builder, node, target.whole, conv.bias)


def convolve_dense(
    builder: ProgramBuilder, name: str, source: str, conv: Conv3d, weight: FloatArray
) -> Tensor:
    """Emit a convolution of a value in memory, without its bias."""
    value, tensor = builder.dense(source)
    shape = builder.shapes[name]
    target = builder.tensor(name, shape.extents, builder.stored(shape.channels))
    groups, slots, channels = conv.groups, value.slots, tensor.channels
    if not are_stored_apart(builder, conv, value, target.channels):
        weight, groups = weight_layout.block_diagonal(weight, groups), 1
    elif groups > 1:
        slots, channels = range(weight.shape[1]), weight.shape[1]
    packed = weight_layout.forward(weight, slots, channels, target.channels)
    emit(builder, name, packed, tensor, target, replace(geometry_of(conv), groups=groups))
    return target


def are_stored_apart(
    builder: ProgramBuilder, conv: Conv3d | ConvTranspose3d, value: Value, target_channels: int
) -> bool:
    """Return whether each group is whole vectors, or one channel that is convolved by itself."""
    if conv.groups == 1:
        return True
    ends = conv.in_channels, conv.out_channels
    in_order = value.slots == tuple(range(conv.in_channels))
    if not in_order or (value.stored, target_channels) != ends:
        return False
    each = [channels // conv.groups for channels in ends]
    lanes = VECTOR_BYTES // NUMBER_BYTES[builder.layout.precision]
    return each == [1, 1] or not any(channels % lanes for channels in each)


def biased(builder: ProgramBuilder, node: Node, view: TensorView, bias: str | None) -> Value:
    """Return the output of a convolution as a value; its bias is left to the next pass."""
    plain = in_memory(view, tuple(range(builder.shapes[node.name].channels)))
    bias = builder.needed_bias(node.name, bias)
    if bias is None:
        return plain
    summand = builder.by_slot(bias, plain)
    table = builder.fixed_table(node.name, np.ones_like(summand), summand)
    part = ValuePart(view, table, is_biased_only=True)
    return Value((part,), plain.slots, plain.extents)


def emit(
    builder: ProgramBuilder,
    layer: str,
    weight: PackedWeight,
    source: Tensor,
    target: Tensor,
    geometry: Geometry = PLAIN,
    region: Region | None = None,
) -> None:
    """Append a convolution, with its weight packed for source and target.

    geometry: its kernel is replaced by the weight's. region: of the target, None for all of it.
    """
    _, *kernel, _ = weight.shape
    scale = 1.0
    if source.scale is not None:
        power = power_of_two(float(np.abs(weight.trained).max()))
        weight, scale = weight.split_fp16(power), 1 / (power * source.scale)
    key = builder.weight(f"{layer}.stored", weight)
    geometry = replace(geometry, kernel=triple(kernel))
    inputs = (ActivatedView(source.whole),)
    builder.steps.append(
        Conv(layer, None, geometry, inputs, target.whole, key, region=region, scale=scale)
    )
