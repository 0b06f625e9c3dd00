"""Convert a network for patches that are blocks of one volume: each border becomes a padding layer.

Blocks are continued by their neighbours, and the volume by the padding, when the operand of a
convolution is written. So no convolution pads by itself.
"""

from msgspec import structs

from ...network.graph import Graph, Network, Node, TensorShape
from ...network.layers import Conv3d, Downsample, Layer, Pad, Triple, triple

_NONE: Triple = (0, 0, 0)

_LARGEST_VOLUME = 1024
"""Edge of the largest volume for which bounds of values are guaranteed; beyond it a number may
overflow, which a run reports, if nearly all voxels of a feature map are alike.
"""


def with_halos(network: Network) -> Network:
    """Return the same network with the zeros around its convolutions as layers."""
    nodes: list[Node] = []
    for node in network.graph.nodes:
        conv = node.layer
        if isinstance(conv, Conv3d) and any(conv.padding):
            halo = f"{node.name}.halo"
            nodes.append(Node(halo, Pad("zero", conv.padding, conv.padding), node.inputs))
            node = Node(node.name, structs.replace(conv, padding=_NONE), (halo,))
        nodes.append(node)
    return Network(Graph(network.graph.in_channels, tuple(nodes)), network.weights)


def block_shapes(graph: Graph, block: Triple) -> dict[str, TensorShape]:
    """Return the shape of every node's tensor for one block, which may be smaller than its mirrored
    border.
    """
    nodes = tuple(Node(n.name, _unmirrored(n.layer), n.inputs) for n in graph.nodes)
    return Graph(graph.in_channels, nodes).shapes(block)


def _unmirrored(layer: Layer) -> Layer:
    match layer:
        case Pad() | Downsample():
            return structs.replace(layer, mode="zero")
        case _:
            return layer


def largest_volume(graph: Graph) -> Triple:
    """Return the extents for which values are bounded, whatever the extents of a volume."""
    return triple(-(-_LARGEST_VOLUME // step) * step for step in graph.stride)
