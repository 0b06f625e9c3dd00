"""An operator graph converted to a layer graph with its weights.

Operators become layers by `RULES`, or are folded if they do not depend on the patch.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ...errors import CheckpointError, PatchShapeError, naming
from ...network.graph import INPUT, Graph, Network, times
from ...network.layers import Triple, added, multiplied, triple
from .channel_ops import ATTENTION, CHANNEL_RULES
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
from .operator_graph import Condition, Operator, OperatorGraph
from .rewriting import simplified
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
_DENSE = f"multiplies a matrix of the whole patch, as a dense layer does; {WHOLE_PATCH}"
_BRANCH = (
    "is a branch or a loop, as scripted functions leave it in ONNX; save the network with "
    "torch.export and import the .pt2 file"
)
_RANDOM = (
    "draws random numbers, so no two results would be alike; export the generator with the mean in "
    "their place"
)
_SINGLE_VOXELS = (
    "picks voxels by their indices, as exporters of ONNX write the sampling nearest-exact; save "
    "the network with torch.export and import the .pt2 file, or write it as nearest, which is the "
    "same for whole factors"
)
_BY_CONSTANT = (
    "multiplies a tensor by a constant along some axes, which is not supported; write it as a "
    "convolution with a kernel of 1, or as a linear layer of the channels"
)
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _SQUEEZE),
    **dict.fromkeys(("Einsum", "Attention"), ATTENTION),
    "Gemm": _DENSE,
    **dict.fromkeys(("If", "Loop", "Scan"), _BRANCH),
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
    graph = network.graph
    if not all(_is_same_at(file, axes, graph, extents) for extents in _other_extents(graph, tried)):
        reason = f"its layers differ for patches other than {times(tried)}"
        return ConvertedGraph(_fixed(network, tried), reason)
    sampled = _sampled_extents(graph.stride, tried, file.exported or tried)
    if limit := _first_broken(file, graph, sampled):
        reason = f"the network's code has branches; this one is for patches of which {limit.text}"
        return ConvertedGraph(_fixed(network, tried), reason)
    return ConvertedGraph(network, "")


def _other_extents(graph: Graph, patch: Triple) -> Iterator[Triple]:
    """Yield patches that are larger along each axis, by different amounts, and long along one."""
    for axis in range(3):
        steps = triple(2 if at == axis else 1 + (at > axis) for at in range(3))
        longer = triple(_LONG if at == axis else 1 for at in range(3))
        yield added(multiplied(patch, longer), multiplied(graph.stride, steps))


_LONG = 4


def _is_same_at(file: OperatorGraph, axes: tuple[int, ...], graph: Graph, extents: Triple) -> bool:
    try:
        return _network_at(file, axes, extents).graph == graph
    except CheckpointError:
        return False


def _first_broken(file: OperatorGraph, graph: Graph, patches: Iterable[Triple]) -> Condition | None:
    """Return a condition of the file that one of these patches breaks, of those the network takes.

    Only patches count whose maps are one voxel thin where those of the exported one are: PyTorch
    states conditions on such maps, too, which change nothing.
    """
    if not file.conditions:
        return None
    thin = _thin_maps(graph, file.exported) if file.exported else None
    for patch in patches:
        broken = next((one for one in file.conditions if not one.holds(patch)), None)
        if broken and _thin_maps(graph, patch) == (thin or set()):
            return broken
    return None


def _thin_maps(graph: Graph, patch: Triple) -> set[tuple[str, int]] | None:
    """Return names and axes of the maps that are one voxel thin; None if the network takes no such
    patch.
    """
    try:
        graph.check_patch(patch)
    except PatchShapeError:
        return None
    return {
        (name, axis)
        for name, shape in graph.shapes(patch).items()
        for axis, extent in enumerate(shape.extents)
        if extent == 1
    }


def _sampled_extents(stride: Triple, patch: Triple, exported: Triple) -> Iterator[Triple]:
    """Yield patches that differ along one axis, or along all.

    None is smaller than the exported one and than so many steps of the stride, as conditions of
    outputs that are not used, deeper than those that are, are broken by small ones.
    """
    fewest = triple(
        min(extent, _FEWEST * step) for extent, step in zip(exported, stride, strict=True)
    )
    for count in _COUNTS:
        scaled = triple(step * count for step in stride)
        ways = [
            triple(scaled[at] if at == axis else patch[at] for at in range(3)) for axis in range(3)
        ]
        for extents in (scaled, *ways):
            if all(extent >= few for extent, few in zip(extents, fewest, strict=True)):
                yield extents


_FEWEST = 16
_COUNTS = (*range(1, 33), 40, 48, 64, 80, 96, 128, 256)
"""Extents that are tried, in steps of the stride: each small one, as code may count modulo them."""


def _fixed(network: Network, patch: Triple) -> Network:
    graph = network.graph
    return Network(Graph(graph.in_channels, graph.nodes, patch), network.weights)


def _network_at_any(
    file: OperatorGraph, axes: tuple[int, ...], patch: Triple | None, named: tuple[int | None, ...]
) -> tuple[Network, Triple]:
    """Return the network for the patch, or for the first usual one that fits, and that patch."""
    usual = [(edge, edge, edge) for edge in _USUAL_EXTENTS]
    asked = [patch] if patch else [*usual, *([file.exported] if file.exported else [])]
    refusals: list[str] = []  # not the errors, whose frames hold all arrays
    for extents in asked:
        d, h, w = (known or wanted for known, wanted in zip(named, extents, strict=True))
        try:
            network = _network_at(file, axes, (d, h, w))
            _check_conditions(file, network.graph, (d, h, w))
        except CheckpointError as error:
            refusals.append(str(error))
        else:
            return network, (d, h, w)
    raise CheckpointError(refusals[0])


def _check_conditions(file: OperatorGraph, graph: Graph, patch: Triple) -> None:
    """Raise CheckpointError for a patch for which the file's operators are those of another."""
    if broken := _first_broken(file, graph, [patch]):
        raise CheckpointError(
            f"The network's code has branches; the file holds the one for patches of which "
            f"{broken.text}, unlike {times(patch)}. Export it for a patch of these extents, or "
            "import it for another."
        )


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
    nodes, weights = simplified(builder.nodes, builder.weights, output.node)
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
    viewed = inputs[0] if inputs else None
    if operator.kind in ("Shape", "Size") and isinstance(viewed, _SHAPED):
        shape = viewed.moved_shape if isinstance(viewed, MovedView) else viewed.shape
        output: GraphValue | list[GraphTensor] = (
            shape_of(operator, shape) if operator.kind == "Shape" else np.array(prod(shape))
        )
    elif len(arrays) == len(inputs):
        if operator.kind not in FOLDABLE:
            raise operator.refusal(_REASONS.get(operator.kind, "is not supported on constants"))
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
    builder.makers.update(dict.fromkeys(operator.outputs, operator))
    if extra := [name for name in operator.outputs[len(results) :] if name]:
        builder.missing.update(dict.fromkeys(extra, operator))


def _unsupported(builder: Builder, operator: Operator) -> CheckpointError:
    """Return an error about an operator, which for an ONNX file also names all others like it."""
    values = [builder.value(operator, at) for at in range(len(operator.inputs))]
    if operator.kind == "Einsum" and any(isinstance(value, np.ndarray) for value in values):
        reason = _BY_CONSTANT
    else:
        reason = _REASONS.get(operator.kind, "is not supported")
    if operator.origin:
        return operator.refusal(reason)
    others = sorted(set(builder.kinds) - RULES.keys() - FOLDABLE - {operator.kind})
    also = f"; also not supported: {', '.join(others)}" if others else ""
    return operator.refusal(f"{reason}{also}; supported operators: docs/onnx.md")


def operators_of(file: OperatorGraph) -> dict[str, int]:
    """Count each type of operator, the most frequent first."""
    return dict(Counter(file.kinds).most_common())
