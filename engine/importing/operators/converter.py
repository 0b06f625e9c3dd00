"""An operator graph converted to a layer graph with its weights.

Operators become layers by `RULES`, or are folded if they do not depend on the patch. Then layers
that form one layer together are joined, and layers that the output does not need are dropped.
Nothing is recomputed: an affine map joins the norm before it, and the filters of anti-aliased
networks, which are convolutions in the file, become `Downsample` and `Upsample` layers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from ...errors import CheckpointError, PatchShapeError, naming
from ...network.graph import INPUT, Graph, Network, Node, times
from ...network.layers import (
    ChannelAffine,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    Layer,
    Pad,
    Triple,
    Upsample,
    kind_of,
)
from .channel_ops import CHANNEL_RULES
from .elementwise_ops import ELEMENTWISE_RULES
from .folding import FOLDABLE, folded, shape_of
from .graph_builder import (
    CHANNELS_LAST,
    IN_ORDER,
    WHOLE_PATCH,
    Builder,
    GraphTensor,
    GraphValue,
    MovedView,
    ReshapedView,
    Rule,
)
from .norm_ops import NORM_RULES
from .operator_graph import Operator, OperatorGraph
from .sampling_ops import SAMPLING_RULES
from .shape_ops import SHAPE_RULES
from .spatial_ops import SPATIAL_RULES

RULES: Mapping[str, Rule] = {
    **SPATIAL_RULES,
    **SAMPLING_RULES,
    **SHAPE_RULES,
    **CHANNEL_RULES,
    **NORM_RULES,
    **ELEMENTWISE_RULES,
}
"""Rules for ONNX's supported operators."""

_SQUEEZE = f"reduces the whole patch to one number, as squeeze and excitation does; {WHOLE_PATCH}"
_ATTENTION = f"multiplies matrices computed from the patch, as attention does; {WHOLE_PATCH}"
_RESPONSE = f"takes the norm of a whole map, as global response norm does; {WHOLE_PATCH}"
_RANDOM = (
    "draws random numbers, so no two results would be alike; export the generator with the mean in "
    "their place"
)
_SINGLE_VOXELS = (
    "picks voxels by their indices, as exporters of ONNX write the sampling nearest-exact; save "
    "the network with torch.export and import the .pt2 file, or write it as nearest, which is the "
    "same for whole factors"
)
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _SQUEEZE),
    **dict.fromkeys(("MatMul", "Gemm", "Einsum", "Attention"), _ATTENTION),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), _RESPONSE),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniformLike"), _RANDOM),
    "GatherND": _SINGLE_VOXELS,
}
"""Reasons, with a way forward, for operators that no rule converts."""

_MISFITS = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError)
"""Errors that invalid numbers raise in a rule; they become a CheckpointError."""

_USUAL_EXTENTS = (64, 128, 256, 32)
"""Patch extents to try if neither file nor user names one; one suits most strides."""


@dataclass(frozen=True, slots=True)
class ConvertedGraph:
    """Network of a file.

    network: layers and weights. reason: why it takes patches of one size only; empty if it takes
    others.
    """

    network: Network
    reason: str


def convert_graph(file: OperatorGraph, patch: Triple | None) -> ConvertedGraph:
    """Convert a file to a network. patch: (D, H, W) that it will be used with; None if unknown.

    Raises CheckpointError, which names the operator that is not supported.
    """
    with naming(file.path):
        return _converted(file, patch)


def _converted(file: OperatorGraph, patch: Triple | None) -> ConvertedGraph:
    axes = _axes_of_input(file)
    named = tuple(file.dims[axes.index(axis)] for axis in (2, 3, 4))
    if all(named):
        fixed: Triple = (named[0] or 0, named[1] or 0, named[2] or 0)
        network = _network_at(file, axes, fixed)
        return ConvertedGraph(
            _fixed(network, fixed), f"the file's input is fixed to {times(fixed)}"
        )
    network, tried = _network_at_any(file, axes, patch, named)
    if any(named):
        return ConvertedGraph(_fixed(network, tried), "the file fixes some of its extents")
    d, h, w = (extent + step for extent, step in zip(tried, network.graph.stride, strict=True))
    try:
        is_same = _network_at(file, axes, (d, h, w)).graph == network.graph
    except CheckpointError:
        is_same = False
    if is_same:
        return ConvertedGraph(network, "")
    reason = f"its layers differ for patches other than {times(tried)}"
    return ConvertedGraph(_fixed(network, tried), reason)


def _fixed(network: Network, patch: Triple) -> Network:
    graph = network.graph
    return Network(Graph(graph.in_channels, graph.nodes, patch), network.weights)


def _network_at_any(
    file: OperatorGraph, axes: tuple[int, ...], patch: Triple | None, named: tuple[int | None, ...]
) -> tuple[Network, Triple]:
    """Return the network for the patch, or for the first usual one that fits, and that patch."""
    asked = [patch] if patch else [(edge, edge, edge) for edge in _USUAL_EXTENTS]
    refusals: list[str] = []  # not the errors, whose frames hold all arrays
    for extents in asked:
        d, h, w = (known or wanted for known, wanted in zip(named, extents, strict=True))
        try:
            return _network_at(file, axes, (d, h, w)), (d, h, w)
        except CheckpointError as error:
            refusals.append(str(error))
    raise CheckpointError(refusals[0])


def _axes_of_input(file: OperatorGraph) -> tuple[int, ...]:
    """Return the input's axes: channels are last if all its readers first transpose them."""
    readers = [one for one in file.operators if file.input in one.inputs]
    moves = [one.attributes.get("perm") for one in readers if one.kind == "Transpose"]
    is_last = readers and len(moves) == len(readers) and set(moves) == {(0, 4, 1, 2, 3)}
    return CHANNELS_LAST if is_last else IN_ORDER


def _network_at(file: OperatorGraph, axes: tuple[int, ...], patch: Triple) -> Network:
    """Return the network for patches of one size."""
    channels = file.dims[axes.index(1)]
    if channels is None:
        raise CheckpointError(
            "The file does not fix the number of input channels; export it with a fixed number."
        )
    if picks := [operator for operator in file.operators if operator.kind == "GatherND"]:
        raise picks[0].refusal(_SINGLE_VOXELS)  # before the arithmetic on its indices is refused
    batch = file.dims[0] or 1
    builder = Builder(file, GraphTensor(INPUT, batch, channels, patch, axes))
    for operator in file.operators:
        _convert_operator(builder, operator)
    output = builder.values.get(file.output)
    if (
        not isinstance(output, GraphTensor)
        or output.axes not in (IN_ORDER, axes)
        or output.node == INPUT
    ):
        raise CheckpointError("The network's output is not a tensor [N, C, D, H, W] of voxels.")
    nodes, weights = _simplified(builder.nodes, builder.weights, output.node)
    network = Network(Graph(channels, nodes), weights)
    try:
        network.graph.check_patch(patch)
    except PatchShapeError as error:
        raise CheckpointError(str(error)) from error
    return network


_SHAPED = (GraphTensor, ReshapedView, MovedView)


def _convert_operator(builder: Builder, operator: Operator) -> None:
    """Convert one operator, or fold it if it does not depend on the patch."""
    inputs = [builder.value(operator, at) for at in range(len(operator.inputs))]
    arrays = [value for value in inputs if value is None or isinstance(value, np.ndarray)]
    if operator.kind == "Shape" and isinstance(viewed := inputs[0] if inputs else None, _SHAPED):
        shape = viewed.moved_shape if isinstance(viewed, MovedView) else viewed.shape
        output: GraphValue | list[GraphTensor] = shape_of(operator, shape)
    elif len(arrays) == len(inputs):
        output = folded(operator, arrays)
        builder.spend(operator, output)
    elif rule := RULES.get(operator.kind):
        try:
            output = rule(builder, operator)
        except _MISFITS as error:
            raise operator.refusal(
                "has inputs or attributes that do not match the operator"
            ) from error
    else:
        raise _unsupported(builder, operator)
    results = output if isinstance(output, list) else [output]
    builder.values.update(zip(operator.outputs, results, strict=False))
    if extra := [name for name in operator.outputs[len(results) :] if name]:
        builder.missing.update(dict.fromkeys(extra, operator))


def _unsupported(builder: Builder, operator: Operator) -> CheckpointError:
    """Return an error about an operator, which for an ONNX file also names all others like it."""
    reason = _REASONS.get(operator.kind, "is not supported")
    if operator.origin:
        return operator.refusal(reason)
    others = sorted(set(builder.kinds) - RULES.keys() - FOLDABLE - {operator.kind})
    also = f"; also not supported: {', '.join(others)}" if others else ""
    return operator.refusal(f"{reason}{also}; supported operators: docs/onnx.md")


def operators_of(file: OperatorGraph) -> dict[str, int]:
    """Count each type of operator, the most frequent first."""
    return dict(Counter(file.kinds).most_common())


_ONE: Triple = (1, 1, 1)
_TWO: Triple = (2, 2, 2)
_MOST_TAPS, _MOST_PADDING = 7, 64


def _simplified(
    nodes: Sequence[Node], weights: Mapping[str, FloatArray], output: str
) -> tuple[tuple[Node, ...], dict[str, FloatArray]]:
    """Return the nodes that the output needs, named after their layers, and the weights."""
    rewriter = _Rewriter(nodes, weights, output)
    for rule in _REWRITINGS:
        rewriter.apply(rule)
    return rewriter.finished()


class _Rewriter:
    """Applies rules to each node and the chain of predecessors that nothing else reads."""

    def __init__(
        self, nodes: Sequence[Node], weights: Mapping[str, FloatArray], output: str
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.weights = dict(weights)
        self._output = output

    def apply(self, rule: "_Rewriting") -> None:
        """Apply a rule wherever it fits, starting at the input."""
        readers = self._readers()
        for name in list(self.nodes):
            node = self.nodes[name]
            chain = [node]
            while (before := self.nodes.get(chain[-1].inputs[0])) and readers[before.name] == 1:
                chain.append(before)
                if len(chain) == _LONGEST_CHAIN:
                    break
            if replacement := rule([one.layer for one in chain], self.weights):
                self._replace(chain[: replacement.length], replacement.layers)

    def _replace(self, chain: list[Node], layers: tuple[Layer, ...]) -> None:
        for node in chain[len(layers) :]:
            del self.nodes[node.name]
        before = (*((node.name,) for node in chain[1 : len(layers)]), chain[-1].inputs)
        for node, layer, inputs in zip(chain, layers, before, strict=False):
            self.nodes[node.name] = Node(node.name, layer, inputs)

    def _readers(self) -> Counter[str]:
        readers = Counter(name for node in self.nodes.values() for name in node.inputs)
        readers[self._output] += 1
        return readers

    def finished(self) -> tuple[tuple[Node, ...], dict[str, FloatArray]]:
        needed = {self._output}
        for node in reversed(self.nodes.values()):
            if node.name in needed:
                needed.update(node.inputs)
        kept = [node for node in self.nodes.values() if node.name in needed]
        names = {INPUT: INPUT}
        renamed: list[Node] = []
        weights: dict[str, FloatArray] = {}
        for number, node in enumerate(kept):
            name = names[node.name] = f"{number}.{kind_of(node.layer)}"
            layer = self._renamed(node.layer, name, weights)
            renamed.append(Node(name, layer, tuple(names[one] for one in node.inputs)))
        return tuple(renamed), weights

    def _renamed(self, layer: Layer, name: str, weights: dict[str, FloatArray]) -> Layer:
        """Return the layer with weights named after its node, and store them."""
        roles = [role for role in _ROLES if isinstance(getattr(layer, role, None), str)]
        for role in roles:
            weights[f"{name}.{role}"] = self.weights[getattr(layer, role)]
        return replace(layer, **{role: f"{name}.{role}" for role in roles})


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Replacement of layers, the last one first. length: number of layers it replaces."""

    length: int
    layers: tuple[Layer, ...]


_Weights: TypeAlias = dict[str, FloatArray]
_Rewriting: TypeAlias = Callable[[list[Layer], _Weights], _Replacement | None]
"""Rule from a layer and its predecessors, the nearest first, to the layers that replace them."""

_LONGEST_CHAIN = 3
_ROLES = ("weight", "bias", "scale", "shift", "slope")


def _joined_affines(chain: list[Layer], weights: _Weights) -> _Replacement | None:
    match chain:
        case [ChannelAffine(channels, ones, shift), ChannelAffine(_, scale, zeros), *_] if (
            weights[ones] == 1
        ).all() and not weights[zeros].any():
            return _Replacement(2, (ChannelAffine(channels, scale, shift),))
        case _:
            return None


def _affine_norm(chain: list[Layer], _: _Weights) -> _Replacement | None:
    match chain:
        case [
            ChannelAffine(_, scale, shift),
            (InstanceNorm(scale=None, shift=None) | GroupNorm(scale=None, shift=None)) as norm,
            *_,
        ]:
            return _Replacement(2, (replace(norm, scale=scale, shift=shift),))
        case _:
            return None


def _joined_crops(chain: list[Layer], _: _Weights) -> _Replacement | None:
    match chain:
        case [Crop(before, after), Crop(sooner, later), *_]:
            return _Replacement(2, (Crop(_sum_of(before, sooner), _sum_of(after, later)),))
        case _:
            return None


def _sum_of(one: Triple, other: Triple) -> Triple:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _padded_conv(chain: list[Layer], _: _Weights) -> _Replacement | None:
    match chain:
        case [Conv3d(padding=(0, 0, 0)) as conv, Pad("zero", before, after), *_] if (
            before == after and max(before) <= _MOST_PADDING
        ):
            return _Replacement(2, (replace(conv, padding=before),))
        case _:
            return None


def _filter_down(chain: list[Layer], weights: _Weights) -> _Replacement | None:
    conv = chain[0]
    if not isinstance(conv, Conv3d) or conv.groups != conv.in_channels or conv.bias is not None:
        return None
    taps = conv.kernel[0]
    if conv.dilation != _ONE or not 1 < taps <= _MOST_TAPS:
        return None
    length, mode, before, after = 1, "zero", conv.padding, conv.padding
    if len(chain) > 1 and isinstance(chain[1], Pad) and not any(conv.padding):
        length, mode, before, after = 2, chain[1].mode, chain[1].before, chain[1].after
    sampling = Downsample(taps, conv.stride, mode)
    is_filter = (sampling.before, sampling.after) == (before, after)
    if is_filter and np.array_equal(weights[conv.weight], sampling.weight(conv.in_channels)):
        return _Replacement(length, (sampling,))
    return None


def _filter_up(chain: list[Layer], weights: _Weights) -> _Replacement | None:
    """Replace doubling by the filter [1, 3, 3, 1] with replicated border: linear interpolation."""
    match chain:
        case [
            Crop((1, 1, 1), (1, 1, 1)),
            ConvTranspose3d(
                channels,
                kernel=(4, 4, 4),
                weight=weight,
                bias=None,
                stride=(2, 2, 2),
                padding=(2, 2, 2),
                output_padding=(0, 0, 0),
                dilation=(1, 1, 1),
                groups=groups,
            ),
            Pad("replicate", (1, 1, 1), (1, 1, 1)),
        ] if groups == channels:
            taps = weights[weight]
            gain = taps.sum() / (8 * channels)
            if not np.array_equal(taps, 8 * gain * _LINEAR.weight(channels)):
                return None
            doubled = Upsample("trilinear", _TWO)
            if gain == 1:
                return _Replacement(3, (doubled,))
            scale, shift = f"{weight}.gain", f"{weight}.none"
            weights[scale] = np.full(channels, gain, np.float32)
            weights[shift] = np.zeros(channels, np.float32)
            return _Replacement(3, (ChannelAffine(channels, scale, shift), doubled))
        case _:
            return None


_LINEAR = Downsample(4, _TWO, "zero")


_REWRITINGS: tuple[_Rewriting, ...] = (
    _joined_affines,
    _affine_norm,
    _joined_crops,
    _filter_down,
    _filter_up,
    _padded_conv,
)
