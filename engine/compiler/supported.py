"""Which layers a card computes, and in which words those that it does not are refused."""

from collections.abc import Iterator

from ..errors import UnsupportedLayerError
from ..network.graph import Graph
from ..network.layers import (
    Channels,
    Clip,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Layer,
    Multiply,
    Pool,
    PRelu,
    Softplus,
    Subtract,
)


def check_supported(graph: Graph) -> None:
    """Raise UnsupportedLayerError, which names them, if there are layers that no card computes."""
    if missing := unsupported(graph):
        raise UnsupportedLayerError(missing)


def unsupported(graph: Graph) -> tuple[str, ...]:
    """Operators of a network that no card computes, each once."""
    found = (word for node in graph.nodes for word in _obstacles(node.layer))
    return tuple(sorted(set(found)))


def _obstacles(layer: Layer) -> Iterator[str]:
    match layer:
        case Conv3d(groups=groups) if groups > 1:
            yield "Conv of several groups"
        case ConvTranspose3d(dilation=dilation, groups=groups):
            if groups > 1:
                yield "ConvTranspose of several groups"
            if dilation != (1, 1, 1):
                yield "ConvTranspose with dilation"
        case Pool(mode):
            yield "MaxPool" if mode == "largest" else "AveragePool"
        case PRelu():
            yield "PRelu of several slopes"
        case Softplus() | Clip():
            yield type(layer).__name__
        case Subtract():
            yield "Sub of two tensors"
        case Multiply():
            yield "Mul of two tensors"
        case Crop():
            yield "Slice of D, H and W"
        case Channels():
            yield "Slice of channels"
        case _:
            pass
