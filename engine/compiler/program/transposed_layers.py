"""Lower transposed convolutions between tensors in memory, and choose their form."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from msgspec import structs

from ...network.graph import Node
from ...network.graph_analysis import can_be_subpixels, reach_of
from ...network.layers import (
    ONES,
    TWOS,
    ZEROS,
    ConvTranspose3d,
    FloatArray,
    Pad,
    Triple,
    added,
    triple,
)
from .. import weight_layout
from ..lowered import TransposedForm
from ..steps import ActivatedView, Conv, Geometry, Interleave
from ..tensors import Tensor, TensorView
from .builder import ProgramBuilder, Value
from .custom_kernels import (
    KernelInputs,
    append_custom,
    geometry_of,
    operands_of,
    own_pad,
    unwritten,
)
from .inner_layers import PLAIN, are_stored_apart, biased, emit
from .phases import phase_channels, phases_of, phases_pay

_SUBPIXEL_CHANNELS = 32
"""Output channels up to which sub-pixels beat the data gradient; measured on an H200."""


@dataclass(frozen=True, slots=True)
class _Operands:
    """Input of a transposed convolution.

    source: read whole. slots: stored position of each of its channels. weight: [in, out / groups,
    kD, kH, kW], with zeros between groups whose channels share vectors.
    """

    source: Tensor
    slots: Sequence[int]
    weight: FloatArray


def convolve_transposed(builder: ProgramBuilder, node: Node, conv: ConvTranspose3d) -> Value:
    """Lower a transposed convolution; its bias is left to the next pass."""
    name, weight = node.inputs[0], builder.weights[conv.weight]
    value = builder.operand(name)
    if not are_stored_apart(builder, conv, value, builder.stored(conv.out_channels)):
        weight = weight_layout.block_diagonal(weight, conv.groups)
        conv = structs.replace(conv, groups=1)
    if builder.layout.in_blocks:
        name = _bordered(builder, node, conv)
        if not can_be_subpixels(conv):
            return biased(builder, node, _in_blocks(builder, node, conv, name, weight), conv.bias)
    extents = builder.shapes[node.name].extents
    cells = triple(extent // 2 for extent in extents)
    target = unwritten(builder, node.name, cells, 8 * conv.out_channels)
    view = TensorView(target, extents, shuffled=True)
    wanted = Conv(node.name, None, geometry_of(conv), (), view, "")
    if own := append_custom(builder, wanted, weight, _transposed_operands(builder, name, conv)):
        assert isinstance(own.output, TensorView)
        return biased(builder, node, own.output, conv.bias)
    value, source = builder.dense(name)
    view = _by_plan(builder, node, conv, _Operands(source, value.slots, weight))
    return biased(builder, node, view, conv.bias)


def _transposed_operands(
    builder: ProgramBuilder, name: str, conv: ConvTranspose3d
) -> Iterator[KernelInputs]:
    """Yield the inputs that a kernel may read; for blocks, the value with the border that the cells
    need.
    """
    if not builder.layout.in_blocks:
        yield from operands_of(builder, name, conv)
        return
    value, source = builder.dense(name)
    yield KernelInputs((ActivatedView(source.whole),), value.slots, own_pad(conv))


def _by_plan(
    builder: ProgramBuilder, node: Node, conv: ConvTranspose3d, operands: _Operands
) -> TensorView:
    if builder.layout.in_blocks:
        return _to_subpixels(builder, node, conv, operands, PLAIN)
    match _transposed_form(builder, node, conv, operands.source):
        case "cells":
            return _to_cells(builder, node, conv, operands)
        case "subpixel":
            before, after = _reach_beside(conv)
            geometry = Geometry(ONES, before=before, after=after)
            return _to_subpixels(builder, node, conv, operands, geometry)
        case "phases":
            return _by_phases(builder, node, conv, operands)
        case _:
            return _as_gradient(builder, node, conv, operands, geometry_of(conv))


def _by_phases(
    builder: ProgramBuilder, node: Node, conv: ConvTranspose3d, operands: _Operands
) -> TensorView:
    """Emit a convolution to all phases of the target, and the pass that moves them to voxels.

    Phases of a few channels are not filled to whole vectors: the map would be up to 8 times as
    large, and so would the convolution.
    """
    source, extents = operands.source, builder.shapes[node.name].extents
    phases = phases_of(conv, source.extents, extents)
    channels = phase_channels(conv, source.precision)
    packed = weight_layout.phases_as_outputs(
        operands.weight, phases.taps, operands.slots, source.channels, channels
    )
    cells = builder.tensor(f"{node.name}.phases", phases.cells, channels)
    geometry = Geometry(ONES, before=phases.before, after=phases.after)
    emit(builder, node.name, packed, source, cells, geometry)
    target = builder.tensor(node.name, extents, builder.stored(conv.out_channels))
    output, channels = target.whole, conv.out_channels
    builder.steps.append(Interleave(cells, output, phases.stride, phases.origin, channels))
    return output


def _to_cells(
    builder: ProgramBuilder, node: Node, conv: ConvTranspose3d, operands: _Operands
) -> TensorView:
    """Emit a convolution to all cells that the kernel reaches; the padding cuts some voxels off."""
    source, channels = operands.source, builder.stored(conv.out_channels)
    border = triple(extent // 2 - 1 for extent in conv.kernel)
    cells_written = added(source.extents, border)
    packed = weight_layout.cells_as_outputs(
        operands.weight, operands.slots, source.channels, channels
    )
    target = builder.tensor(node.name, cells_written, 8 * channels)
    geometry = Geometry(ONES, before=border, after=border)
    emit(builder, node.name, packed, source, target, geometry)
    return TensorView(target, builder.shapes[node.name].extents, conv.padding, shuffled=True)


def _leads_to_cells(conv: ConvTranspose3d) -> bool:
    """Return whether each pair of taps leads to a whole cell of 2 x 2 x 2 voxels."""
    is_even = not any(extent % 2 for extent in conv.kernel)
    is_plain = conv.dilation == ONES and conv.output_padding == ZEROS and conv.groups == 1
    return conv.stride == TWOS and is_even and is_plain


def _as_gradient(
    builder: ProgramBuilder,
    node: Node,
    conv: ConvTranspose3d,
    operands: _Operands,
    geometry: Geometry,
) -> TensorView:
    source, channels = operands.source, builder.stored(conv.out_channels)
    outputs = channels // conv.groups
    packed = weight_layout.transposed(operands.weight, operands.slots, source.channels, outputs)
    target = builder.tensor(node.name, builder.shapes[node.name].extents, channels)
    emit(builder, node.name, packed, source, target, geometry)
    return target.whole


def _to_subpixels(
    builder: ProgramBuilder,
    node: Node,
    conv: ConvTranspose3d,
    operands: _Operands,
    geometry: Geometry,
) -> TensorView:
    """Emit a convolution to one cell per voxel of the source, without those of a border."""
    source, channels = operands.source, builder.stored(conv.out_channels)
    packed = weight_layout.subpixels(
        operands.weight, conv.padding, operands.slots, source.channels, channels
    )
    extents = builder.shapes[node.name].extents
    target = builder.tensor(node.name, triple(extent // 2 for extent in extents), 8 * channels)
    emit(builder, node.name, packed, source, target, geometry)
    return TensorView(target, extents, shuffled=True)


def _in_blocks(
    builder: ProgramBuilder, node: Node, conv: ConvTranspose3d, bordered: str, weight: FloatArray
) -> TensorView:
    """Emit a convolution of any stride from a block with its halo to the block's own outputs.

    What the halo's voxels add past the block is cut off as padding of the forward convolution.
    """
    value, source = builder.dense(bordered)
    halo, _ = _reach_beside(conv)
    extents = zip(
        builder.shapes[node.name].extents,
        source.extents,
        conv.padding,
        halo,
        conv.stride,
        conv.reach,
        strict=True,
    )
    ends: list[tuple[int, int]] = []
    for target, read, padding, before, stride, taps in extents:
        cut = padding + before * stride
        ends.append((cut, max(0, (read - 1) * stride + taps - target - cut)))
    before, after = (triple(side) for side in zip(*ends, strict=True))
    geometry = replace(geometry_of(conv), before=before, after=after)
    return _as_gradient(builder, node, conv, _Operands(source, value.slots, weight), geometry)


def _reach_beside(conv: ConvTranspose3d) -> tuple[Triple, Triple]:
    """Return the halo before and after a source voxel that its outputs depend on."""
    reach = reach_of(conv)
    return triple(max(0, -first) for first, _ in reach), triple(max(0, last) for _, last in reach)


def _bordered(builder: ProgramBuilder, node: Node, conv: ConvTranspose3d) -> str:
    """Return the name of a convolution's input with the halo that a block's outputs depend on."""
    name, bordered = node.inputs[0], f"{node.name}.bordered"
    value = builder.operand(name)
    if value.pad is not None:
        value, _ = builder.view(name)
    before, after = _reach_beside(conv)
    extents = added(value.extents, before, after)
    border = Pad("zero", before, after)
    builder.values[bordered] = replace(value, extents=extents, pad=border, unpadded=name)
    builder.excess[bordered] = builder.excess_of(name)
    if name in builder.scales:
        builder.scales[bordered] = builder.scales[name]
    return bordered


def _transposed_form(
    builder: ProgramBuilder, node: Node, conv: ConvTranspose3d, source: Tensor
) -> TransposedForm:
    asked = builder.layout.forms.get(node.name)
    if _leads_to_cells(conv) and asked in (None, "cells"):
        return "cells"
    if asked == "phases":
        return "phases"
    if not can_be_subpixels(conv):
        pays = phases_pay(conv, source, builder.shapes[node.name].extents)
        return "phases" if asked is None and pays else "gradient"
    if source.scale is not None:
        return "subpixel"  # split fp16 is for convolutions that are not transposed
    if asked in ("gradient", "subpixel"):
        return asked
    if builder.layout.precision == "fp32":
        return "subpixel"  # the plain arithmetic of the gradient multiplies 8 times too often
    reach = prod(last - first + 1 for first, last in reach_of(conv))
    pays = conv.out_channels <= _SUBPIXEL_CHANNELS and 8 * reach <= 3 * prod(conv.kernel)
    return "subpixel" if pays else "gradient"
