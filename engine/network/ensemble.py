"""Ensembles: several networks as one, whose output is the mean of theirs."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import asdict, replace

from ..errors import CheckpointError
from .graph import INPUT, Graph, Network, Node, times, weight_shapes
from .layers import Add, ChannelAffine, Conv3d, ConvTranspose3d, FloatArray, Layer


def mean_network(networks: Sequence[Network], prefix: str = "") -> Network:
    """Return one network that computes the mean of the networks' outputs for the same patch.

    prefix: beginning of the names of all nodes and weights, before the network's number and a dot.
    If every network ends with a convolution, its weights are divided by the number of networks,
    so that only additions follow; otherwise a layer scales the sum. One network is returned as it
    is. Raises CheckpointError if their channels differ, or the only patches that they take.
    """
    if len(networks) == 1:
        return networks[0]
    first, *others = graphs = [network.graph for network in networks]
    for graph in others:
        _check_alike(first, graph)
    members = [f"{prefix}{number}." for number in range(len(graphs))]
    last = [_weights_of_last(graph) for graph in graphs]
    share = len(graphs) if all(last) else 1
    nodes, weights = list[Node](), dict[str, FloatArray]()
    for network, member, divided in zip(networks, members, last, strict=True):
        nodes += (_renamed(node, member) for node in network.graph.nodes)
        for name, weight in network.weights.items():
            weights[member + name] = weight / np.float32(share) if name in divided else weight
    total, *more = [member + graph.output for member, graph in zip(members, graphs, strict=True)]
    for number, output in enumerate(more, 1):
        nodes.append(Node(f"mean.{number}", Add(), (total, output)))
        total = f"mean.{number}"
    if share == 1:
        channels = first.out_channels
        nodes.append(Node("mean", ChannelAffine(channels, "mean.scale", "mean.shift"), (total,)))
        weights["mean.scale"] = np.full(channels, 1 / len(graphs), np.float32)
        weights["mean.shift"] = np.zeros(channels, np.float32)
    patch = next((graph.patch for graph in graphs if graph.patch), None)
    return Network(Graph(first.in_channels, tuple(nodes), patch), weights)


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
    if not isinstance(last, Conv3d | ConvTranspose3d):
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
