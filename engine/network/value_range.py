"""Between what values a network's output lies, where its last layers say so."""

from collections.abc import Mapping
from math import inf
from typing import TypeAlias

from .graph import Network, Node
from .layers import (
    ChannelAffine,
    Channels,
    Clip,
    Concat,
    Constant,
    Crop,
    FloatArray,
    Pad,
    Pool,
    Relu,
    Sigmoid,
    Tanh,
    Upsample,
)

ValueRange: TypeAlias = tuple[float, float]
_OPEN: ValueRange = (-inf, inf)


def output_range(network: Network) -> ValueRange:
    """The lowest and the highest value that can come out; infinite where nothing bounds it."""
    made: dict[str, ValueRange] = {}
    for node in network.graph.nodes:
        made[node.name] = _of(node, made, network.weights)
    return made[network.graph.output]


def _of(
    node: Node, made: Mapping[str, ValueRange], weights: Mapping[str, FloatArray]
) -> ValueRange:
    before = [made.get(name, _OPEN) for name in node.inputs]
    low, high = before[0]
    match node.layer:
        case Tanh():
            return -1.0, 1.0
        case Sigmoid():
            return 0.0, 1.0
        case Relu():
            return max(low, 0.0), max(high, 0.0)
        case Clip() as clip:
            return _clipped(low, clip), _clipped(high, clip)
        case ChannelAffine(_, scale, shift):
            return _mapped((low, high), weights[scale], weights[shift])
        case Pad(mode=Constant(value)):
            return min(low, value), max(high, value)
        case Pad(mode="zero"):
            return min(low, 0.0), max(high, 0.0)
        case Pool(mode="mean", padding=padding) if any(padding):
            return min(low, 0.0), max(high, 0.0)
        case Pad() | Crop() | Channels() | Upsample() | Pool():
            return low, high
        case Concat():
            return min(one for one, _ in before), max(one for _, one in before)
        case _:
            return _OPEN


def _clipped(end: float, clip: Clip) -> float:
    least = -inf if clip.low is None else clip.low
    most = inf if clip.high is None else clip.high
    return min(max(end, least), most)


def _mapped(ends: ValueRange, scale: FloatArray, shift: FloatArray) -> ValueRange:
    """Of the channels together; none of them is known where one is multiplied by nothing."""
    if not scale.all():
        return _OPEN
    found = [end * float(a) + float(b) for a, b in zip(scale, shift, strict=True) for end in ends]
    return min(found), max(found)
