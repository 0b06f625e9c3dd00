"""How much of a patch one voxel of the result is made from."""

from fractions import Fraction
from math import gcd

from .graph import INPUT, Graph
from .layers import (
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    GroupNorm,
    InstanceNorm,
    Layer,
    Pad,
    Pool,
    Triple,
    Upsample,
    VoxelwiseLayer,
    triple,
)


def receptive_field(graph: Graph) -> Triple:
    """Voxels along D, H and W that convolutions, pooling and sampling reach; norms aside."""
    return triple(_along(graph, axis) for axis in range(3))


def sees_whole_patch(graph: Graph) -> bool:
    """Whether statistics of the patch enter every voxel."""
    return any(isinstance(node.layer, InstanceNorm | GroupNorm) for node in graph.nodes)


def _along(graph: Graph, axis: int) -> int:
    # By node: voxels of the patch that one of its voxels reaches beyond its own, and its spacing.
    known = {INPUT: (Fraction(0), Fraction(1))}
    for node in graph.nodes:
        reach = max(known[name][0] for name in node.inputs)
        spacing = known[node.inputs[0]][1]
        taps, scale = _taps(node.layer, axis)
        known[node.name] = reach + (taps - 1) * spacing, spacing * scale
    return int(known[graph.output][0]) + 1


def _taps(layer: Layer, axis: int) -> tuple[int, Fraction]:
    """Voxels of its input that one of a layer's is made from, and how much wider it lies apart."""
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
            return _spread(kernel[axis], stride[axis], dilation[axis]), Fraction(1, stride[axis])
        case Upsample(mode, factor):
            return (2 if mode == "trilinear" and factor[axis] > 1 else 1), Fraction(1, factor[axis])
        case Pad() | Crop():
            return 1, Fraction(1)


def _spread(kernel: int, stride: int, dilation: int) -> int:
    """Voxels, from the first to the last, whose taps meet in one of a transposed convolution."""
    apart = gcd(stride, dilation)
    taps = -(-kernel * apart // stride)
    return (taps - 1) * dilation // apart + 1
