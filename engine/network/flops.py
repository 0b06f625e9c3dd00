"""How much arithmetic a graph is, and how much it holds while it runs."""

from math import prod

from .graph import INPUT, Graph, Node
from .layer_shapes import TensorShape
from .layers import Conv3d, ConvTranspose3d, Downsample, Triple


def flops(graph: Graph, patch: Triple) -> int:
    """Floating-point operations of all convolutions and filters on one patch (D, H, W).

    A multiplication and an addition count as two, also where the kernel meets padding. All other
    layers together are below one percent of it in every generator of this family.
    """
    return sum(layer_flops(graph, patch).values())


def layer_flops(graph: Graph, patch: Triple) -> dict[str, int]:
    """The same for each of these layers by the name of its node."""
    shapes = graph.shapes(patch)
    return {
        node.name: _flops(node, shapes[node.inputs[0]], shapes[node.name])
        for node in graph.nodes
        if isinstance(node.layer, Conv3d | ConvTranspose3d | Downsample)
    }


def held_bytes(graph: Graph, patch: Triple) -> int:
    """The most that the float32 tensors of one patch (D, H, W) take at the same time.

    A tensor is held from the layer that makes it to the last one that reads it; what a layer needs
    for itself comes on top.
    """
    sizes = {
        name: 4 * shape.channels * prod(shape.extents)
        for name, shape in graph.shapes(patch).items()
    }
    last_read = {name: node.name for node in graph.nodes for name in node.inputs}
    held = most = sizes[INPUT]
    for node in graph.nodes:
        held += sizes[node.name]
        most = max(most, held)
        held -= sum(sizes[name] for name in set(node.inputs) if last_read[name] == node.name)
    return most


def _flops(node: Node, read: TensorShape, made: TensorShape) -> int:
    match node.layer:
        case Conv3d(kernel=kernel, groups=groups):
            positions = prod(made.extents)
        case ConvTranspose3d(kernel=kernel, groups=groups):
            positions = prod(read.extents)
        case Downsample(taps=taps):
            return 2 * made.channels * taps**3 * prod(made.extents)
        case _:
            return 0
    return 2 * read.channels * made.channels * prod(kernel) * positions // groups
