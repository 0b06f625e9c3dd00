"""Elementwise layers as kernel activations."""

from math import inf

from ...network.layers import Clip, Elu, Erf, Layer, LeakyRelu, Relu, Sigmoid, Softplus, Tanh
from ..steps import Activation


def activation_of(layer: Layer) -> Activation | None:
    """Return the kernel activation of a layer; None if it needs more than a few numbers."""
    match layer:
        case Relu():
            return Activation(0.0)
        case LeakyRelu(slope):
            return Activation(slope)
        case Elu(alpha):
            return Activation(alpha, "elu")
        case Softplus():
            return Activation(curve="softplus")
        case Clip(low, high):
            ends = -inf if low is None else low, inf if high is None else high
            return Activation(curve="clip", low=ends[0], high=ends[1])
        case Tanh():
            return Activation(curve="tanh")
        case Sigmoid():
            return Activation(curve="sigmoid")
        case Erf():
            return Activation(curve="erf")
        case _:
            return None
