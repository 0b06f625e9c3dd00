"""Activations as layers; those that no layer is are made of several."""

from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np

from ...network.layers import (
    Clip,
    Elu,
    Erf,
    Layer,
    LeakyRelu,
    Multiply,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Tanh,
)
from .builder import Builder, word
from .file import Operator
from .folding import number
from .norms import single
from .values import GraphTensor

_SIMPLE: Mapping[str, Layer] = {
    "Erf": Erf(),
    "Relu": Relu(),
    "Sigmoid": Sigmoid(),
    "Softplus": Softplus(),
    "Tanh": Tanh(),
}

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
_GELU_CUBE = 0.044715


def activate(builder: Builder, operator: Operator) -> GraphTensor:
    """Activations that are one layer."""
    match operator.kind:
        case "LeakyRelu":
            layer: Layer = LeakyRelu(rounded(number(operator, "alpha", 0.01)))
        case "Elu":
            layer = Elu(rounded(number(operator, "alpha", 1.0)))
        case kind:
            layer = _SIMPLE[kind]
    return builder.add(operator, layer, builder.tensor(operator))


def rounded(value: float) -> float:
    """A float32 as the shortest number that is it: 0.01, not 0.009999999776."""
    return float(str(np.float32(value)))


def prelu(builder: Builder, operator: Operator) -> GraphTensor:
    """PRelu of one slope, or of one for each channel."""
    source, slopes = builder.tensor(operator), builder.weight(operator, 1)
    if (one := single(slopes)) is not None:
        return builder.add(operator, LeakyRelu(rounded(one)), source)
    slope = builder.keep("slope", builder.per_channel(operator, slopes, source))
    return builder.add(operator, PRelu(source.channels, slope), source)


def gelu(builder: Builder, operator: Operator) -> GraphTensor:
    """x times the normal distribution function of x, or what is near it by a tanh."""
    source = builder.tensor(operator)
    if word(operator, "approximate", "none") == "tanh":
        square = builder.add(operator, Multiply(), source, source)
        grown = builder.uniform(operator, square, _GELU_CUBE * sqrt(2 / np.pi), sqrt(2 / np.pi))
        bent = builder.add(operator, Tanh(), builder.add(operator, Multiply(), grown, source))
    else:
        bent = builder.add(operator, Erf(), builder.uniform(operator, source, sqrt(0.5), 0.0))
    share = builder.uniform(operator, bent, 0.5, 0.5)
    return builder.add(operator, Multiply(), source, share)


def hard_sigmoid(builder: Builder, operator: Operator) -> GraphTensor:
    """A straight line that is kept from 0 to 1."""
    slope, middle = number(operator, "alpha", 0.2), number(operator, "beta", 0.5)
    line = builder.uniform(operator, builder.tensor(operator), slope, middle)
    return builder.add(operator, Clip(0.0, 1.0), line)


def hard_swish(builder: Builder, operator: Operator) -> GraphTensor:
    """x times the hard sigmoid that rises from -3 to 3."""
    source = builder.tensor(operator)
    line = builder.uniform(operator, source, 1 / 6, 0.5)
    return builder.add(operator, Multiply(), source, builder.add(operator, Clip(0.0, 1.0), line))


def mish(builder: Builder, operator: Operator) -> GraphTensor:
    """x tanh(softplus(x))."""
    source = builder.tensor(operator)
    soft = builder.add(operator, Softplus(), source)
    return builder.add(operator, Multiply(), source, builder.add(operator, Tanh(), soft))


def swish(builder: Builder, operator: Operator) -> GraphTensor:
    """x sigmoid(alpha x)."""
    source = builder.tensor(operator)
    scaled = builder.uniform(operator, source, number(operator, "alpha", 1.0), 0.0)
    return builder.add(operator, Multiply(), source, builder.add(operator, Sigmoid(), scaled))


def scaled_elu(builder: Builder, operator: Operator) -> GraphTensor:
    """Selu, an Elu times gamma."""
    alpha, gamma = number(operator, "alpha", _SELU_ALPHA), number(operator, "gamma", _SELU_GAMMA)
    made = builder.add(operator, Elu(rounded(alpha)), builder.tensor(operator))
    return builder.uniform(operator, made, gamma, 0.0)


def continuous_elu(builder: Builder, operator: Operator) -> GraphTensor:
    """Celu, alpha times the Elu of x / alpha."""
    alpha = number(operator, "alpha", 1.0)
    narrow = builder.uniform(operator, builder.tensor(operator), 1 / alpha, 0.0)
    return builder.uniform(operator, builder.add(operator, Elu(), narrow), alpha, 0.0)


ACTIVATIONS: Mapping[str, Callable[[Builder, Operator], GraphTensor]] = {
    **dict.fromkeys((*_SIMPLE, "LeakyRelu", "Elu"), activate),
    "PRelu": prelu,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Mish": mish,
    "Swish": swish,
    "Selu": scaled_elu,
    "Celu": continuous_elu,
}
"""Operators of ONNX that are activations, each by what makes layers of it."""
