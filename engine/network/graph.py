"""The typed layer graph: one description for the CPU runtime, the ONNX export and the GPU compiler.

All tensors are [N, C, D, H, W]. A graph holds no numbers: layers name their weights, and a
`Network` pairs a graph with the arrays of those names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, lcm
from typing import TypeAlias

import msgspec

from ..decoding import Tagged
from ..errors import PatchShapeError
from .layer_shapes import (
    TensorShape,
    channels_made,
    inputs_of,
    sampling_factors,
    shape_made,
    times,
    weight_shapes,
)
from .layers import FloatArray, Layer, Triple

INPUT = "input"
"""Name by which layers refer to the patch that enters the graph."""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer at work: its own name, and the names of the nodes it reads.

    inputs: those names, in the layer's order.
    """

    name: str
    layer: Layer
    inputs: tuple[str, ...]


class Graph(Tagged, frozen=True, tag="graph"):
    """Nodes in an order in which they can run; the last one is the output.

    in_channels: of a patch. nodes: without the input. patch: the only extents (D, H, W) for which
    the graph is what the network computes; None where it is for all that fit.
    """

    in_channels: int
    nodes: tuple[Node, ...]
    patch: Triple | None = None

    def __post_init__(self) -> None:
        known = {INPUT}
        for node in self.nodes:
            if missing := [name for name in node.inputs if name not in known]:
                raise ValueError(f"node {node.name!r} reads {missing[0]!r} before it is made")
            if node.name in known:
                raise ValueError(f"two nodes are named {node.name!r}")
            if len(node.inputs) != inputs_of(node.layer):
                raise ValueError(f"node {node.name!r} reads {len(node.inputs)} tensors")
            known.add(node.name)
        if not self.nodes:
            raise ValueError("a graph needs at least one node")

    @property
    def output(self) -> str:
        """Name of the node whose tensor leaves the graph."""
        return self.nodes[-1].name

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self.channels()[self.output]

    def channels(self) -> dict[str, int]:
        """Channels of every node's tensor, and of the input."""
        channels = {INPUT: self.in_channels}
        for node in self.nodes:
            channels[node.name] = channels_made(node.layer, [channels[i] for i in node.inputs])
        return channels

    @property
    def stride(self) -> Triple:
        """Smallest extents of which every patch must be a multiple: the deepest down-sampling."""
        scales: dict[str, tuple[_Ratio, _Ratio, _Ratio]] = {INPUT: ((1, 1), (1, 1), (1, 1))}
        stride = [1, 1, 1]
        for node in self.nodes:
            up, down = sampling_factors(node.layer)
            source = scales[node.inputs[0]]
            if up == down:
                scales[node.name] = source
                continue
            scale = tuple(
                _reduced(n * u, d * s) for (n, d), u, s in zip(source, up, down, strict=True)
            )
            scales[node.name] = (scale[0], scale[1], scale[2])
            stride = [lcm(a, d) for a, (_, d) in zip(stride, scale, strict=True)]
        return stride[0], stride[1], stride[2]

    def weight_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every weight that the layers name, with the shape it must have."""
        for node in self.nodes:
            yield from weight_shapes(node.layer)

    def shapes(self, patch: Triple) -> dict[str, TensorShape]:
        """Shape of every node's tensor, and of the input, for a patch of these extents.

        Raises PatchShapeError if a layer cannot take what reaches it.
        """
        shapes = {INPUT: TensorShape(self.in_channels, patch)}
        for node in self.nodes:
            shapes[node.name] = shape_made(node.name, node.layer, [shapes[i] for i in node.inputs])
        return shapes

    def check_patch(self, patch: Triple) -> None:
        """Raise PatchShapeError unless a patch of these extents keeps them through the network."""
        if self.patch not in (None, patch):
            raise PatchShapeError(
                f"This network takes patches of {times(self.patch)} alone, for which it was "
                f"exported, and none of {times(patch)}."
            )
        if any(extent % step for extent, step in zip(patch, self.stride, strict=True)):
            raise PatchShapeError(
                f"Patch {times(patch)} does not fit this network: "
                f"each extent must be a multiple of {times(self.stride)}."
            )
        leaving = self.shapes(patch)[self.output].extents
        if leaving != patch:
            raise PatchShapeError(
                f"This network turns a patch of {times(patch)} into {times(leaving)}; "
                "only networks that keep the extents can translate a volume."
            )


LARGEST_WEIGHTS = 2 << 30
"""Bytes; ONNX Runtime takes a model in one protocol buffer, which cannot be larger."""


@dataclass(frozen=True, slots=True)
class Network:
    """A graph with its numbers; weights are float32 and keyed by the names the layers use."""

    graph: Graph
    weights: Mapping[str, FloatArray]

    def __post_init__(self) -> None:
        for name, shape in self.graph.weight_shapes():
            if name not in self.weights:
                raise ValueError(f"weight {name!r} is missing")
            if self.weights[name].shape != shape:
                raise ValueError(f"weight {name!r} is {self.weights[name].shape}, not {shape}")


_Ratio: TypeAlias = tuple[int, int]


def _reduced(numerator: int, denominator: int) -> _Ratio:
    common = gcd(numerator, denominator)
    return numerator // common, denominator // common
