"""Selection of tensors that a float program may store as split fp16, and of their scale.

Split fp16 is a number as a high and a low fp16 part, which add up to it. It has the digits of float
but not its range: only values whose bound is known before any scan is read are stored so, those
after an instance normalisation.

A tf32 program does the convolutions that shrink the grid on split fp16: their errors propagate
through all layers after them. Of the 24 convolutions of a generator with 9 blocks, those two make
two fifths of the error's variance, at a twentieth of the work.
"""

from collections.abc import Collection, Mapping
from math import floor, inf, log2

from ...network.graph import INPUT, Graph, Network, Node, TensorShape
from ...network.graph_analysis import can_be_subpixels, node_ranges
from ...network.layers import (
    Add,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Multiply,
    Pad,
    Subtract,
)
from ...options import Precision

_FULL_RATE = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities whose Tensor Cores sum fp16 in float at full rate; with half of it, as on
other GPUs, three products take about as long as one in plain float.
"""

CHANNELS = 32
"""Channel count of which the source channels of convolve_split_fp16.cu are a multiple."""

_MOST_TAPS = 10
"""Most taps of convolve_split_fp16.cu along each axis of its kernel."""

_HIGHEST = 2.0**15
"""Half of the fp16 maximum: rounding may exceed a bound."""


def power_of_two(largest: float) -> float:
    """Return the highest power of two whose product with a number of this size fits in fp16."""
    return 2.0 ** floor(log2(_HIGHEST / largest)) if largest > 0 else 1.0


def split_fp16_pays(precision: str, capability: tuple[int, int]) -> bool:
    """Return whether a program should use split fp16 for its convolutions where it can."""
    return precision in ("fp32", "tf32") and capability in _FULL_RATE


def scales(
    network: Network, shapes: Mapping[str, TensorShape], precision: Precision
) -> dict[str, float]:
    """Return the scale of each node's value that may be stored as split fp16.

    Only convolutions and passes over voxels may read it there. shapes: of each norm's tensor.
    """
    bounds = value_bounds(network, shapes)
    takers = [node for node in network.graph.nodes if _takes_split(node)]
    if precision == "tf32":
        takers = [node for node in takers if _shrinks(node)]
    return {
        name: power_of_two(bounds[name])
        for name in {node.inputs[0] for node in takers}
        if bounds[name] <= _HIGHEST and _may_be_split(network.graph, name, takers)
    }


def _may_be_split(graph: Graph, name: str, takers: Collection[Node]) -> bool:
    readers = graph.readers()
    [made_by] = [node for node in graph.nodes if node.name == name]
    inner = made_by.inputs[0] if isinstance(made_by.layer, Pad) else None
    passes = Add | Subtract | Multiply | Concat
    return (
        all(isinstance(reader.layer, passes) or reader in takers for reader in readers[name])
        and all(isinstance(one.layer, passes | Pad) for one in (readers[inner] if inner else ()))
        and graph.output not in (name, inner)
    )


def _takes_split(node: Node) -> bool:
    layer = node.layer
    if isinstance(layer, ConvTranspose3d) and not can_be_subpixels(layer):
        return False
    if not isinstance(layer, Conv3d | ConvTranspose3d):
        return False
    if layer.dilation != (1, 1, 1) or layer.groups > 1:
        return False
    return layer.in_channels % CHANNELS == 0 and max(layer.kernel) <= _MOST_TAPS


def _shrinks(node: Node) -> bool:
    return isinstance(node.layer, Conv3d) and max(node.layer.stride) > 1


def value_bounds(network: Network, shapes: Mapping[str, TensorShape]) -> Mapping[str, float]:
    """Return bounds of the absolute values of each node, for any patch with tensors of these
    shapes; infinite if unknown.
    """
    ranges = node_ranges(network.graph.nodes, network.weights, shapes)
    return {INPUT: inf, **{name: max(-low, high) for name, (low, high) in ranges.items()}}
