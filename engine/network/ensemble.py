"""Ensembles: several networks as one, whose output is the mean of theirs, and on request their
disagreement.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import asdict, replace

from ..errors import CheckpointError
from . import layers
from .graph import INPUT, Graph, Network, Node, times, weight_shapes
from .layers import FloatArray, Layer


def mean_network(
    networks: Sequence[Network], prefix: str = "", *, disagreement: bool = False
) -> Network:
    """Return one network that computes the mean of the networks' outputs for the same patch.

    prefix: beginning of the names of all nodes and weights, before the network's number and a dot.
    disagreement: whether as many channels follow with the mean absolute deviation of the outputs
    from their mean. If every network ends with a convolution and only the mean is computed, its
    weights are divided by the number of networks, so that only additions follow; otherwise layers
    scale the sums. One network is returned as it is. Raises CheckpointError if their channels
    differ, or the only patches that they take.
    """
    if len(networks) == 1:
        return networks[0]
    first, *others = graphs = [network.graph for network in networks]
    for graph in others:
        _check_alike(first, graph)
    members = [f"{prefix}{number}." for number in range(len(graphs))]
    last = [_weights_of_last(graph) for graph in graphs]
    share = len(graphs) if all(last) and not disagreement else 1
    nodes, weights = list[Node](), dict[str, FloatArray]()
    for network, member, divided in zip(networks, members, last, strict=True):
        nodes += (_renamed(node, member) for node in network.graph.nodes)
        for name, weight in network.weights.items():
            weights[member + name] = weight / np.float32(share) if name in divided else weight
    outputs = [member + graph.output for member, graph in zip(members, graphs, strict=True)]
    nodes += _sum("mean", outputs)
    if share == 1:
        channels = first.out_channels
        scaled = _Scaled(channels, 1 / len(graphs))
        nodes.append(scaled.node("mean", nodes[-1].name))
        weights |= scaled.weights("mean")
        if disagreement:
            nodes += _deviations(outputs, "mean")
            nodes.append(scaled.node("disagreement", nodes[-1].name))
            weights |= scaled.weights("disagreement")
            nodes.append(Node("joined", layers.Concat(), ("mean", "disagreement")))
    patch = next((graph.patch for graph in graphs if graph.patch), None)
    return Network(Graph(first.in_channels, tuple(nodes), patch), weights)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Layer that multiplies all channels by a number."""

    channels: int
    factor: float

    def node(self, name: str, source: str) -> Node:
        layer = layers.ChannelAffine(self.channels, f"{name}.scale", f"{name}.shift")
        return Node(name, layer, (source,))

    def weights(self, name: str) -> dict[str, FloatArray]:
        scale = np.full(self.channels, self.factor, np.float32)
        return {f"{name}.scale": scale, f"{name}.shift": np.zeros(self.channels, np.float32)}


def _sum(name: str, outputs: Sequence[str]) -> Iterator[Node]:
    """Yield nodes, the last of which adds up all outputs."""
    total, *more = outputs
    for number, output in enumerate(more, 1):
        yield Node(f"{name}.{number}", layers.Add(), (total, output))
        total = f"{name}.{number}"


def _deviations(outputs: Sequence[str], mean: str) -> Iterator[Node]:
    """Yield nodes, the last of which adds up the absolute deviations of all outputs."""
    absolute = list[str]()
    for number, output in enumerate(outputs):
        yield Node(f"deviation.{number}", layers.Subtract(), (output, mean))
        absolute.append(f"absolute.{number}")
        yield Node(absolute[-1], layers.LeakyRelu(-1.0), (f"deviation.{number}",))
    yield from _sum("deviations", absolute)


def _check_alike(first: Graph, other: Graph) -> None:
    one, another = ((graph.in_channels, graph.out_channels) for graph in (first, other))
    if one != another:
        raise CheckpointError(
            f"The networks have {one[0]} and {another[0]} input channels, and {one[1]} and "
            f"{another[1]} output channels; only networks of the same channels have a mean."
        )
    if first.patch and other.patch and first.patch != other.patch:
        raise CheckpointError(
            f"The networks were exported for patches of {times(first.patch)} and "
            f"{times(other.patch)}; export them for patches of one size."
        )


def _weights_of_last(graph: Graph) -> set[str]:
    """Return the weights of the convolution that a graph ends with, if it alone reads them."""
    last = graph.nodes[-1].layer
    if not isinstance(last, layers.Conv3d | layers.ConvTranspose3d):
        return set()
    uses = Counter(name for node in graph.nodes for name, _ in weight_shapes(node.layer))
    names = {name for name, _ in weight_shapes(last)}
    return names if all(uses[name] == 1 for name in names) else set()


def _renamed(node: Node, prefix: str) -> Node:
    inputs = tuple(name if name == INPUT else prefix + name for name in node.inputs)
    return Node(prefix + node.name, _with_weights_renamed(node.layer, prefix), inputs)


def _with_weights_renamed(layer: Layer, prefix: str) -> Layer:
    names = {name for name, _ in weight_shapes(layer)}
    fields = {field: value for field, value in asdict(layer).items() if value in names}
    return replace(layer, **{field: prefix + value for field, value in fields.items()})
