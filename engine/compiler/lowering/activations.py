"""Layers that act on one number at a time, as kernels do them."""

from ...network.layers import Elu, Layer, LeakyRelu, Relu, Sigmoid, Tanh
from ..steps import Activation


def activation_of(layer: Layer) -> Activation | None:
    """What a kernel does for a layer; None where the layer is no activation."""
    match layer:
        case Relu():
            return Activation(0.0)
        case LeakyRelu(slope):
            return Activation(slope)
        case Elu(alpha):
            return Activation(alpha, "elu")
        case Tanh():
            return Activation(curve="tanh")
        case Sigmoid():
            return Activation(curve="sigmoid")
        case _:
            return None
