"""Layer graphs: the shape arithmetic of layers, the graph itself, and bounds for graphs from files.

One description serves the CPU runtime, the ONNX export and the GPU compiler. All tensors are
[N, C, D, H, W]. A graph holds no numbers: layers name their weights, and a `Network` pairs a graph
with the arrays of those names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf, lcm
from typing import TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ..decoding import Tagged
from ..errors import PatchShapeError
from .layers import (
    Add,
    ChannelAffine,
    Channels,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    Layer,
    Multiply,
    Pad,
    Pool,
    PRelu,
    Subtract,
    Triple,
    Upsample,
    triple,
)


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Channels and extents of one patch's tensor; the batch is left out.

    channels: how many. extents: (D, H, W).
    """

    channels: int
    extents: Triple


def times(extents: Iterable[int]) -> str:
    """Format extents, as in 64x64x32."""
    return "x".join(map(str, extents))


def inputs_of(layer: Layer) -> int:
    """Return the number of tensors that a layer reads."""
    return 2 if isinstance(layer, Add | Subtract | Multiply | Concat) else 1


def sampling_factors(layer: Layer) -> tuple[Triple, Triple]:
    """Return the up-sampling and down-sampling factors of a layer."""
    match layer:
        case Conv3d(stride=factor) | Downsample(factor=factor) | Pool(stride=factor):
            return (1, 1, 1), factor
        case ConvTranspose3d(stride=factor) | Upsample(factor=factor):
            return factor, (1, 1, 1)
        case _:
            return (1, 1, 1), (1, 1, 1)


def weight_shapes(layer: Layer) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and required shape of each weight of a layer."""
    match layer:
        case Conv3d(cin, cout, kernel, weight, bias, groups=groups):
            yield weight, (cout, cin // groups, *kernel)
            if bias is not None:
                yield bias, (cout,)
        case ConvTranspose3d(cin, cout, kernel, weight, bias, groups=groups):
            yield weight, (cin, cout // groups, *kernel)
            if bias is not None:
                yield bias, (cout,)
        case (
            InstanceNorm(channels, scale=scale, shift=shift)
            | GroupNorm(channels, scale=scale, shift=shift)
            | ChannelAffine(channels, scale, shift)
        ):
            for name in (scale, shift):
                if name is not None:
                    yield name, (channels,)
        case PRelu(channels, slope):
            yield slope, (channels,)
        case _:
            pass


def channels_made(layer: Layer, channels: list[int]) -> int:
    """Return the output channels of a layer for inputs with these channels."""
    match layer:
        case Conv3d(out_channels=made) | ConvTranspose3d(out_channels=made) | Channels(count=made):
            return made
        case Concat():
            return sum(channels)
        case Multiply():
            return max(channels)
        case _:
            return channels[0]


def shape_made(name: str, layer: Layer, inputs: list[TensorShape]) -> TensorShape:
    """Return the output shape of a layer; raises PatchShapeError, which names the layer."""
    first = inputs[0]
    _check_channels(name, layer, inputs)
    if inputs_of(layer) == 2 and first.extents != inputs[1].extents:
        raise PatchShapeError(
            f"Layer {name} joins maps of {times(first.extents)} and {times(inputs[1].extents)}; "
            "use patch extents that divide evenly through the network."
        )
    extents = [_extent(layer, first.extents[axis], axis) for axis in range(3)]
    if min(extents) < 1:
        raise PatchShapeError(
            f"Layer {name} has an empty output for {times(first.extents)}; use a larger patch."
        )
    widest = _reflected(layer)
    if any(pad >= extent for pad, extent in zip(widest, first.extents, strict=True)):
        raise PatchShapeError(
            f"Layer {name} cannot reflect {max(widest)} voxels of "
            f"{times(first.extents)}; use a larger patch."
        )
    channels = channels_made(layer, [shape.channels for shape in inputs])
    return TensorShape(channels, (extents[0], extents[1], extents[2]))


def _check_channels(name: str, layer: Layer, inputs: list[TensorShape]) -> None:
    first = inputs[0].channels
    expected = _expected_channels(layer)
    if expected is not None and expected != first:
        raise PatchShapeError(f"Layer {name} takes {expected} channels, but its input has {first}.")
    match layer:
        case Channels(start, count) if start + count > first:
            raise PatchShapeError(
                f"Layer {name} takes channels {start} to {start + count - 1}, but its input has "
                f"{first}."
            )
        case Multiply() if 1 in (first, inputs[1].channels):
            pass
        case Add() | Subtract() | Multiply() if inputs[1].channels != first:
            raise PatchShapeError(
                f"Layer {name} joins {first} and {inputs[1].channels} channels voxel by voxel."
            )
        case _:
            pass


def _reflected(layer: Layer) -> Triple:
    """Return the largest reflection padding of a layer along each axis."""
    match layer:
        case Pad("reflect", before, after):
            return triple(map(max, before, after))
        case Downsample(mode="reflect", after=after):
            return after
        case _:
            return 0, 0, 0


def _expected_channels(layer: Layer) -> int | None:
    match layer:
        case (
            Conv3d(in_channels=channels)
            | ConvTranspose3d(in_channels=channels)
            | InstanceNorm(channels=channels)
            | GroupNorm(channels=channels)
            | ChannelAffine(channels=channels)
            | PRelu(channels=channels)
        ):
            return channels
        case _:
            return None


def _extent(layer: Layer, extent: int, axis: int) -> int:
    match layer:
        case Conv3d(stride=stride, padding=padding):
            return (extent + 2 * padding[axis] - layer.reach[axis]) // stride[axis] + 1
        case Pool(kernel=kernel, stride=stride, padding=padding):
            return (extent + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1
        case ConvTranspose3d(stride=stride, padding=padding, output_padding=extra):
            spread = (extent - 1) * stride[axis] - 2 * padding[axis]
            return spread + layer.reach[axis] + extra[axis]
        case Pad(before=before, after=after):
            return extent + before[axis] + after[axis]
        case Crop(before=before, after=after):
            return extent - before[axis] - after[axis]
        case Upsample(factor=factor):
            return extent * factor[axis]
        case Downsample(factor=factor):
            return -(-extent // factor[axis])
        case _:
            return extent


INPUT = "input"
"""Name by which layers refer to the patch that enters the graph."""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer under a name of its own.

    inputs: names of the nodes it reads, in the layer's order.
    """

    name: str
    layer: Layer
    inputs: tuple[str, ...]


class Graph(Tagged, frozen=True, tag="graph", cache_hash=True):
    """Nodes in a topological order; the last one is the output.

    in_channels: channels of a patch. nodes: all but the input. patch: the only extents (D, H, W)
    for which the graph is valid; None if it is valid for all that fit.
    """

    in_channels: int
    nodes: tuple[Node, ...]
    patch: Triple | None = None

    def __post_init__(self) -> None:
        known = {INPUT}
        for node in self.nodes:
            if missing := [name for name in node.inputs if name not in known]:
                raise ValueError(f"node {node.name!r} reads {missing[0]!r} before it is computed")
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

    def readers(self) -> Mapping[str, Sequence[Node]]:
        """Return the nodes that read each node's tensor, and those that read the input."""
        return _readers(self)

    @property
    def stride(self) -> Triple:
        """Extents of which every patch must be a multiple: the total down-sampling."""
        return _stride(self)

    def weight_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and required shape of each weight of the graph."""
        for node in self.nodes:
            yield from weight_shapes(node.layer)

    def shapes(self, patch: Triple) -> dict[str, TensorShape]:
        """Return the shape of every node's tensor, and of the input, for a patch (D, H, W).

        Raises PatchShapeError if a layer cannot take its input.
        """
        return dict(_shapes(self, patch))

    def takes_patch(self, patch: Triple) -> bool:
        """Return whether `check_patch` accepts a patch (D, H, W)."""
        try:
            self.check_patch(patch)
        except PatchShapeError:
            return False
        return True

    def check_patch(self, patch: Triple) -> None:
        """Raise PatchShapeError unless the network maps a patch (D, H, W) to the same extents."""
        if self.patch not in (None, patch):
            raise PatchShapeError(
                f"This network was exported for patches of {times(self.patch)} and does not "
                f"accept {times(patch)}."
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


@lru_cache  # used several times per network that is opened
def _readers(graph: Graph) -> Mapping[str, Sequence[Node]]:
    readers: dict[str, list[Node]] = {INPUT: []}
    for node in graph.nodes:
        for name in {*node.inputs}:
            readers[name].append(node)
        readers[node.name] = []
    return readers


@lru_cache  # used several times per network that is opened
def _shapes(graph: Graph, patch: Triple) -> dict[str, TensorShape]:
    shapes = {INPUT: TensorShape(graph.in_channels, patch)}
    for node in graph.nodes:
        shapes[node.name] = shape_made(node.name, node.layer, [shapes[i] for i in node.inputs])
    return shapes


@lru_cache  # used several times per study
def _stride(graph: Graph) -> Triple:
    scales: dict[str, tuple[_Ratio, _Ratio, _Ratio]] = {INPUT: ((1, 1), (1, 1), (1, 1))}
    stride = [1, 1, 1]
    for node in graph.nodes:
        up, down = sampling_factors(node.layer)
        source = scales[node.inputs[0]]
        if up == down:
            scales[node.name] = source
            continue
        scale = tuple(_reduced(n * u, d * s) for (n, d), u, s in zip(source, up, down, strict=True))
        scales[node.name] = (scale[0], scale[1], scale[2])
        stride = [lcm(a, d) for a, (_, d) in zip(stride, scale, strict=True)]
    return stride[0], stride[1], stride[2]


LARGEST_WEIGHTS = 2 << 30
"""Limit in bytes: ONNX Runtime takes a model as one protocol buffer, which cannot be larger."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Network:
    """A graph with its weights: float32 arrays by the names that the layers use.

    Each is equal to itself alone, so that what is found out about one can be kept as long as it is.
    """

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


MOST_NODES = 4096
_RESERVED = "reference."
"""Prefix of the names of tensors that are not weights."""

_LONGEST_NAME = 80
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("in_channels", "out_channels", "channels", "count", "groups"), (1, 1 << 16)),
    "first": (0, 1 << 16),
    **dict.fromkeys(("kernel", "dilation"), (1, 64)),
    **dict.fromkeys(("stride", "factor"), (1, 16)),
    **dict.fromkeys(("padding", "output_padding"), (0, 64)),
    **dict.fromkeys(("before", "after"), (0, 4096)),
    "taps": (2, 7),
    "epsilon": (1e-20, 1),
    **dict.fromkeys(("slope", "alpha", "value", "low", "high"), (-1e6, 1e6)),
}
_MOST_CHANNELS = 64


def graph_out_of_bounds(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the fields of a graph whose values no trained generator has, each with the allowed
    range.

    The bounds lie far beyond any trained generator; they keep a hostile file from requesting an
    endless number of layers.
    """
    if not 1 <= graph.in_channels <= _MOST_CHANNELS:
        yield "in_channels", f"must be from 1 to {_MOST_CHANNELS}"
    if len(graph.nodes) > MOST_NODES:
        yield "nodes", f"must be no more than {MOST_NODES}"
    for at, node in enumerate(graph.nodes[:MOST_NODES]):
        for field, reason in node_out_of_bounds(node):
            yield f"nodes[{at}].{field}", reason
    if graph.patch is not None and not all(1 <= extent <= 4096 for extent in graph.patch):
        yield "patch", "must have extents from 1 to 4096"


def node_out_of_bounds(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the fields of one node of which `graph_out_of_bounds` yields those of all."""
    names = [node.name, *(name for name, _ in weight_shapes(node.layer))]
    if any(not 0 < len(name) <= _LONGEST_NAME or name.startswith(_RESERVED) for name in names):
        yield (
            "name",
            (
                f"must name nodes and weights with at most {_LONGEST_NAME} characters, not "
                f"{_RESERVED}..."
            ),
        )
    for field, value in numbers(node.layer):
        low, high = _BOUNDS.get(field.rpartition(".")[2], (-inf, inf))
        if not low <= value <= high:
            yield f"layer.{field}", f"must be from {low:g} to {high:g}, not {value:g}"
    match node.layer:
        case ConvTranspose3d(output_padding=extra, stride=stride) if any(
            more >= step for more, step in zip(extra, stride, strict=True)
        ):
            yield "layer.output_padding", "must be less than the stride"
        case _:
            pass
    groups = getattr(node.layer, "groups", 1)
    ends = (getattr(node.layer, name, groups) for name in ("in_channels", "out_channels"))
    if groups < 1 or any(channels % groups for channels in ends):
        yield "layer.groups", "must divide the channels"


def numbers(record: Struct, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a record with the path of its field."""
    for name, value in asdict(record).items():
        match value:
            case Struct():
                yield from numbers(value, f"{place}{name}.")
            case tuple():
                yield from ((f"{place}{name}", item) for item in cast("Triple", value))
            case int() | float():
                yield f"{place}{name}", value
            case _:
                pass
