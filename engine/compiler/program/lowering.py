"""Graph and weights -> steps over stored tensors, fused to be few.

Only convolutions, statistics and outputs need their operand in memory. All between them is kept as
an expression and written in one pass, with the border that the next convolution needs.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ...network import layers
from ...network.graph import INPUT, Graph, Network, Node
from ..gpu_properties import GpuProperties
from ..lowered import Layout, Lowered
from ..steps import (
    IDENTITY,
    Activation,
    AddPatches,
    ChannelGroups,
    ChannelNorm,
    Combination,
    Sampling,
    Statistics,
    Unpack,
    as_activation,
)
from .block_maps import block_maps
from .builder import (
    ProgramBuilder,
    Value,
    ValuePart,
    in_memory,
)
from .compound_layers import Compound, VoxelNorm, compound_layers
from .inner_layers import convolve, convolve_dense
from .narrow_layers import convolve_narrow
from .outer_layers import convolve_patches, lower_to_output, takes_patches
from .transposed_layers import convolve_transposed

_SCALED_PARTS = 2
"""Most joined maps that are scaled one by one: more are written as one tensor first, for which
later layers then need one pass.
"""


def lower(network: Network, layout: Layout, gpu: GpuProperties) -> Lowered:
    """Compile a network for one patch shape, batch and storage format, and one GPU.

    Raises PatchShapeError if the patch does not fit the network. If patches are blocks of one
    volume, the volume has to fit, and `volume_refusal` has to be None.
    """
    compounds, unneeded = compound_layers(network)
    maps = None
    if layout.in_blocks:
        maps = block_maps(network, layout.patch)
        network = maps.network
    else:
        network.graph.check_patch(layout.patch)
    network, adds_patches = _without_outer_sum(network)
    builder = ProgramBuilder(network, layout, gpu, maps)
    for node in network.graph.nodes:
        if node.name in unneeded:
            continue
        if compound := compounds.get(node.name):
            builder.values[node.name] = _compound(builder, node, compound)
            continue
        if lower_to_output(builder, node):
            break
        if node.name not in builder.values and not _lower_narrow(builder, node):
            builder.values[node.name] = _value(builder, node)
    else:
        _unpack(builder)
    if adds_patches:
        channels = network.graph.out_channels
        builder.steps.append(AddPatches(channels, builder.all_patches, layout.patch))
    return builder.finished()


def _without_outer_sum(network: Network) -> tuple[Network, bool]:
    """Return the network without a final sum with its input, and whether it has such a sum."""
    *nodes, last = network.graph.nodes
    inner = nodes[-1].name if nodes else INPUT
    is_sum = isinstance(last.layer, layers.Add) and set(last.inputs) == {INPUT, inner}
    if inner == INPUT or not is_sum:
        return network, False
    return Network(Graph(network.graph.in_channels, tuple(nodes)), network.weights), True


def _lower_narrow(builder: ProgramBuilder, node: Node) -> bool:
    """Lower a convolution to few channels with what follows it; return whether that is possible."""
    conv = node.layer
    if not isinstance(conv, layers.Conv3d) or takes_patches(builder, node, conv):
        return False
    return convolve_narrow(builder, node, conv)


def _value(builder: ProgramBuilder, node: Node) -> Value:
    match node.layer:
        case layers.Conv3d() as conv:
            if takes_patches(builder, node, conv):
                return convolve_patches(builder, node, conv)
            return convolve(builder, node, conv)
        case layers.ConvTranspose3d() as conv:
            return convolve_transposed(builder, node, conv)
        case layers.InstanceNorm() | layers.GroupNorm() as norm:
            return _normalise(builder, node, norm)
        case layers.ChannelAffine() as affine:
            return _scale(builder, node, affine)
        case layers.Pad() as pad:
            return _pad(builder, node, pad)
        case layers.Crop() as crop:
            return _crop(builder, node, crop)
        case layers.Channels() as channels:
            return _take(builder, node, channels)
        case layers.Add():
            return _combine(builder, node, "add")
        case layers.Subtract():
            return _combine(builder, node, "subtract")
        case layers.Multiply():
            return _multiply(builder, node)
        case layers.Concat():
            return _concat(builder, node)
        case layers.Upsample() | layers.Downsample() | layers.Pool() as sampling:
            return _sample(builder, node, sampling)
        case activation:
            return _activate(builder, node, activation)


def _compound(builder: ProgramBuilder, node: Node, compound: Compound) -> Value:
    match compound.operation:
        case Activation() as activation:
            return _activated(builder, compound.source, activation)
        case VoxelNorm() as norm:
            return _normalise_voxels(builder, node, compound.source, norm)


def _activate(
    builder: ProgramBuilder, node: Node, layer: layers.ActivationLayer | layers.PRelu
) -> Value:
    if isinstance(layer, layers.PRelu):
        return _with_slopes(builder, node, layer)
    return _activated(builder, node.inputs[0], as_activation(layer))


def _activated(builder: ProgramBuilder, source: str, activation: Activation) -> Value:
    value = _activable(builder, source)
    return _with_activations(value, [activation] * len(value.parts))


def _with_slopes(builder: ProgramBuilder, node: Node, layer: layers.PRelu) -> Value:
    value = _activable(builder, node.inputs[0])
    slopes, first = builder.by_slot(layer.slope, value), 0
    activations: list[Activation] = []
    for number, part in enumerate(value.parts):
        last = first + part.source.channels
        name = builder.constant(f"{node.name}.slopes{number}", slopes[first:last])
        activations.append(Activation(slopes=name))
        first = last
    return _with_activations(value, activations)


def _activable(builder: ProgramBuilder, name: str) -> Value:
    """Return a node's value such that each of its parts may have one more activation."""
    value = builder.elementwise(name)
    [*others, last] = value.parts
    if last.residual and not others and last.after == IDENTITY:
        return value
    if any(part.activation != IDENTITY or part.residual for part in value.parts):
        value, _ = builder.view(name)
    return value


def _with_activations(value: Value, activations: Iterable[Activation]) -> Value:
    parts = [
        replace(part, after=activation)
        if part.residual
        else replace(part, activation=activation, is_biased_only=False)
        for part, activation in zip(value.parts, activations, strict=True)
    ]
    return replace(value, parts=tuple(parts))


def _normalise_voxels(builder: ProgramBuilder, node: Node, source: str, norm: VoxelNorm) -> Value:
    source = _in_order(builder, source)
    value = builder.elementwise(source)
    if len(value.parts) != 1 or not value.parts[0].is_affine:
        value, _ = builder.view(source)
    used = np.arange(value.stored) < len(value.slots)
    scale, shift = (
        builder.constant(
            f"{node.name}.{role}",
            used * np.float32(usual) if key is None else builder.by_slot(key, value),
        )
        for role, key, usual in (("scale", norm.scale, 1), ("shift", norm.shift, 0))
    )
    done = ChannelNorm(len(value.slots), norm.epsilon, scale, shift)
    [part] = value.parts
    return replace(value, parts=(replace(part, norm=done, is_biased_only=False),))


def _normalise(
    builder: ProgramBuilder, node: Node, layer: layers.InstanceNorm | layers.GroupNorm
) -> Value:
    name = node.inputs[0]
    if isinstance(layer, layers.GroupNorm):
        name = _in_order(builder, name)
    value, part = _linear(builder, name)
    scale, shift = (
        key and builder.constant(f"{node.name}.{role}", builder.by_slot(key, value))
        for role, key in (("scale", layer.scale), ("shift", layer.shift))
    )
    groups = None
    # Before an instance norm a bias has no effect: the mean cancels it.
    if isinstance(layer, layers.GroupNorm):
        groups = _channel_groups(builder, node.name, layer, part)
    table = builder.measured_table(node.name, part.source.channels)
    builder.steps.append(Statistics(part.source, table, layer.epsilon, scale, shift, groups))
    return replace(value, parts=(ValuePart(part.source, table),))


def _channel_groups(
    builder: ProgramBuilder, name: str, layer: layers.GroupNorm, part: ValuePart
) -> ChannelGroups:
    bias = None
    if part.table is not None:
        bias = builder.constant(f"{name}.bias", builder.constants[part.table.name][1, 0])
    return ChannelGroups(layer.groups, layer.channels // layer.groups, bias)


def _scale(builder: ProgramBuilder, node: Node, layer: layers.ChannelAffine) -> Value:
    value = builder.elementwise(node.inputs[0])
    if len(value.parts) > _SCALED_PARTS or not all(part.is_linear for part in value.parts):
        value, _ = builder.view(node.inputs[0])
    factors, summands = builder.by_slot(layer.scale, value), builder.by_slot(layer.shift, value)
    parts: list[ValuePart] = []
    first = 0
    for number, part in enumerate(value.parts):
        own = slice(first, first + part.source.channels)
        factor, summand = factors[own], summands[own]
        if part.table is not None:
            summand = summand + factor * builder.constants[part.table.name][1, 0]
        table = builder.fixed_table(f"{node.name}.part{number}", factor, summand)
        parts.append(ValuePart(part.source, table))
        first = own.stop
    return replace(value, parts=tuple(parts))


def _linear(builder: ProgramBuilder, name: str) -> tuple[Value, ValuePart]:
    value = builder.elementwise(name)
    if len(value.parts) != 1 or not value.parts[0].is_linear:
        value, _ = builder.view(name)
    return value, value.parts[0]


def _pad(builder: ProgramBuilder, node: Node, pad: layers.Pad) -> Value:
    name = node.inputs[0]
    extents = builder.shapes[node.name].extents
    if builder.is_input(name) and builder.padded_inputs[name] is None:
        builder.padded_inputs[node.name] = pad
        return Value((), (), extents)
    value = builder.operand(name)
    if value.pad is not None:
        value, _ = builder.view(name)
    is_unchanged = builder.excess_of(node.name) == value.excess
    if is_unchanged and not any((*pad.before, *pad.after)):
        # Past the end of a volume its last block would refer to blocks that a run does not have.
        pad = layers.Pad("zero", pad.before, pad.after)
    # A tensor that ends before the value does, or is another map, does not hold it without padding.
    unpadded = name if is_unchanged and min(pad.after) >= 0 else None
    return replace(value, extents=extents, pad=pad, unpadded=unpadded)


def _crop(builder: ProgramBuilder, node: Node, crop: layers.Crop) -> Value:
    """Return a cropped value: one whose border has negative widths."""
    name = node.inputs[0]
    value = builder.operand(name)
    if value.pad is not None:
        value, _ = builder.view(name)
    border = layers.Pad("zero", layers.negative(crop.before), layers.negative(crop.after))
    return replace(value, extents=builder.shapes[node.name].extents, pad=border)


def _take(builder: ProgramBuilder, node: Node, channels: layers.Channels) -> Value:
    """Return some channels of a tensor, which is in memory for all readers of its channels."""
    value, _ = builder.view(node.inputs[0])
    return replace(value, slots=value.slots[channels.first : channels.first + channels.count])


def _concat(builder: ProgramBuilder, node: Node) -> Value:
    first, second = (builder.elementwise(name) for name in node.inputs)
    parts, begin = second.parts, first.stored
    last = first.parts[-1]
    if last.is_bare and last == parts[0]:  # maps that share a vector
        within = begin - last.source.channels
        if not set(first.slots) & {within + slot for slot in second.slots}:
            parts, begin = parts[1:], within
    slots = first.slots + tuple(begin + slot for slot in second.slots)
    return Value(first.parts + parts, slots, first.extents)


def _sample(builder: ProgramBuilder, node: Node, sampling: Sampling) -> Value:
    """Return a sampled value: of one in memory where reading it costs less than computing it again,
    as several voxels or nodes need the same.
    """
    name = node.inputs[0]
    value = builder.elementwise(name)
    is_repeated = isinstance(sampling, layers.Upsample) or len(builder.readers[name]) > 1
    is_costly = is_repeated and not all(part.is_fusible for part in value.parts)
    if is_costly or any(part.norm for part in value.parts):
        value, _ = builder.view(name)
    shape, excess = builder.shapes[node.name], builder.excess_of(node.name)
    return replace(value, extents=shape.extents, sampling=sampling, sampled_excess=excess)


def _multiply(builder: ProgramBuilder, node: Node) -> Value:
    first, second = (builder.shapes[name].channels for name in node.inputs)
    if first == second:
        return _combine(builder, node, "multiply")
    gated, gate = node.inputs if second == 1 else node.inputs[::-1]
    return _combined(builder, _in_order(builder, gated), _in_order(builder, gate), "gate")


def _combine(builder: ProgramBuilder, node: Node, combination: Combination) -> Value:
    first, second = (_in_order(builder, name) for name in node.inputs)
    if combination != "subtract" and builder.values[first].is_bare:
        first, second = second, first
    return _combined(builder, first, second, combination)


def _combined(builder: ProgramBuilder, first: str, second: str, combination: Combination) -> Value:
    value = builder.elementwise(first)
    if len(value.parts) != 1 or value.parts[0].residual is not None:
        value, _ = builder.view(first)
    _, residual = builder.view(second)
    if residual.shuffled:
        residual = builder.write(second).whole
    part = replace(value.parts[0], residual=residual, combination=combination, is_biased_only=False)
    return replace(value, parts=(part,))


def _in_order(builder: ProgramBuilder, name: str) -> str:
    """Return a node with the value of `name` whose channels are stored in order."""
    value = builder.operand(name)
    channels = len(value.slots)
    written = builder.written(value)
    if value.slots == tuple(range(channels)) and written == builder.stored(channels):
        return name
    # Only odd counts of channels, joined or cut, come here: a convolution with ones moves them.
    ordered = f"{name}.ordered"
    if ordered not in builder.values:
        one = layers.Conv3d(channels, channels, (1, 1, 1), weight=ordered)
        builder.shapes[ordered] = builder.shapes[name]
        builder.excess[ordered] = builder.excess_of(name)
        identity = np.eye(channels, dtype=np.float32).reshape(channels, channels, 1, 1, 1)
        target = convolve_dense(builder, ordered, name, one, identity)
        builder.values[ordered] = in_memory(target.whole, tuple(range(channels)))
    return ordered


def _unpack(builder: ProgramBuilder) -> None:
    name = builder.graph.output
    value = builder.elementwise(name)
    part = value.parts[0]
    is_unpacked = part.residual is None and part.norm is None and not part.source.shuffled
    if len(value.parts) != 1 or not is_unpacked:
        tensor = builder.write(name)
        part = ValuePart(tensor.whole)
    for channel, slot, count in _runs(value.slots):
        builder.steps.append(
            Unpack(
                part.source,
                slot,
                channel,
                count,
                len(value.slots),
                part.table,
                part.activation,
            )
        )


def _runs(slots: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return runs of neighbouring slots: first channel, its slot, length."""
    runs: list[tuple[int, int, int]] = []
    for channel, slot in enumerate(slots):
        if runs and slot == runs[-1][1] + runs[-1][2]:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((channel, slot, 1))
    return runs
