"""Values of voxelwise layers for a few sample voxels, in double precision."""

from collections.abc import Callable, Sequence
from math import erf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...network.graph import Node
from ...network.layers import (
    ActivationLayer,
    Add,
    ChannelAffine,
    Clip,
    Conv3d,
    Elu,
    Erf,
    Exp,
    FloatArray,
    Inverse,
    LeakyRelu,
    Multiply,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
    Tanh,
)

SampleValues: TypeAlias = npt.NDArray[np.float64]
ComputedLayer: TypeAlias = ActivationLayer | ChannelAffine | Conv3d | Add | Subtract | Multiply


def layer_values(
    source: str,
    voxels: SampleValues,
    nodes: Sequence[Node],
    weight: Callable[[str], FloatArray],
) -> SampleValues:
    """Return the values [voxels, C] of the last of some nodes.

    source: the only tensor that they read besides each other. voxels: its values, [voxels, C].
    weight: returns a weight by its name; that of a convolution is of single voxels.
    """
    values = {source: voxels}
    with np.errstate(all="ignore"):
        for node in nodes:
            inputs = [values[name] for name in node.inputs]
            values[node.name] = _computed(node, inputs, weight)
    return values[nodes[-1].name]


def sigmoid(x: SampleValues) -> SampleValues:
    """Return 1 / (1 + exp(-x))."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def error_function(x: SampleValues) -> SampleValues:
    """Return the error function, which NumPy lacks."""
    return np.array([erf(each) for each in x.ravel()]).reshape(x.shape)


def _computed(
    node: Node, inputs: Sequence[SampleValues], weight: Callable[[str], FloatArray]
) -> SampleValues:
    x = inputs[0]
    match node.layer:
        case Conv3d(weight=kernel, bias=bias):
            products = x @ weight(kernel)[:, :, 0, 0, 0].T.astype(np.float64)
            return products + weight(bias) if bias else products
        case ChannelAffine(_, scale, shift):
            return x * weight(scale).astype(np.float64) + weight(shift)
        case Add():
            return x + inputs[1]
        case Subtract():
            return x - inputs[1]
        case Multiply():
            return x * inputs[1]
        case Relu():
            return np.maximum(x, 0)
        case LeakyRelu(slope):
            return np.where(x < 0, slope * x, x)
        case Elu(alpha):
            return np.where(x < 0, alpha * np.expm1(x), x)
        case Softplus():
            return np.logaddexp(0, x)
        case Clip(low, high):
            return np.clip(x, -np.inf if low is None else low, np.inf if high is None else high)
        case Tanh():
            return np.tanh(x)
        case Sigmoid():
            return sigmoid(x)
        case Erf():
            return error_function(x)
        case Exp():
            return np.exp(x)
        case Inverse(low, root):
            return np.maximum(x, low) ** (-0.5 if root else -1.0)
        case other:
            raise AssertionError(other)
