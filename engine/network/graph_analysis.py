"""Properties of graphs: FLOPs, memory, receptive field, value range, sub-pixels, patches."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import exp, gcd, inf, log1p, prod, sqrt
from typing import TypeAlias

import numpy as np

from .graph import INPUT, Graph, Network, Node, TensorShape
from .layers import (
    Add,
    ChannelAffine,
    Channels,
    Clip,
    Concat,
    Constant,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    Elu,
    Erf,
    Exp,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    Inverse,
    Layer,
    LeakyRelu,
    Multiply,
    Pad,
    Pool,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
    Tanh,
    Triple,
    Upsample,
    VoxelwiseLayer,
    triple,
)


def flops(graph: Graph, patch: Triple) -> int:
    """Return the floating-point operations of all convolutions and filters on one patch (D, H, W).

    A multiply-add counts as two operations, also in the padding. All other layers together take
    less than 1 % of these in every generator of this family.
    """
    return sum(layer_flops(graph, patch).values())


def layer_flops(graph: Graph, patch: Triple) -> dict[str, int]:
    """Return the floating-point operations of each convolution and filter, by node name."""
    shapes = graph.shapes(patch)
    return {
        node.name: _flops(node, shapes[node.inputs[0]], shapes[node.name])
        for node in graph.nodes
        if isinstance(node.layer, Conv3d | ConvTranspose3d | Downsample)
    }


def held_bytes(graph: Graph, patch: Triple) -> int:
    """Return the peak bytes of the float32 tensors of one patch (D, H, W).

    A tensor lives from the layer that writes it to the last one that reads it; scratch memory of
    the layers is not included.
    """
    sizes = {
        name: 4 * shape.channels * prod(shape.extents)
        for name, shape in graph.shapes(patch).items()
    }
    last_read = {name: node.name for node in graph.nodes for name in node.inputs}
    held = most = sizes[INPUT]
    for node in graph.nodes:
        held += sizes[node.name]
        most = max(most, held)
        held -= sum(sizes[name] for name in set(node.inputs) if last_read[name] == node.name)
    return most


def _flops(node: Node, source: TensorShape, target: TensorShape) -> int:
    match node.layer:
        case Conv3d(kernel=kernel, groups=groups):
            positions = prod(target.extents)
        case ConvTranspose3d(kernel=kernel, groups=groups):
            positions = prod(source.extents)
        case Downsample(taps=taps):
            return 2 * target.channels * taps**3 * prod(target.extents)
        case _:
            return 0
    return 2 * source.channels * target.channels * prod(kernel) * positions // groups


def receptive_field(graph: Graph) -> Triple:
    """Return the receptive field of one output voxel along D, H and W, without norms."""
    return triple(_receptive_extent(graph, axis) for axis in range(3))


def sees_whole_patch(graph: Graph) -> bool:
    """Return whether statistics of the whole patch affect every voxel."""
    return any(isinstance(node.layer, InstanceNorm | GroupNorm) for node in graph.nodes)


def _receptive_extent(graph: Graph, axis: int) -> int:
    # By node: halo of one of its voxels, and spacing of its voxels, both in voxels of the patch.
    known = {INPUT: (Fraction(0), Fraction(1))}
    for node in graph.nodes:
        reach = max(known[name][0] for name in node.inputs)
        spacing = known[node.inputs[0]][1]
        taps, scale = _taps_and_scale(node.layer, axis)
        known[node.name] = reach + (taps - 1) * spacing, spacing * scale
    return int(known[graph.output][0]) + 1


def _taps_and_scale(layer: Layer, axis: int) -> tuple[int, Fraction]:
    """Return the input voxels that one output voxel reads, and the factor of the voxel spacing."""
    if isinstance(layer, VoxelwiseLayer):
        return 1, Fraction(1)
    match layer:
        case Conv3d(stride=stride):
            return layer.reach[axis], Fraction(stride[axis])
        case Pool(kernel=kernel, stride=stride):
            return kernel[axis], Fraction(stride[axis])
        case Downsample(taps, factor):
            return taps, Fraction(factor[axis])
        case ConvTranspose3d(kernel=kernel, stride=stride, dilation=dilation):
            return _transposed_taps(kernel[axis], stride[axis], dilation[axis]), Fraction(
                1, stride[axis]
            )
        case Upsample(mode, factor):
            return (2 if mode == "trilinear" and factor[axis] > 1 else 1), Fraction(1, factor[axis])
        case Pad() | Crop():
            return 1, Fraction(1)


def _transposed_taps(kernel: int, stride: int, dilation: int) -> int:
    """Return the input voxels that one output voxel of a transposed convolution reads."""
    apart = gcd(stride, dilation)
    taps = -(-kernel * apart // stride)
    return (taps - 1) * dilation // apart + 1


ValueRange: TypeAlias = tuple[float, float]
_UNBOUNDED: ValueRange = (-inf, inf)


def output_range(network: Network) -> ValueRange:
    """Return the bounds of the output values; infinite if no last layer bounds them."""
    return node_ranges(network.graph.nodes, network.weights)[network.graph.output]


def node_ranges(
    nodes: Iterable[Node],
    weights: Mapping[str, FloatArray],
    shapes: Mapping[str, TensorShape] | None = None,
) -> Mapping[str, ValueRange]:
    """Return the bounds of the values of each node, in the order of computation.

    shapes: of the nodes for a patch; without them, norms are unbounded.
    """
    ranges: dict[str, ValueRange] = {}
    for node in nodes:
        before = [ranges.get(name, _UNBOUNDED) for name in node.inputs]
        if isinstance(node.layer, InstanceNorm | GroupNorm):
            extents = shapes[node.name].extents if shapes else None
            ranges[node.name] = _normalised(node.layer, extents, weights)
        else:
            ranges[node.name] = _node_range(node, before, weights)
    return ranges


def _normalised(
    norm: InstanceNorm | GroupNorm, extents: Triple | None, weights: Mapping[str, FloatArray]
) -> ValueRange:
    """Return the bounds of a norm: of n numbers with mean 0 and variance 1, none exceeds the square
    root of n - 1.
    """
    if extents is None:
        return _UNBOUNDED
    joined = norm.channels // norm.groups if isinstance(norm, GroupNorm) else 1
    bound = sqrt(joined * prod(extents))
    bound *= float(np.abs(weights[norm.scale]).max()) if norm.scale else 1.0
    bound += float(np.abs(weights[norm.shift]).max()) if norm.shift else 0.0
    return -bound, bound


def _node_range(
    node: Node, before: Sequence[ValueRange], weights: Mapping[str, FloatArray]
) -> ValueRange:
    low, high = before[0]
    match node.layer:
        case Tanh() | Erf():
            return -1.0, 1.0
        case Sigmoid():
            return 0.0, 1.0
        case Exp():
            return exp(min(low, _LARGEST_POWER)), exp(high) if high < _LARGEST_POWER else inf
        case Softplus():
            return _softplus(low), _softplus(high)
        case Inverse(least, root):
            return 0.0, least**-0.5 if root else 1 / least
        case Add():
            return sum(one for one, _ in before), sum(one for _, one in before)
        case Subtract():
            return low - before[1][1], high - before[1][0]
        case Multiply():
            low, high = _product(*before)
            return (max(low, 0.0) if node.inputs[0] == node.inputs[1] else low), high
        case Conv3d(weight=weight, bias=bias) if low >= 0 and (weights[weight] >= 0).all():
            return float(weights[bias].min()) if bias else 0.0, inf
        case Relu():
            return max(low, 0.0), max(high, 0.0)
        case LeakyRelu(slope):
            return _bent(before[0], slope)
        case PRelu(slope=slopes):
            bent = [_bent(before[0], float(slope)) for slope in weights[slopes]]
            return min(one for one, _ in bent), max(one for _, one in bent)
        case Elu(alpha) if alpha >= 0:
            return _elu(low, alpha), _elu(high, alpha)
        case Clip() as clip:
            return _clipped(low, clip), _clipped(high, clip)
        case ChannelAffine(_, scale, shift):
            return _mapped((low, high), weights[scale], weights[shift])
        case Pad(mode=Constant(value)) | Downsample(mode=Constant(value)):
            return min(low, value), max(high, value)
        case Pad(mode="zero") | Downsample(mode="zero"):
            return min(low, 0.0), max(high, 0.0)
        case Pool(mode="mean", padding=padding) if any(padding):
            return min(low, 0.0), max(high, 0.0)
        case Pad() | Crop() | Channels() | Upsample() | Downsample() | Pool():
            return low, high
        case Concat():
            return min(one for one, _ in before), max(one for _, one in before)
        case _:
            return _UNBOUNDED


_LARGEST_POWER = 700.0


def _softplus(end: float) -> float:
    return log1p(exp(end)) if end < _LARGEST_POWER else end


def _elu(end: float, alpha: float) -> float:
    return end if end > 0 else alpha * (exp(end) - 1)


def _bent(ends: ValueRange, slope: float) -> ValueRange:
    """Return the bounds of x where it is above 0, and of slope * x elsewhere."""
    low, high = ends
    images = [end if end > 0 else _product((end, end), (slope, slope))[0] for end in ends]
    if low < 0 < high:
        images.append(0.0)
    return min(images), max(images)


def _product(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the bounds of a product."""
    ends = [one * other if one and other else 0.0 for one in first for other in second]
    return min(ends), max(ends)


def _clipped(end: float, clip: Clip) -> float:
    least = -inf if clip.low is None else clip.low
    most = inf if clip.high is None else clip.high
    return min(max(end, least), most)


def _mapped(ends: ValueRange, scale: FloatArray, shift: FloatArray) -> ValueRange:
    """Return the bounds over all channels; unbounded if a channel is multiplied by zero."""
    if not scale.all():
        return _UNBOUNDED
    found = [end * float(a) + float(b) for a, b in zip(scale, shift, strict=True) for end in ends]
    return min(found), max(found)


def transposed_reach(
    kernel: int, padding: int, stride: int = 2, dilation: int = 1
) -> tuple[int, int]:
    """Return the first and last input offset that a transposed kernel reads for one input voxel's
    outputs.

    Output stride * i + r takes tap t from input i + (r + padding - dilation * t) / stride.
    """
    offsets = [
        (phase + padding - dilation * tap) // stride
        for phase, tap in product(range(stride), range(kernel))
        if (phase + padding - dilation * tap) % stride == 0
    ]
    return min(offsets), max(offsets)


def can_be_subpixels(conv: ConvTranspose3d) -> bool:
    """Whether a transposed convolution doubles its input and can be computed as a convolution to
    the 8 output voxels of each input voxel.
    """
    if conv.stride != (2, 2, 2) or conv.dilation != (1, 1, 1) or conv.groups > 1:
        return False
    sizes = zip(conv.kernel, conv.padding, conv.output_padding, strict=True)
    return all(kernel - 2 * padding + extra == 2 for kernel, padding, extra in sizes) and all(
        first <= 0 <= last for first, last in reach_of(conv)
    )


def reach_of(conv: ConvTranspose3d) -> list[tuple[int, int]]:
    """Return the first and last input offset that a transposed convolution reads for the outputs of
    one input voxel, along each axis.
    """
    sizes = zip(conv.kernel, conv.padding, conv.stride, conv.dilation, strict=True)
    return [transposed_reach(*along) for along in sizes]


_PATCH_SIZES = 64
"""Number of sizes that are tried up to the whole patch."""


def largest_patch(graph: Graph, patch: Triple, fits: Callable[[Triple], bool]) -> Triple | None:
    """Return the largest patch (D, H, W) below `patch`, of similar proportions, that fits, or None.

    fits: whether a patch fits; it must be monotonic in size. Edges are multiples of 16 if possible,
    for the network's strides and for readability.
    """
    candidates = dict.fromkeys(_scaled_patch(patch, step) for step in range(1, _PATCH_SIZES))
    taken = [one for one in candidates if one != patch and graph.takes_patch(one)]
    fitting = bisect_left(taken, True, key=lambda one: not fits(one))
    return taken[fitting - 1] if fitting else None


def _scaled_patch(patch: Triple, step: int) -> Triple:
    return triple(_rounded_edge(max(1, edge * step // _PATCH_SIZES)) for edge in patch)


def _rounded_edge(edge: int) -> int:
    return edge // 16 * 16 or 1 << edge.bit_length() - 1
