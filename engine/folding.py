"""Normalisation by stored statistics folded into the convolution before it."""

from collections import Counter
from dataclasses import replace

import numpy as np

from .graph import (
    ChannelAffine,
    Conv3d,
    ConvTranspose3d,
    FloatArray,
    Graph,
    Network,
    Node,
)


def fold_norms(network: Network) -> Network:
    """The same function with each ChannelAffine folded into a convolution that feeds only it.

    scale * (W x + b) + shift = (scale W) x + (scale b + shift); the numbers are combined in
    float64. A ChannelAffine behind anything else stays.
    """
    graph = network.graph
    by_name = {node.name: node for node in graph.nodes}
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    weights = dict(network.weights)
    folded: dict[str, Node] = {}
    for node in graph.nodes:
        before = by_name.get(node.inputs[0])
        if before is None or uses[before.name] != 1:
            continue
        if isinstance(node.layer, ChannelAffine) and isinstance(
            before.layer, Conv3d | ConvTranspose3d
        ):
            layer = _folded(before.layer, node.layer, before.name, weights)
            folded[before.name] = Node(node.name, layer, before.inputs)
    # The convolution moves to the norm's place and takes its name, so readers need no change.
    names = {node.name: name for name, node in folded.items()}
    nodes = [
        folded[names[node.name]] if node.name in names else node
        for node in graph.nodes
        if node.name not in folded
    ]
    used = Graph(graph.in_channels, tuple(nodes))
    kept = {name for name, _ in used.weight_shapes()}
    return Network(used, {name: array for name, array in weights.items() if name in kept})


def _folded(
    convolution: Conv3d | ConvTranspose3d,
    norm: ChannelAffine,
    name: str,
    weights: dict[str, FloatArray],
) -> Conv3d | ConvTranspose3d:
    """The convolution with the norm in it; its new numbers are added to `weights`."""
    scale = weights[norm.scale].astype(np.float64)
    shift = weights[norm.shift].astype(np.float64)
    out_axis = 0 if isinstance(convolution, Conv3d) else 1
    along = [1] * 5
    along[out_axis] = -1
    bias = weights[convolution.bias] if convolution.bias else 0.0
    weight_name, bias_name = f"{name}.folded.weight", f"{name}.folded.bias"
    weights[weight_name] = np.asarray(
        weights[convolution.weight] * scale.reshape(along), np.float32
    )
    weights[bias_name] = np.asarray(scale * bias + shift, np.float32)
    return replace(convolution, weight=weight_name, bias=bias_name)
