"""The first layer: its taps as channels, or by one of its own kernels."""

from ...network.graph import Node
from ...network.layers import Constant, Conv3d, Pad, Triple
from .. import weight_layout
from ..steps import ConvolvePatches, Pack
from ..tensors import NUMBER_BYTES
from .convolutions import Geometry, biased, emit
from .slabs import slabs
from .writer import Value, Writer, negative, whole

_MOST_TAPS = 256
"""Taps as channels at most: beyond it the packed tensor costs more than it saves."""

_MATRIX_KERNEL, _MATRIX_INPUTS = 7, 1
"""What convolve_patches.cu can take: larger ones leave it too little shared memory."""

_ZERO: Triple = (0, 0, 0)
_ONE: Triple = (1, 1, 1)
_USUAL = (7, 7, 7), (3, 3, 3)
"""The kernels of convolve_patches_wgmma.cu."""

_STRIDED = (2, 2, 2), (4, 4, 4)
"""Stride and kernel of what convolve_strided_patches.cu takes."""


def takes_patches(writer: Writer, node: Node, conv: Conv3d) -> bool:
    """Whether a convolution reads the patches as they come, padded at most once."""
    source = node.inputs[0]
    if not writer.is_input(source) or conv.dilation != _ONE or conv.groups > 1:
        return False
    return writer.padded_inputs[source] is None or not any(conv.padding)


def convolve_patches(writer: Writer, node: Node, conv: Conv3d) -> Value:
    """The first layer, from the patches as they came."""
    if _fits_matrix_kernel(writer, node, conv):
        return _convolve_directly(writer, node, conv)
    pad = writer.padded_inputs[node.inputs[0]] or Pad("zero", conv.padding, conv.padding)
    shape = writer.shapes[node.name]
    depth, height, width = conv.kernel
    folds = _folds(writer, conv)
    taps = (height, width) if folds else (1, 1)
    plane = shape.extents[1:]
    if not folds:
        sizes = zip(writer.layout.patch, pad.before, pad.after, strict=True)
        plane = tuple(extent + before + after for extent, before, after in sizes)[1:]
    channels = writer.matrix_channels(conv.in_channels * taps[0] * taps[1])
    target = writer.tensor(node.name, shape.extents, writer.stored(shape.channels))
    weight = writer.weights[conv.weight]
    if folds:
        laid = weight_layout.taps_as_inputs(weight, channels, target.channels)
    else:
        laid = weight_layout.forward(weight, range(conv.in_channels), channels, target.channels)
    stride: Triple = (conv.stride[0], 1, 1) if folds else conv.stride
    plane_bytes = plane[0] * plane[1] * channels * NUMBER_BYTES[target.precision]
    step, border = stride[0], depth - stride[0]
    for region, planes in slabs(
        target.batch,
        shape.extents[0],
        step * plane_bytes,
        border * plane_bytes,
        writer.layout.slab_bytes,
    ):
        extents = step * planes + border, plane[0], plane[1]
        source = writer.tensor(f"{node.name}.packed", extents, channels, region.count)
        first = region.plane * step
        origin = first - pad.before[0], -pad.before[1], -pad.before[2]
        writer.steps.append(
            Pack(
                source,
                region,
                conv.in_channels,
                writer.layout.patch,
                origin,
                pad.mode,
                taps,
                (conv.stride[1], conv.stride[2]) if folds else (1, 1),
            )
        )
        emit(writer, node.name, laid, source, target, Geometry(stride), region)
    return biased(writer, node, whole(target), conv.bias)


def _fits_matrix_kernel(writer: Writer, node: Node, conv: Conv3d) -> bool:
    depth, height, width = conv.kernel
    pad = writer.padded_inputs[node.inputs[0]]
    return (
        not (pad and isinstance(pad.mode, Constant))
        and _takes(writer, conv)
        and conv.out_channels % 16 == 0
        and max(depth, height) <= _MATRIX_KERNEL
        and width <= _MATRIX_KERNEL
        and conv.in_channels <= _MATRIX_INPUTS
    )


def _takes(writer: Writer, conv: Conv3d) -> bool:
    """Whether the kernel for a layer's stride may be used."""
    if conv.stride == _ONE:
        return _fits_first_of_groups(writer, conv) or writer.layout.takes("convolve_patches")
    return _fits_strided_kernel(writer, conv) and writer.layout.takes("convolve_strided_patches")


def _fits_strided_kernel(writer: Writer, conv: Conv3d) -> bool:
    return not writer.layout.in_blocks and (conv.stride, conv.kernel) == _STRIDED


def _fits_first_of_groups(writer: Writer, conv: Conv3d) -> bool:
    """Whether a first layer is of the form of convolve_patches_wgmma.cu."""
    is_usual = conv.stride == _ONE and conv.kernel in _USUAL
    takes = writer.layout.takes("convolve_patches_wgmma")
    return takes and is_usual and conv.out_channels % 32 == 0


def _convolve_directly(writer: Writer, node: Node, conv: Conv3d) -> Value:
    pad = writer.padded_inputs[node.inputs[0]] or Pad("zero", conv.padding, conv.padding)
    target = writer.tensor(node.name, writer.shapes[node.name].extents, conv.out_channels)
    is_strided, wgmma = conv.stride != _ONE, _fits_first_of_groups(writer, conv)
    lay = weight_layout.row_operands if wgmma else weight_layout.matrix_operands
    lay = weight_layout.strided_operands if is_strided else lay
    laid = lay(writer.weights[conv.weight])
    key = writer.weight(f"{node.name}.stored", laid)
    origin = negative(pad.before)
    patch = writer.layout.patch
    writer.steps.append(
        ConvolvePatches(
            node.name,
            target,
            conv.in_channels,
            patch,
            origin,
            pad.mode,
            conv.kernel,
            key,
            stride=conv.stride[0],
            wgmma=wgmma,
        )
    )
    return biased(writer, node, whole(target), conv.bias)


def _folds(writer: Writer, conv: Conv3d) -> bool:
    _, height, width = conv.kernel
    taps = height * width
    folded = writer.stored(conv.in_channels * taps)
    return folded <= _MOST_TAPS and folded < taps * writer.stored(conv.in_channels)
