"""Activations that a graph states by several layers and a GPU computes as one, such as GELU.

They are recognised by their values: the layers between a tensor and a product are computed on
sample numbers, and compared with the activations that kernels have. So neither the order of the
operators in a file nor the place of its factors matters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import erf, log, pi, sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...network.graph import Network, Node
from ...network.layers import (
    ActivationLayer,
    Add,
    ChannelAffine,
    Clip,
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
from ..steps import Activation

_Numbers: TypeAlias = npt.NDArray[np.float64]
_Between: TypeAlias = ActivationLayer | ChannelAffine | Add | Subtract | Multiply
"""Layer of which a compound may consist."""

_MOST_LAYERS = 12
"""Most layers of which a compound consists; the tanh form of GELU has 9."""


@dataclass(frozen=True, slots=True)
class CompoundActivation:
    """A node whose values are an activation of those of an earlier node.

    source: name of the earlier node.
    """

    source: str
    activation: Activation


def compound_activations(
    network: Network,
) -> tuple[dict[str, CompoundActivation], frozenset[str]]:
    """Return the compounds by node, and the nodes that nothing else reads."""
    nodes = {node.name: node for node in network.graph.nodes}
    found = {
        node.name: compound
        for node in network.graph.nodes
        if (compound := _recognised(node, nodes, network.weights))
    }
    needed = {network.graph.output}
    for node in reversed(network.graph.nodes):
        if node.name in needed:
            compound = found.get(node.name)
            needed.update([compound.source] if compound else node.inputs)
    return found, frozenset(nodes.keys() - needed)


def _recognised(
    node: Node, nodes: Mapping[str, Node], weights: Mapping[str, FloatArray]
) -> CompoundActivation | None:
    """Return a product, or a product with a factor, as an activation; None if it is none."""
    product = nodes.get(node.inputs[0]) if isinstance(node.layer, ChannelAffine) else node
    if product is None or not isinstance(product.layer, Multiply):
        return None
    for source, between in _sources(node, nodes):
        values = _values(source, between, weights) if product in between else None
        if values is not None and (activation := _activation_of(values)):
            return CompoundActivation(source, activation)
    return None


def _sources(node: Node, nodes: Mapping[str, Node]) -> Iterator[tuple[str, Sequence[Node]]]:
    """Yield each tensor on which alone a node's values depend, the nearest first, and the nodes
    between in the order of computation.
    """
    order = {name: number for number, name in enumerate(nodes)}
    between, ends = [node], {*node.inputs}
    while len(between) <= _MOST_LAYERS:
        if len(ends) == 1:
            yield next(iter(ends)), between[::-1]
        last = nodes.get(max(ends, key=lambda name: order.get(name, -1)))
        if last is None or not isinstance(last.layer, _Between):
            return
        between.append(last)
        ends = (ends - {last.name}) | {*last.inputs}


_ABOVE_0 = np.array([1.0, *np.geomspace(1e-3, 12.0, 24), *np.geomspace(15.0, 1e4, 8)])
_POINTS = np.array([*_ABOVE_0, *-_ABOVE_0, 0.0])
"""Arguments by which activations are compared; the first is 1."""

_EXACTNESS = 1e-6
"""Largest difference of two activations, as a share of the argument; factors are in float32."""


def _values(
    source: str, between: Sequence[Node], weights: Mapping[str, FloatArray]
) -> _Numbers | None:
    """Return what layers make of `_POINTS`; None if they treat channels differently."""
    values = {source: _POINTS}
    with np.errstate(all="ignore"):
        for node in between:
            inputs = [values[name] for name in node.inputs]
            if isinstance(node.layer, ChannelAffine):
                scale, shift = (weights[name] for name in (node.layer.scale, node.layer.shift))
                if (scale != scale[0]).any() or (shift != shift[0]).any():
                    return None
                values[node.name] = inputs[0] * float(scale[0]) + float(shift[0])
            else:
                values[node.name] = _computed(node, inputs)
    return values[between[-1].name]


def _computed(node: Node, inputs: Sequence[_Numbers]) -> _Numbers:
    x = inputs[0]
    match node.layer:
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
            return _sigmoid(x)
        case Erf():
            return _erf(x)
        case Exp():
            return np.exp(x)
        case Inverse(low, root):
            return np.maximum(x, low) ** (-0.5 if root else -1.0)
        case other:
            raise AssertionError(other)


def _sigmoid(x: _Numbers) -> _Numbers:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _erf(x: _Numbers) -> _Numbers:
    return np.array([erf(each) for each in x])


_TANH_GELU = Activation(sqrt(8 / pi), "swish", cube=0.044715 * sqrt(8 / pi))
_SHARES: Sequence[tuple[Activation, Callable[[_Numbers], _Numbers]]] = (
    (Activation(curve="gelu"), lambda x: 0.5 + 0.5 * _erf(x * sqrt(0.5))),
    (_TANH_GELU, lambda x: _sigmoid(_TANH_GELU.slope * x + _TANH_GELU.cube * x**3)),
    (Activation(curve="hard_swish"), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    (Activation(curve="mish"), lambda x: np.tanh(np.logaddexp(0, x))),
)
"""Activations without further numbers, and the share of the argument that each of them is."""


def _activation_of(values: _Numbers) -> Activation | None:
    """Return the activation that has these values at `_POINTS`."""
    for activation, share in _SHARES:
        if _are_alike(values, share(_POINTS)):
            return activation
    at_one = float(values[0])
    if not 0 < at_one < 1:
        return None
    slope = float(np.float32(log(at_one / (1 - at_one))))
    is_swish = _are_alike(values, _sigmoid(slope * _POINTS))
    return Activation(slope, "swish") if is_swish else None


def _are_alike(values: _Numbers, share: _Numbers) -> bool:
    """Return whether values are this share of their arguments."""
    return bool((np.abs(values - _POINTS * share) <= _EXACTNESS * np.abs(_POINTS)).all())
