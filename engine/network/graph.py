"""The typed layer graph: one description for the CPU runtime, the ONNX export and the GPU compiler.

All tensors are [N, C, D, H, W]. A graph holds no numbers: layers name their weights, and a
`Network` pairs a graph with the arrays of those names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb, gcd, lcm
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..decoding import Tagged
from ..errors import PatchShapeError

Triple: TypeAlias = tuple[int, int, int]
FloatArray: TypeAlias = npt.NDArray[np.float32]


class Constant(Tagged, frozen=True, tag="constant"):
    """Padding by one value."""

    value: float


PadMode: TypeAlias = Literal["reflect", "replicate", "zero"] | Constant
"""How a tensor continues past its border; reflect does not repeat the edge voxel."""

INPUT = "input"
"""Name by which layers refer to the patch that enters the graph."""


@dataclass(frozen=True, slots=True)
class Conv3d:
    """Cross-correlation; weight [out, in, kD, kH, kW], zero padding on both sides of each axis.

    in_channels, out_channels: as the network counts. kernel, stride, padding, dilation: along D, H
    and W. weight, bias: names of arrays; no bias for None.
    """

    in_channels: int
    out_channels: int
    kernel: Triple
    weight: str
    bias: str | None = None
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)

    @property
    def reach(self) -> Triple:
        """Voxels from the first to the last that the kernel sees, both included."""
        sizes = zip(self.kernel, self.dilation, strict=True)
        depth, height, width = ((taps - 1) * step + 1 for taps, step in sizes)
        return depth, height, width


@dataclass(frozen=True, slots=True)
class ConvTranspose3d:
    """Transposed convolution as PyTorch defines it; weight [in, out, kD, kH, kW].

    in_channels, out_channels: as the network counts. kernel, stride, padding, output_padding: along
    D, H and W. weight, bias: names of arrays; no bias for None.
    """

    in_channels: int
    out_channels: int
    kernel: Triple
    weight: str
    bias: str | None = None
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    output_padding: Triple = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class InstanceNorm:
    """Per-patch, per-channel normalisation with biased variance, then scale and shift of [C].

    channels: how many. scale, shift: names of arrays, None without. epsilon: added to the variance.
    """

    channels: int
    scale: str | None = None
    shift: str | None = None
    epsilon: float = 1e-5


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """As InstanceNorm, but each of `groups` runs of neighbouring channels is normalised as one.

    channels: how many. scale, shift: names of arrays, None without. epsilon: added to the variance.
    """

    channels: int
    groups: int
    scale: str | None = None
    shift: str | None = None
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        if self.channels % self.groups:
            raise ValueError(f"{self.channels} channels do not make {self.groups} even groups")


@dataclass(frozen=True, slots=True)
class ChannelAffine:
    """x * scale + shift with fixed values of [C]: normalisation by stored statistics.

    channels: how many. scale, shift: names of arrays.
    """

    channels: int
    scale: str
    shift: str


class Relu(Tagged, frozen=True, tag="relu"):
    """max(x, 0)."""


class LeakyRelu(Tagged, frozen=True, tag="leaky_relu"):
    """x where x > 0, else slope * x."""

    slope: float


class Elu(Tagged, frozen=True, tag="elu"):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0


@dataclass(frozen=True, slots=True)
class Tanh:
    """Hyperbolic tangent."""


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """1 / (1 + exp(-x))."""


@dataclass(frozen=True, slots=True)
class Pad:
    """Grow D, H and W.

    mode: what fills the border. before, after: voxels along D, H and W.
    """

    mode: PadMode
    before: Triple
    after: Triple


@dataclass(frozen=True, slots=True)
class Add:
    """Sum of two tensors of one shape."""


@dataclass(frozen=True, slots=True)
class Concat:
    """Channels of the first input, then those of the second."""


@dataclass(frozen=True, slots=True)
class Upsample:
    """Enlarge D, H and W by whole factors, with PyTorch's sampling positions.

    mode: of the interpolation. factor: along D, H and W. align_corners: as PyTorch means it.
    """

    mode: Literal["nearest", "trilinear"]
    factor: Triple
    align_corners: bool = False


@dataclass(frozen=True, slots=True)
class Downsample:
    """Shrink D, H and W by whole factors behind a low-pass filter, as anti-aliased networks do.

    Every channel passes by itself through the binomial filter of `taps` along each axis, whose sum
    is 1; output voxel v has its middle tap, the left one of an even number, at voxel v * factor.
    The filter sees the tensor continued past its border by `mode`.
    """

    taps: int
    factor: Triple
    mode: PadMode

    @property
    def before(self) -> Triple:
        """Voxels by which the filter reaches past the first voxel of each axis."""
        reach = (self.taps - 1) // 2
        return reach, reach, reach

    @property
    def after(self) -> Triple:
        """The same past the last voxel."""
        reach = self.taps // 2
        return reach, reach, reach

    @property
    def filter(self) -> FloatArray:
        """Values of the taps along one axis."""
        row = np.array([comb(self.taps - 1, tap) for tap in range(self.taps)])
        return (row / row.sum()).astype(np.float32)


Layer: TypeAlias = (
    Conv3d
    | ConvTranspose3d
    | InstanceNorm
    | GroupNorm
    | ChannelAffine
    | Relu
    | LeakyRelu
    | Elu
    | Tanh
    | Sigmoid
    | Pad
    | Add
    | Concat
    | Upsample
    | Downsample
)


@dataclass(frozen=True, slots=True)
class Node:
    """One layer at work: its own name, and the names of the nodes it reads.

    inputs: those names, in the layer's order.
    """

    name: str
    layer: Layer
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Channels and extents of one patch's tensor; the batch is left out.

    channels: how many. extents: (D, H, W).
    """

    channels: int
    extents: Triple


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run; the last one is the output.

    in_channels: of a patch. nodes: without the input.
    """

    in_channels: int
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        known = {INPUT}
        for node in self.nodes:
            if missing := [name for name in node.inputs if name not in known]:
                raise ValueError(f"node {node.name!r} reads {missing[0]!r} before it is made")
            if node.name in known:
                raise ValueError(f"two nodes are named {node.name!r}")
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
            channels[node.name] = _out_channels(node.layer, [channels[i] for i in node.inputs])
        return channels

    @property
    def stride(self) -> Triple:
        """Smallest extents of which every patch must be a multiple: the deepest down-sampling."""
        scales: dict[str, tuple[_Ratio, _Ratio, _Ratio]] = {INPUT: ((1, 1), (1, 1), (1, 1))}
        stride = [1, 1, 1]
        for node in self.nodes:
            up, down = _sampling(node.layer)
            source = scales[node.inputs[0]]
            scale = tuple(
                _reduced(n * u, d * s) for (n, d), u, s in zip(source, up, down, strict=True)
            )
            scales[node.name] = (scale[0], scale[1], scale[2])
            stride = [lcm(a, d) for a, (_, d) in zip(stride, scale, strict=True)]
        return stride[0], stride[1], stride[2]

    def weight_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every weight that the layers name, with the shape it must have."""
        for node in self.nodes:
            yield from _weight_shapes(node.layer)

    def shapes(self, patch: Triple) -> dict[str, TensorShape]:
        """Shape of every node's tensor, and of the input, for a patch of these extents.

        Raises PatchShapeError if a layer cannot take what reaches it.
        """
        shapes = {INPUT: TensorShape(self.in_channels, patch)}
        for node in self.nodes:
            shapes[node.name] = _shape(node, [shapes[name] for name in node.inputs])
        return shapes

    def check_patch(self, patch: Triple) -> None:
        """Raise PatchShapeError unless a patch of these extents keeps them through the network."""
        if any(extent % step for extent, step in zip(patch, self.stride, strict=True)):
            raise PatchShapeError(
                f"Patch {_times(patch)} does not fit this network: "
                f"each extent must be a multiple of {_times(self.stride)}."
            )
        leaving = self.shapes(patch)[self.output].extents
        if leaving != patch:
            raise PatchShapeError(
                f"This network turns a patch of {_times(patch)} into {_times(leaving)}; "
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


def _times(extents: Triple) -> str:
    return "x".join(str(extent) for extent in extents)


def _reduced(numerator: int, denominator: int) -> _Ratio:
    common = gcd(numerator, denominator)
    return numerator // common, denominator // common


def _sampling(layer: Layer) -> tuple[Triple, Triple]:
    """Factors by which a layer enlarges and by which it shrinks the grid."""
    match layer:
        case Conv3d(stride=factor) | Downsample(factor=factor):
            return (1, 1, 1), factor
        case ConvTranspose3d(stride=stride):
            return stride, (1, 1, 1)
        case Upsample(factor=factor):
            return factor, (1, 1, 1)
        case _:
            return (1, 1, 1), (1, 1, 1)


def _weight_shapes(layer: Layer) -> Iterator[tuple[str, tuple[int, ...]]]:
    match layer:
        case Conv3d(cin, cout, kernel, weight, bias):
            yield weight, (cout, cin, *kernel)
            if bias is not None:
                yield bias, (cout,)
        case ConvTranspose3d(cin, cout, kernel, weight, bias):
            yield weight, (cin, cout, *kernel)
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
        case _:
            pass


def _out_channels(layer: Layer, channels: list[int]) -> int:
    match layer:
        case Conv3d(out_channels=out) | ConvTranspose3d(out_channels=out):
            return out
        case Concat():
            return sum(channels)
        case _:
            return channels[0]


def _shape(node: Node, inputs: list[TensorShape]) -> TensorShape:
    layer, first = node.layer, inputs[0]
    expected = _expected_channels(layer)
    if expected is not None and expected != first.channels:
        raise PatchShapeError(
            f"Layer {node.name} takes {expected} channels, but {first.channels} reach it."
        )
    if isinstance(layer, Add | Concat) and first.extents != inputs[1].extents:
        raise PatchShapeError(
            f"Layer {node.name} joins {_times(first.extents)} and {_times(inputs[1].extents)}; "
            "use patch extents that divide evenly through the network."
        )
    extents = [_extent(layer, first.extents[axis], axis) for axis in range(3)]
    if min(extents) < 1:
        raise PatchShapeError(
            f"Layer {node.name} has nothing left of {_times(first.extents)}; use a larger patch."
        )
    widest = _reflected(layer)
    if any(pad >= extent for pad, extent in zip(widest, first.extents, strict=True)):
        raise PatchShapeError(
            f"Layer {node.name} cannot reflect {max(widest)} voxels of "
            f"{_times(first.extents)}; use a larger patch."
        )
    channels = _out_channels(layer, [shape.channels for shape in inputs])
    return TensorShape(channels, (extents[0], extents[1], extents[2]))


def _reflected(layer: Layer) -> Triple:
    """The most voxels that a layer mirrors at either end of each axis."""
    match layer:
        case Pad("reflect", before, after):
            depth, height, width = map(max, before, after)
            return depth, height, width
        case Downsample(mode="reflect", after=after):
            return after
        case _:
            return 0, 0, 0


def _expected_channels(layer: Layer) -> int | None:
    match layer:
        case Conv3d(in_channels=channels) | ConvTranspose3d(in_channels=channels):
            return channels
        case (
            InstanceNorm(channels=channels)
            | GroupNorm(channels=channels)
            | ChannelAffine(channels=channels)
        ):
            return channels
        case _:
            return None


def _extent(layer: Layer, extent: int, axis: int) -> int:
    match layer:
        case Conv3d(reach=reach, stride=stride, padding=padding):
            return (extent + 2 * padding[axis] - reach[axis]) // stride[axis] + 1
        case ConvTranspose3d(kernel=kernel, stride=stride, padding=padding, output_padding=extra):
            return (extent - 1) * stride[axis] - 2 * padding[axis] + kernel[axis] + extra[axis]
        case Pad(before=before, after=after):
            return extent + before[axis] + after[axis]
        case Upsample(factor=factor):
            return extent * factor[axis]
        case Downsample(factor=factor):
            return -(-extent // factor[axis])
        case _:
            return extent
