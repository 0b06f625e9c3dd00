"""Activations and norms that a graph states by several layers and a GPU computes as one.

GELU and its kin are such activations; a layer norm over the channels of each voxel is such a norm.
They are recognised by their values: the layers between a tensor and a product are computed for
sample voxels, and the results compared with the activations and the norm that kernels have. So
neither the order of the operators in a file nor the place of its factors matters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, pi, sqrt
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from ...network.graph import Network, Node
from ...network.layers import (
    ONES,
    ZEROS,
    ActivationLayer,
    ChannelAffine,
    Conv3d,
    FloatArray,
    Inverse,
    Multiply,
)
from ..kernels.pointwise import MOST_NORMALISED
from ..steps import Activation
from .layer_values import ComputedLayer, SampleValues, error_function, layer_values, sigmoid


@dataclass(frozen=True, slots=True)
class VoxelNorm:
    """(x - mean) / sqrt(variance + epsilon) over the channels of each voxel, times scale, plus
    shift.

    scale, shift: names of weights [C]; None without.
    """

    epsilon: float
    scale: str | None = None
    shift: str | None = None


@dataclass(frozen=True, slots=True)
class Compound:
    """A node whose values are an activation or a norm of those of an earlier node.

    source: name of the earlier node. operation: by which its values follow.
    """

    source: str
    operation: Activation | VoxelNorm


Compounds: TypeAlias = tuple[Mapping[str, Compound], frozenset[str]]
"""Compounds by node, and the nodes that nothing else reads."""

_FOUND: WeakKeyDictionary[Network, Compounds] = WeakKeyDictionary()


def compound_layers(network: Network) -> Compounds:
    """Return the compounds of a network, which are found once, as it is lowered several times."""
    if network not in _FOUND:
        _FOUND[network] = _compounds(network)
    return _FOUND[network]


def _compounds(network: Network) -> Compounds:
    parts, found = _Parts(network), dict[str, Compound]()
    for node in network.graph.nodes:
        if compound := _scaled_norm(node, found) or _recognised(node, parts):
            found[node.name] = compound
    needed = {network.graph.output}
    for node in reversed(network.graph.nodes):
        if node.name in needed:
            compound = found.get(node.name)
            needed.update([compound.source] if compound else node.inputs)
    return found, frozenset(parts.nodes.keys() - needed)


class _Parts:
    """Nodes of a network by name, their places in the order of computation, channels, weights."""

    def __init__(self, network: Network) -> None:
        self.nodes = {node.name: node for node in network.graph.nodes}
        self.places = {name: number for number, name in enumerate(self.nodes)}
        self.channels = network.graph.channels()
        self.weights = network.weights
        self.readers = network.graph.readers()

    def may_be_joined(self, source: str) -> bool:
        """Return whether a kernel may compute a tensor only together with its one reader."""
        one, *others = self.readers[source]
        return not others and isinstance(one.layer, ChannelAffine | ActivationLayer)


def _scaled_norm(node: Node, found: Mapping[str, Compound]) -> Compound | None:
    """Return a norm with the scale and shift of the layer after it."""
    match node.layer, found.get(node.inputs[0]):
        case ChannelAffine(_, scale, shift), Compound(source, VoxelNorm(_, None) as norm):
            return Compound(source, replace(norm, scale=scale, shift=shift))
        case _:
            return None


def _recognised(node: Node, parts: _Parts) -> Compound | None:
    """Return what a product is, or a product with a factor; None if it is no compound."""
    product = parts.nodes.get(node.inputs[0]) if isinstance(node.layer, ChannelAffine) else node
    if product is None or not isinstance(product.layer, Multiply):
        return None
    for source, between in _sources(node, parts):
        if product not in between or parts.may_be_joined(source):
            continue
        if not any(isinstance(one.layer, Conv3d) for one in between):
            operation = _as_activation(source, between, parts.weights)
        elif any(isinstance(one.layer, Inverse) and one.layer.root for one in between):
            operation = _as_norm(source, between, parts.weights, parts.channels[source])
        else:
            continue
        if operation is not None:
            return Compound(source, operation)
    return None


_MOST_LAYERS = 12
"""Most layers of which a compound consists; a layer norm has up to 11."""


def _sources(node: Node, parts: _Parts) -> Iterator[tuple[str, Sequence[Node]]]:
    """Yield each tensor on which alone a node's values depend, the nearest first, and the nodes
    between in the order of computation.
    """
    between, ends = [node], {*node.inputs}
    while len(between) <= _MOST_LAYERS:
        if len(ends) == 1:
            yield next(iter(ends)), between[::-1]
        last = parts.nodes.get(max(ends, key=lambda name: parts.places.get(name, -1)))
        if last is None or not _is_computed(last):
            return
        between.append(last)
        ends = (ends - {last.name}) | {*last.inputs}


def _is_computed(node: Node) -> bool:
    if isinstance(conv := node.layer, Conv3d):
        is_of_voxels = (conv.kernel, conv.stride, conv.padding) == (ONES, ONES, ZEROS)
        return is_of_voxels and conv.groups == 1
    return isinstance(conv, ComputedLayer)


_ABOVE_0 = np.array([1.0, *np.geomspace(1e-3, 12.0, 24), *np.geomspace(15.0, 1e4, 8)])
_POINTS = np.array([*_ABOVE_0, *-_ABOVE_0, 0.0])[:, None]
"""Arguments by which activations are compared; the first is 1."""

_EXACTNESS = 1e-6
"""Largest difference of two activations, as a share of the argument; factors are in float32."""

_Share: TypeAlias = Callable[[SampleValues], SampleValues]
_TANH_GELU = Activation(sqrt(8 / pi), "swish", cube=0.044715 * sqrt(8 / pi))
_SHARES: Sequence[tuple[Activation, _Share]] = (
    (Activation(curve="gelu"), lambda x: 0.5 + 0.5 * error_function(x * sqrt(0.5))),
    (_TANH_GELU, lambda x: sigmoid(_TANH_GELU.slope * x + _TANH_GELU.cube * x**3)),
    (Activation(curve="hard_swish"), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    (Activation(curve="mish"), lambda x: np.tanh(np.logaddexp(0, x))),
)
"""Activations without further numbers, and the share of the argument that each of them is."""


class _OfChannelsError(Exception):
    """A layer that treats channels differently, as no activation does."""


def _as_activation(
    source: str, between: Sequence[Node], weights: Mapping[str, FloatArray]
) -> Activation | None:
    """Return the activation that layers are; None if they are none."""

    def weight(name: str) -> FloatArray:
        if (weights[name] != weights[name][0]).any():
            raise _OfChannelsError
        return weights[name][:1]

    try:
        values = layer_values(source, _POINTS, between, weight)
    except _OfChannelsError:
        return None
    for activation, share in _SHARES:
        if _are_alike(values, share(_POINTS)):
            return activation
    at_one = float(values[0, 0])
    if not 0 < at_one < 1:
        return None
    slope = float(np.float32(log(at_one / (1 - at_one))))
    is_swish = _are_alike(values, sigmoid(slope * _POINTS))
    return Activation(slope, "swish") if is_swish else None


def _are_alike(values: SampleValues, share: SampleValues) -> bool:
    """Return whether values are this share of their arguments."""
    return bool((np.abs(values - _POINTS * share) <= _EXACTNESS * np.abs(_POINTS)).all())


_SIZES = np.array([1e-6, 1e-4, 1e-2, 1.0, 1.0, 30.0, 1e3])[:, None]
_MEANS = np.array([0.0, 1e-3, 0.0, 0.0, 5.0, -100.0, 0.0])[:, None]
"""Sizes and means of the sample voxels by which norms are compared; the first shows epsilon."""

_EPSILONS = 1e-10, 1.0


def _as_norm(
    source: str, between: Sequence[Node], weights: Mapping[str, FloatArray], channels: int
) -> VoxelNorm | None:
    """Return the norm, without scale and shift, that layers are; None if they are none."""
    if not 1 < channels <= MOST_NORMALISED:
        return None
    shape = len(_SIZES), channels
    voxels = _MEANS + _SIZES * np.random.default_rng(0).normal(size=shape)
    values = layer_values(source, voxels, between, weights.__getitem__)
    if values.shape != shape:
        return None
    centred = voxels - voxels.mean(1, keepdims=True)
    variance = (centred**2).mean(1, keepdims=True)
    inverse = (values[0] @ centred[0]) / (centred[0] @ centred[0])
    least, most = _EPSILONS
    if not most**-0.5 <= inverse <= least**-0.5:
        return None
    epsilon = float(np.float32(inverse**-2 - variance[0, 0]))
    is_norm = np.allclose(values, centred / np.sqrt(variance + epsilon), rtol=1e-5, atol=1e-5)
    return VoxelNorm(epsilon) if is_norm else None
