"""Lower convolutions to few channels, together with the layers that follow them.

Dense networks join many maps of one or a few channels. Such maps share vectors: each is written to
free lanes of the vector of the map before it, so that joining them copies nothing. A convolution
may write lanes of a vector that it reads: its weights of lanes that are not its input's are 0.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...network.graph import Node
from ...network.layers import (
    ActivationLayer,
    ChannelAffine,
    Concat,
    Conv3d,
    FloatArray,
    Triple,
)
from ..kernels.narrow_layers import MOST_OUTPUTS, pays_off
from ..steps import IDENTITY, Activation, Conv, as_activation
from ..tensors import Tensor
from .builder import ProgramBuilder, in_memory
from .custom_kernels import append_custom, geometry_of, operands_of, unwritten


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Layers after a convolution that its kernel computes: activation(result * factor + summand).

    nodes: the convolution and those layers, each the only reader of the one before it. factor,
    summand: of each channel, None without.
    """

    nodes: tuple[str, ...]
    factor: FloatArray | None
    summand: FloatArray | None
    activation: Activation

    def of_weight(self, weight: FloatArray) -> FloatArray:
        """Return a convolution's weight [K, C, kD, kH, kW] with the factor in it."""
        return weight if self.factor is None else weight * self.factor[:, None, None, None, None]


def epilogue_of(builder: ProgramBuilder, node: Node, conv: Conv3d) -> Epilogue:
    """Return the bias of a convolution, and the affine layer and the activation after it."""
    weights, nodes, factor = builder.weights, [node.name], None
    bias = builder.needed_bias(node.name, conv.bias)
    summand = None if bias is None else weights[bias]
    after = _only_reader(builder, node.name)
    if after and isinstance(affine := after.layer, ChannelAffine):
        factor = weights[affine.scale]
        biases = 0 if summand is None else factor * summand
        summand = biases + weights[affine.shift]
        nodes.append(after.name)
        after = _only_reader(builder, after.name)
    activation = IDENTITY
    if after and isinstance(after.layer, ActivationLayer):
        activation = as_activation(after.layer)
        nodes.append(after.name)
    return Epilogue(tuple(nodes), factor, summand, activation)


def _only_reader(builder: ProgramBuilder, name: str) -> Node | None:
    readers = builder.readers[name]
    return readers[0] if len(readers) == 1 and readers[0].inputs == (name,) else None


def convolve_narrow(builder: ProgramBuilder, node: Node, conv: Conv3d) -> bool:
    """Lower a convolution to few channels, and what follows it, if a kernel for that pays off.

    The values of all these nodes are those of the last one.
    """
    asked = builder.layout.forms.get(node.name)
    if builder.stored(conv.out_channels) > MOST_OUTPUTS or asked == "plain":
        return False
    epilogue = epilogue_of(builder, node, conv)
    joined_after = tuple(_joined_before(builder, epilogue.nodes[-1]))
    wanted, own = _wanted(builder, node, conv, epilogue, joined_after)
    if asked != "narrow" and not _is_guessed_faster(
        builder, node, conv, wanted, bool(joined_after)
    ):
        return False
    weight = epilogue.of_weight(builder.weights[conv.weight])
    operands = operands_of(builder, node.inputs[0], conv)
    channels = wanted.target.channels
    made = append_custom(builder, wanted, _among_zeros(weight, own, channels), operands)
    if made is None:
        return False
    if made.bias and epilogue.summand is not None:
        builder.constant(made.bias, _among_zeros(epilogue.summand, own, channels))
    builder.lanes[made.target.name] = own.stop
    value = in_memory(made.target.whole, tuple(range(own.start, own.stop)))
    builder.values.update(dict.fromkeys(epilogue.nodes, value))
    return True


def _wanted(
    builder: ProgramBuilder,
    node: Node,
    conv: Conv3d,
    epilogue: Epilogue,
    joined_after: Iterable[str],
) -> tuple[Conv, slice]:
    """Return the convolution without inputs, and the channels of its output that are its own."""
    extents = builder.shapes[node.name].extents
    shared, first = _free_lanes(builder, joined_after, extents, conv.out_channels)
    end = first + conv.out_channels
    target = shared or unwritten(builder, node.name, extents, builder.stored(conv.out_channels))
    wanted = Conv(
        node.name,
        None,
        geometry_of(conv),
        (),
        target.whole,
        "",
        f"{node.name}.bias" if epilogue.summand is not None else None,
        epilogue.activation,
        lanes=(first, end) if shared else None,
    )
    return wanted, slice(first, end)


def _is_guessed_faster(
    builder: ProgramBuilder, node: Node, conv: Conv3d, wanted: Conv, is_joined: bool
) -> bool:
    """Guess whether the kernel is faster, until the layer has been timed in both forms: its result
    may be joined without a copy, or the kernel itself is.
    """
    if is_joined and 2 * conv.out_channels <= builder.stored(conv.out_channels):
        return True
    channels = builder.operand(node.inputs[0]).stored
    return pays_off(wanted, channels, builder.layout.batch, builder.gpu)


def _among_zeros(numbers: FloatArray, own: slice, channels: int) -> FloatArray:
    """Return numbers of some output channels [K, ...] as those of all; others are 0."""
    filled = np.zeros((channels, *numbers.shape[1:]), np.float32)
    filled[own] = numbers
    return filled


def _free_lanes(
    builder: ProgramBuilder, joined_after: Iterable[str], extents: Triple, channels: int
) -> tuple[Tensor | None, int]:
    """Return the tensor of a map that a node is joined to, if it has so many free lanes, and the
    first of them.
    """
    for before in joined_after:
        value = builder.values.get(before)
        if value is None or not value.is_bare or not value.parts[0].source.is_whole:
            continue
        tensor = value.parts[0].source.tensor
        used = builder.lanes.get(tensor.name)
        if used is None or tensor.extents != extents:
            continue
        if used + channels <= tensor.channels:
            return tensor, used
    return None, 0


def _joined_before(builder: ProgramBuilder, name: str) -> Iterator[str]:
    """Yield the nodes whose channels come right before those of a node where they are joined."""
    by_name = {node.name: node for node in builder.graph.nodes}
    for node in builder.readers[name]:
        if isinstance(node.layer, Concat) and node.inputs[1] == name:
            before = node.inputs[0]
            while before in by_name and isinstance(by_name[before].layer, Concat):
                before = by_name[before].inputs[1]
            yield before
