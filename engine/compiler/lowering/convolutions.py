"""Convolutions between tensors in memory, and the forms of a transposed one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from msgspec import structs

from ...network.graph import Node
from ...network.graph_analysis import can_be_subpixels, reach_of
from ...network.layers import Conv3d, ConvTranspose3d, FloatArray, InstanceNorm, Pad, Triple, triple
from .. import weight_layout
from ..convolution import Convolution
from ..kernels import CELL_OUTPUTS, CELL_RINGS, VOXEL_CHANNELS
from ..launches.planes import BY_PLANES, PlaneKernel
from ..lowered import TransposedForm
from ..steps import (
    ActivatedView,
    Convolve,
    ConvolveByPlanes,
    ConvTransposeToCells,
    ConvTransposeVoxels,
)
from ..tensors import NUMBER_BYTES, VECTOR_BYTES, Region, Tensor, TensorView
from ..weight_layout import LaidWeight
from .split_fp16 import power_of_two
from .writer import Value, ValuePart, Writer, in_memory, whole

_ZERO: Triple = (0, 0, 0)
_ONE: Triple = (1, 1, 1)
_TWO: Triple = (2, 2, 2)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the kernel of a convolution moves over its source.

    stride, dilation: along D, H and W. before, after: zero padding on each side of each axis.
    groups: into which the channels fall. transposed: source and target change places; all else is
    that of the forward convolution.
    """

    stride: Triple = _ONE
    before: Triple = _ZERO
    after: Triple = _ZERO
    dilation: Triple = _ONE
    groups: int = 1
    transposed: bool = False


PLAIN = Geometry()

_SUBPIXEL_CHANNELS = 32
"""Output channels up to which sub-pixels beat the data gradient; measured on an H200."""


def convolve(writer: Writer, node: Node, conv: Conv3d) -> Value:
    """A convolution; its bias is left to the next pass."""
    weight = writer.weights[conv.weight]
    if _fits_cells(writer, node, conv):
        return _convolve_cells(writer, node, conv)
    if kernel := _kernel_by_planes(writer, node, conv):
        return _convolve_by_planes(writer, node, conv, kernel)
    target = convolve_dense(writer, node.name, node.inputs[0], conv, weight)
    return biased(writer, node, whole(target), conv.bias)


def _fits_cells(writer: Writer, node: Node, conv: Conv3d) -> bool:
    """Whether a convolution of stride 2 may read whole cells of voxels instead."""
    if writer.layout.in_blocks or writer.layout.forms.get(node.name) == "plain":
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
    emit(writer, node.name, laid, source, target)
    return biased(writer, node, whole(target), conv.bias)


def _kernel_by_planes(writer: Writer, node: Node, conv: Conv3d) -> PlaneKernel | None:
    """The own kernel that may do a convolution, walking through planes."""
    kernel, in_blocks = BY_PLANES.get(conv.stride[0]), writer.layout.in_blocks
    if kernel is None or not writer.layout.takes(kernel.source):
        return None
    if writer.layout.forms.get(node.name) not in (None, "own"):
        return None
    value = writer.operand(node.inputs[0])
    if in_blocks and not (kernel.in_blocks and _is_read_in_blocks(value, conv.stride[0])):
        return None
    padding = _ONE if in_blocks else conv.padding
    shape = conv.kernel, conv.stride, padding, conv.dilation, conv.groups
    if shape != ((3, 3, 3), (conv.stride[0],) * 3, _ONE, _ONE, 1):
        return None
    fits = value.stored in kernel.channels
    return kernel if fits and conv.out_channels % kernel.outputs == 0 else None


def _is_read_in_blocks(value: Value, stride: int) -> bool:
    """Whether a kernel finds a value where its source is, with one voxel of zeros around it."""
    return (
        len(value.parts) == 1
        and value.sampling is None
        and value.pad == Pad("zero", _ONE, _ONE)
        and _is_activated_by_planes(value.parts[0], stride)
    )


def _convolve_by_planes(writer: Writer, node: Node, conv: Conv3d, kernel: PlaneKernel) -> Value:
    name = node.inputs[0]
    value = writer.operand(name)
    parts, stride = value.parts, conv.stride[0]
    are_activated = all(_is_activated_by_planes(part, stride) for part in parts)
    is_elementwise = value.is_elementwise or writer.layout.in_blocks
    if not is_elementwise or len(parts) > kernel.parts or not are_activated:
        value, tensor = writer.dense(name)
        parts = (ValuePart(whole(tensor)),)
    target = writer.tensor(node.name, writer.shapes[node.name].extents, conv.out_channels)
    lay = weight_layout.OPERANDS_BY_PLANES[stride]
    laid = lay(writer.weights[conv.weight], value.slots, value.stored)
    views = tuple(ActivatedView(part.source, part.table, part.activation) for part in parts)
    key = writer.weight(f"{node.name}.stored", laid)
    writer.steps.append(ConvolveByPlanes(node.name, views, target, key, stride=stride))
    return biased(writer, node, whole(target), conv.bias)


def _is_activated_by_planes(part: ValuePart, stride: int) -> bool:
    if not part.is_fusible:
        return False
    if stride == 2:
        return part.source.is_whole and 0 <= part.activation.slope <= 1
    return part.source.channels % 32 == 0 and part.activation.slope <= 1


def convolve_dense(
    writer: Writer, name: str, source: str, conv: Conv3d, weight: FloatArray
) -> Tensor:
    """A convolution of a value in memory, without its bias."""
    value, tensor = writer.dense(source)
    shape = writer.shapes[name]
    target = writer.tensor(name, shape.extents, writer.stored(shape.channels))
    groups, slots, channels = conv.groups, value.slots, tensor.channels
    if not _are_stored_apart(writer, conv, value, target.channels):
        weight, groups = weight_layout.block_diagonal(weight, groups), 1
    elif groups > 1:
        slots, channels = range(weight.shape[1]), weight.shape[1]
    laid = weight_layout.forward(weight, slots, channels, target.channels)
    border = conv.padding
    geometry = Geometry(conv.stride, border, border, conv.dilation, groups)
    emit(writer, name, laid, tensor, target, geometry)
    return target


def _are_stored_apart(
    writer: Writer, conv: Conv3d | ConvTranspose3d, value: Value, target_channels: int
) -> bool:
    """Whether the channels of each group are whole vectors, or one that is convolved by itself."""
    if conv.groups == 1:
        return True
    ends = conv.in_channels, conv.out_channels
    in_order = value.slots == tuple(range(conv.in_channels))
    if not in_order or (value.stored, target_channels) != ends:
        return False
    each = [channels // conv.groups for channels in ends]
    lanes = VECTOR_BYTES // NUMBER_BYTES[writer.layout.precision]
    return each == [1, 1] or not any(channels % lanes for channels in each)


@dataclass(frozen=True, slots=True)
class _Operands:
    """What a transposed convolution reads.

    source: read whole. slots: stored position of each of its channels. weight: [in, out / groups,
    kD, kH, kW], with zeros between groups whose channels share vectors.
    """

    source: Tensor
    slots: Sequence[int]
    weight: FloatArray


def convolve_transposed(writer: Writer, node: Node, conv: ConvTranspose3d) -> Value:
    """A transposed convolution; its bias is left to the next pass."""
    if writer.layout.in_blocks:
        operands = _bordered_operands(writer, node, conv)
        if _transposed_form(writer, node, conv, operands.source) == "own":
            view = _by_own_kernel(writer, node, conv, operands)
        else:
            view = _to_subpixels(writer, node, conv, operands, PLAIN)
        return biased(writer, node, view, conv.bias)
    value, weight = writer.operand(node.inputs[0]), writer.weights[conv.weight]
    if not _are_stored_apart(writer, conv, value, writer.stored(conv.out_channels)):
        weight = weight_layout.block_diagonal(weight, conv.groups)
        conv = structs.replace(conv, groups=1)
    if _fits_voxels(writer, node, conv):
        return biased(writer, node, _to_cells_of_voxels(writer, node, conv, weight), conv.bias)
    value, source = writer.dense(node.inputs[0])
    operands = _Operands(source, value.slots, weight)
    match _transposed_form(writer, node, conv, source):
        case "own":
            view = _by_own_kernel(writer, node, conv, operands)
        case "cells":
            view = _to_cells(writer, node, conv, operands)
        case "gradient":
            view = _as_gradient(writer, node, conv, operands)
        case "subpixel":
            before, after = _reach_beside(conv)
            geometry = Geometry(before=before, after=after)
            view = _to_subpixels(writer, node, conv, operands, geometry)
    return biased(writer, node, view, conv.bias)


def _fits_voxels(writer: Writer, node: Node, conv: ConvTranspose3d) -> bool:
    """Whether conv_transpose_voxels.cu takes a layer, of whose cells each sees one voxel."""
    return (
        writer.layout.takes("conv_transpose_voxels")
        and writer.layout.forms.get(node.name) in (None, "own")
        and _leads_to_cells(conv)
        and (conv.kernel, conv.padding) == (_TWO, _ZERO)
        and writer.operand(node.inputs[0]).stored in VOXEL_CHANNELS
        and conv.out_channels % CELL_OUTPUTS[0] == 0
    )


def _to_cells_of_voxels(
    writer: Writer, node: Node, conv: ConvTranspose3d, weight: FloatArray
) -> TensorView:
    """Straight from the unwritten operand where the kernel may activate that."""
    name = node.inputs[0]
    value = writer.operand(name)
    part = value.parts[0]
    is_read = part.is_fusible and part.source.is_whole and part.activation.slope <= 1
    if not (value.is_simple and is_read):
        value, tensor = writer.dense(name)
        part = ValuePart(whole(tensor))
    laid = weight_layout.voxel_operands(weight, value.slots, value.stored)
    target = writer.tensor(node.name, part.source.extents, 8 * conv.out_channels)
    view = TensorView(target, writer.shapes[node.name].extents, shuffled=True)
    source = ActivatedView(part.source, part.table, part.activation)
    key = writer.weight(f"{node.name}.stored", laid)
    writer.steps.append(ConvTransposeVoxels(node.name, source, view, key))
    return view


def _by_own_kernel(
    writer: Writer, node: Node, conv: ConvTranspose3d, operands: _Operands
) -> TensorView:
    source = operands.source
    laid = weight_layout.doubling_operands(operands.weight, operands.slots, source.channels)
    extents = writer.shapes[node.name].extents
    cells_made = triple(extent // 2 for extent in extents)
    target = writer.tensor(node.name, cells_made, 8 * conv.out_channels)
    view = TensorView(target, extents, shuffled=True)
    key = writer.weight(f"{node.name}.stored", laid)
    writer.steps.append(ConvTransposeToCells(node.name, source, view, key))
    return view


def _fits_own_kernel(writer: Writer, conv: ConvTranspose3d, source: Tensor) -> bool:
    return (
        writer.layout.takes("conv_transpose_to_cells")
        and can_be_subpixels(conv)
        and (conv.kernel, conv.padding) == ((3, 3, 3), _ONE)
        and source.channels in CELL_RINGS
        and conv.out_channels % CELL_OUTPUTS[0] == 0
    )


def _to_cells(writer: Writer, node: Node, conv: ConvTranspose3d, operands: _Operands) -> TensorView:
    """To all cells that the kernel reaches, of which the padding cuts some voxels off."""
    source, channels = operands.source, writer.stored(conv.out_channels)
    border = triple(extent // 2 - 1 for extent in conv.kernel)
    sizes = zip(source.extents, border, strict=True)
    cells_made = triple(extent + beside for extent, beside in sizes)
    laid = weight_layout.cells_as_outputs(
        operands.weight, operands.slots, source.channels, channels
    )
    target = writer.tensor(node.name, cells_made, 8 * channels)
    emit(writer, node.name, laid, source, target, Geometry(before=border, after=border))
    return TensorView(target, writer.shapes[node.name].extents, conv.padding, shuffled=True)


def _leads_to_cells(conv: ConvTranspose3d) -> bool:
    """Whether each pair of taps leads to a whole cell of 2 x 2 x 2 voxels."""
    is_even = not any(extent % 2 for extent in conv.kernel)
    is_plain = conv.dilation == _ONE and conv.output_padding == _ZERO and conv.groups == 1
    return conv.stride == _TWO and is_even and is_plain


def _as_gradient(
    writer: Writer, node: Node, conv: ConvTranspose3d, operands: _Operands
) -> TensorView:
    source, channels = operands.source, writer.stored(conv.out_channels)
    outputs = channels // conv.groups
    laid = weight_layout.transposed(operands.weight, operands.slots, source.channels, outputs)
    target = writer.tensor(node.name, writer.shapes[node.name].extents, channels)
    border = conv.padding
    geometry = Geometry(conv.stride, border, border, conv.dilation, conv.groups, transposed=True)
    emit(writer, node.name, laid, source, target, geometry)
    return whole(target)


def _to_subpixels(
    writer: Writer, node: Node, conv: ConvTranspose3d, operands: _Operands, geometry: Geometry
) -> TensorView:
    """To one cell for each voxel of the source, but for those of a border that it may have."""
    source, channels = operands.source, writer.stored(conv.out_channels)
    laid = weight_layout.subpixels(
        operands.weight, conv.padding, operands.slots, source.channels, channels
    )
    extents = writer.shapes[node.name].extents
    target = writer.tensor(node.name, triple(extent // 2 for extent in extents), 8 * channels)
    emit(writer, node.name, laid, source, target, geometry)
    return TensorView(target, extents, shuffled=True)


def _reach_beside(conv: ConvTranspose3d) -> tuple[Triple, Triple]:
    """Voxels of the source that sub-pixels see before and behind their own."""
    reach = reach_of(conv)
    return triple(-first for first, _ in reach), triple(last for _, last in reach)


def _bordered_operands(writer: Writer, node: Node, conv: ConvTranspose3d) -> _Operands:
    """A source that is written with the border that sub-pixels see."""
    name, bordered = node.inputs[0], f"{node.name}.bordered"
    value = writer.operand(name)
    if value.pad is not None:
        value, _ = writer.view(name)
    before, after = _reach_beside(conv)
    extents = triple(sum(sizes) for sizes in zip(value.extents, before, after, strict=True))
    border = Pad("zero", before, after)
    writer.values[bordered] = replace(value, extents=extents, pad=border, unpadded=name)
    if name in writer.scales:
        writer.scales[bordered] = writer.scales[name]
    value, source = writer.dense(bordered)
    return _Operands(source, value.slots, writer.weights[conv.weight])


def _transposed_form(
    writer: Writer, node: Node, conv: ConvTranspose3d, source: Tensor
) -> TransposedForm:
    asked = writer.layout.forms.get(node.name)
    if _fits_own_kernel(writer, conv, source) and asked in (None, "own"):
        return "own"
    if _leads_to_cells(conv) and asked in (None, "cells"):
        return "cells"
    if not can_be_subpixels(conv):
        return "gradient"
    if source.scale is not None:
        return "subpixel"  # split fp16 is for convolutions that are not transposed
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
    geometry: Geometry = PLAIN,
    region: Region | None = None,
) -> None:
    """Append a convolution, with its weight as laid out for source and target.

    region: of the target, None for all of it.
    """
    _, *kernel, _ = weight.shape
    extents = target.extents
    if not geometry.transposed:  # of a slab, as many planes as the source gives
        extents = _planes(source, kernel[0], geometry), *extents[1:]
    scale = 1.0
    if source.scale is not None:
        power = power_of_two(float(np.abs(weight.trained).max()))
        weight, scale = weight.split_fp16(power), 1 / (power * source.scale)
    shape = Convolution(
        batch=source.batch,
        source_extents=source.extents,
        source_channels=source.channels,
        target_extents=extents,
        target_channels=target.channels,
        kernel=triple(kernel),
        stride=geometry.stride,
        before=geometry.before,
        after=geometry.after,
        precision=source.precision,
        transposed=geometry.transposed,
        split_fp16=source.scale is not None,
        dilation=geometry.dilation,
        groups=geometry.groups,
    )
    key = writer.weight(f"{layer}.stored", weight)
    region = region or writer.all_patches
    writer.steps.append(Convolve(layer, shape, source, target, region, key, scale))


def _planes(source: Tensor, taps: int, geometry: Geometry) -> int:
    """Planes of the target that a convolution makes of all planes of its source."""
    given = source.extents[0] + geometry.before[0] + geometry.after[0]
    return (given - (taps - 1) * geometry.dilation[0] - 1) // geometry.stride[0] + 1
