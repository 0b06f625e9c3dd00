"""Lower the outermost layers: by kernels on patches, or else with taps as channels.

The tensors between the steps of such a layer are processed in slabs, so that they stay small.
"""

from collections.abc import Iterator
from dataclasses import replace

from ...network.graph import Node
from ...network.layers import ONES, ActivationLayer, Conv3d, ConvTranspose3d, Pad, Triple, added
from .. import weight_layout
from ..kernels.last_layer import MOST_TAPS, has_wide_kernel
from ..kernels.narrow_layers import pays_off
from ..steps import IDENTITY, Activation, Conv, Geometry, Pack, PatchArray, SumTaps, as_activation
from ..tensors import NUMBER_BYTES, Region
from .builder import ProgramBuilder, Value
from .custom_kernels import (
    KernelInputs,
    append_custom,
    geometry_of,
    operand_as_it_is,
    operands_of,
    own_pad,
    padded_operands,
    unwritten,
)
from .inner_layers import biased, emit


def takes_patches(builder: ProgramBuilder, node: Node, conv: Conv3d) -> bool:
    """Return whether a convolution reads the input patches directly, padded at most once."""
    source = node.inputs[0]
    if not builder.is_input(source) or conv.dilation != ONES or conv.groups > 1:
        return False
    return builder.padded_inputs[source] is None or not any(conv.padding)


def convolve_patches(builder: ProgramBuilder, node: Node, conv: Conv3d) -> Value:
    """Lower the first layer, reading the input patches directly."""
    pad = builder.padded_inputs[node.inputs[0]] or own_pad(conv)
    patches = PatchArray(conv.in_channels, builder.layout.patch)
    target = unwritten(builder, node.name, builder.shapes[node.name].extents, conv.out_channels)
    wanted = Conv(node.name, None, geometry_of(conv), (), target.whole, "")
    operands = iter([KernelInputs(patches, range(conv.in_channels), pad)])
    if own := append_custom(builder, wanted, builder.weights[conv.weight], operands):
        return biased(builder, node, own.target.whole, conv.bias)
    return _convolve_packed(builder, node, conv, pad)


def _convolve_packed(builder: ProgramBuilder, node: Node, conv: Conv3d, pad: Pad) -> Value:
    """Lower the first layer to cuDNN, from a tensor with the patches' taps as channels, if it pays
    off.
    """
    shape = builder.shapes[node.name]
    depth, height, width = conv.kernel
    folds = _folds(builder, conv)
    taps = (height, width) if folds else (1, 1)
    plane = shape.extents[1:]
    if not folds:
        plane = added(builder.layout.patch, pad.before, pad.after)[1:]
    channels = builder.matrix_channels(conv.in_channels * taps[0] * taps[1])
    target = builder.tensor(node.name, shape.extents, builder.stored(shape.channels))
    weight = builder.weights[conv.weight]
    if folds:
        packed = weight_layout.taps_as_inputs(weight, channels, target.channels)
    else:
        packed = weight_layout.forward(weight, range(conv.in_channels), channels, target.channels)
    stride: Triple = (conv.stride[0], 1, 1) if folds else conv.stride
    plane_bytes = plane[0] * plane[1] * channels * NUMBER_BYTES[target.precision]
    step, border = stride[0], depth - stride[0]
    for region, planes in _slabs(
        target.batch,
        shape.extents[0],
        step * plane_bytes,
        border * plane_bytes,
        builder.layout.slab_bytes,
    ):
        extents = step * planes + border, plane[0], plane[1]
        source = builder.tensor(f"{node.name}.packed", extents, channels, region.count)
        first = region.plane * step
        origin = first - pad.before[0], -pad.before[1], -pad.before[2]
        builder.steps.append(
            Pack(
                source,
                region,
                conv.in_channels,
                builder.layout.patch,
                origin,
                pad.mode,
                taps,
                (conv.stride[1], conv.stride[2]) if folds else (1, 1),
            )
        )
        emit(builder, node.name, packed, source, target, Geometry(ONES, stride), region)
    return biased(builder, node, target.whole, conv.bias)


def _folds(builder: ProgramBuilder, conv: Conv3d) -> bool:
    _, height, width = conv.kernel
    taps = height * width
    folded = builder.stored(conv.in_channels * taps)
    return folded <= MOST_TAPS and folded < taps * builder.stored(conv.in_channels)


def lower_to_output(builder: ProgramBuilder, node: Node) -> bool:
    """Lower a layer so that it writes the translated patches; return whether that was possible."""
    name, conv = node.inputs[0], node.layer
    activation = _final_activation(builder, node)
    if activation is None or builder.is_input(name):
        return False
    if not isinstance(conv, Conv3d | ConvTranspose3d):
        return False
    wanted = _to_patches(builder, node, conv, activation)
    match conv:
        case Conv3d() if _is_wide(builder, name, conv):
            value = _padded(builder.operand(name), conv)
            operands = padded_operands(builder, node.name, value)
            if not _append_to_output(builder, conv, wanted, operands):
                _convolve_taps(builder, node, conv, value, activation)
            return True
        case Conv3d():
            channels, batch = builder.operand(name).stored, builder.layout.batch
            # Forms with other outputs are not compared, so for a last layer the guess is final.
            if conv.kernel != ONES and not pays_off(wanted, channels, batch, builder.gpu):
                return False
            return _append_to_output(builder, conv, wanted, operands_of(builder, name, conv))
        case ConvTranspose3d():
            operands = operand_as_it_is(builder, name, conv)
            return _append_to_output(builder, conv, wanted, operands)


def _to_patches(
    builder: ProgramBuilder, node: Node, conv: Conv3d | ConvTranspose3d, activation: Activation
) -> Conv:
    """Return a convolution that writes the translated patches, without its inputs."""
    output = PatchArray(conv.out_channels, builder.shapes[node.name].extents)
    bias = conv.bias and f"{node.name}.bias"
    return Conv(node.name, None, geometry_of(conv), (), output, "", bias, activation)


def _append_to_output(
    builder: ProgramBuilder,
    conv: Conv3d | ConvTranspose3d,
    wanted: Conv,
    operands: Iterator[KernelInputs],
) -> bool:
    """Append a kernel that writes the translated patches; return whether one fits."""
    if append_custom(builder, wanted, builder.weights[conv.weight], operands) is None:
        return False
    _bias(builder, wanted.layer, conv)
    return True


def _is_wide(builder: ProgramBuilder, name: str, conv: Conv3d) -> bool:
    """Return whether a kernel is wide enough for its taps to become outputs."""
    if any(conv.padding) and builder.values[name].pad is not None:
        return False
    return has_wide_kernel(geometry_of(conv), conv.out_channels, builder.layout.precision)


def _final_activation(builder: ProgramBuilder, node: Node) -> Activation | None:
    """Return the activation after the last layer; None for another layer, or if more follows."""
    *_, last = builder.graph.nodes
    if node is last:
        return IDENTITY
    if last.inputs != (node.name,) or not builder.is_read_only_by(node.name, type(last.layer)):
        return None
    return as_activation(last.layer) if isinstance(last.layer, ActivationLayer) else None


def _padded(value: Value, conv: Conv3d) -> Value:
    """Return a value with the padding that a convolution reads: its own, else the convolution's."""
    pad = value.pad or own_pad(conv)
    extents = added(value.sampled_extents, pad.before, pad.after)
    return replace(value, extents=extents, pad=pad, unpadded=None)


def _convolve_taps(
    builder: ProgramBuilder, node: Node, conv: Conv3d, value: Value, activation: Activation
) -> None:
    """Emit a cuDNN convolution with taps as output channels, and the sum over the taps."""
    assert value.pad is not None
    before, (_, height, width) = value.pad.before, value.extents
    bias = _bias(builder, node.name, conv)
    taps, lane = conv.kernel[1:], builder.stored(conv.kernel[2])
    channels = builder.matrix_channels(conv.out_channels * taps[0] * lane)
    packed = weight_layout.taps_as_outputs(
        builder.weights[conv.weight], value.slots, value.stored, channels, lane
    )
    plane_bytes = height * width * NUMBER_BYTES[builder.layout.precision]
    extents = builder.shapes[node.name].extents
    border = conv.kernel[0] - 1
    for region, planes in _slabs(
        builder.layout.batch,
        extents[0],
        plane_bytes * (value.stored + channels),
        plane_bytes * value.stored * border,
        builder.layout.slab_bytes,
    ):
        source = builder.tensor(
            f"{node.name}.padded",
            (planes + border, height, width),
            value.stored,
            region.count,
            builder.scale(node.inputs[0]),
        )
        origin = region.plane - before[0], -before[1], -before[2]
        builder.write_part(value, source.whole, region, origin)
        summands = builder.tensor(
            f"{node.name}.taps", (planes, height, width), channels, region.count
        )
        whole_slab = Region(0, region.count)
        emit(builder, node.name, packed, source, summands, region=whole_slab)
        builder.steps.append(
            SumTaps(summands, region, conv.out_channels, extents, taps, lane, bias, activation)
        )


def _bias(builder: ProgramBuilder, layer: str, conv: Conv3d | ConvTranspose3d) -> str | None:
    return conv.bias and builder.constant(f"{layer}.bias", builder.weights[conv.bias])


def _slabs(
    batch: int, depth: int, plane_bytes: int, border_bytes: int, limit: int
) -> Iterator[tuple[Region, int]]:
    """Yield regions that cover a batch, and the planes of each, within `limit` bytes if possible.

    plane_bytes: of one plane of one patch; border_bytes: extra bytes per slab.
    """
    if batch * (depth * plane_bytes + border_bytes) <= limit:
        yield Region(0, batch), depth
        return
    planes = max(1, min(depth, (limit - border_bytes) // plane_bytes))
    # Slabs of one size share one convolution plan; an uneven rest is the smaller evil for primes.
    planes = next((p for p in range(planes, planes // 2, -1) if depth % p == 0), planes)
    for patch in range(batch):
        for first in range(0, depth, planes):
            yield Region(patch, 1, first), min(planes, depth - first)
