"""The layers of a network: the operation of each, without its numbers.

All tensors are [N, C, D, H, W]. A layer names its weights.
"""

from collections.abc import Iterable
from math import comb
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..decoding import Tagged

Triple: TypeAlias = tuple[int, int, int]
FloatArray: TypeAlias = npt.NDArray[np.float32]

ZEROS: Triple = (0, 0, 0)
ONES: Triple = (1, 1, 1)
TWOS: Triple = (2, 2, 2)

Each = TypeVar("Each")


def triple(values: Iterable[Each]) -> tuple[Each, Each, Each]:
    """Return three values, one along each axis; raises ValueError for any other number of them."""
    depth, height, width = values
    return depth, height, width


def added(first: Triple, *others: Triple) -> Triple:
    """Return the sums along each axis."""
    return triple(map(sum, zip(first, *others, strict=True)))


def subtracted(first: Triple, *others: Triple) -> Triple:
    """Return what is left of the first along each axis."""
    return added(first, *map(negative, others))


def multiplied(first: Triple, second: Triple) -> Triple:
    """Return the products along each axis."""
    return triple(one * other for one, other in zip(first, second, strict=True))


def divided_up(number: Triple, divisor: Triple) -> Triple:
    """Return the quotients along each axis, rounded up."""
    return triple(-(-one // other) for one, other in zip(number, divisor, strict=True))


def negative(numbers: Triple) -> Triple:
    """Return the negated numbers."""
    return triple(-number for number in numbers)


class Constant(Tagged, frozen=True, tag="constant"):
    """Padding by one value."""

    value: float


PadMode: TypeAlias = Literal["reflect", "replicate", "zero"] | Constant
"""Padding of a tensor past its border; reflect does not repeat the edge voxel."""


class Conv3d(Tagged, frozen=True, tag="conv"):
    """Cross-correlation; weight [out, in / groups, kD, kH, kW], zero padding on both sides of each
    axis.

    in_channels, out_channels: as the network counts. kernel, stride, padding, dilation: along D, H
    and W. weight, bias: names of arrays; no bias for None. groups: into which the channels fall;
    each is convolved by itself.
    """

    in_channels: int
    out_channels: int
    kernel: Triple
    weight: str
    bias: str | None = None
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    groups: int = 1

    @property
    def reach(self) -> Triple:
        """Voxels from the first to the last that the kernel reads, both included."""
        return _reach(self.kernel, self.dilation)


class ConvTranspose3d(Tagged, frozen=True, tag="conv_transpose"):
    """Transposed convolution as PyTorch defines it; weight [in, out / groups, kD, kH, kW].

    in_channels, out_channels: as the network counts. kernel, stride, padding, output_padding,
    dilation: along D, H and W. weight, bias: names of arrays; no bias for None. groups: into which
    the channels fall; each is convolved by itself.
    """

    in_channels: int
    out_channels: int
    kernel: Triple
    weight: str
    bias: str | None = None
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    output_padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    groups: int = 1

    @property
    def reach(self) -> Triple:
        """Voxels from the first to the last that one voxel of the source adds to."""
        return _reach(self.kernel, self.dilation)


class InstanceNorm(Tagged, frozen=True, tag="instance_norm"):
    """Per-patch, per-channel normalisation with biased variance, then scale and shift of [C].

    channels: how many. scale, shift: names of arrays, None without. epsilon: added to the variance.
    """

    channels: int
    scale: str | None = None
    shift: str | None = None
    epsilon: float = 1e-5


class GroupNorm(Tagged, frozen=True, tag="group_norm"):
    """InstanceNorm in which each of `groups` runs of neighbouring channels is normalised as one.

    channels: how many. scale, shift: names of arrays, None without. epsilon: added to the variance.
    """

    channels: int
    groups: int
    scale: str | None = None
    shift: str | None = None
    epsilon: float = 1e-5


class ChannelAffine(Tagged, frozen=True, tag="channel_affine"):
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


class PRelu(Tagged, frozen=True, tag="prelu"):
    """x where x > 0, else x times the slope of its channel.

    channels: how many. slope: name of an array of [C].
    """

    channels: int
    slope: str


class Elu(Tagged, frozen=True, tag="elu"):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0


class Softplus(Tagged, frozen=True, tag="softplus"):
    """log(1 + exp(x))."""


class Clip(Tagged, frozen=True, tag="clip"):
    """x kept from `low` to `high`; None leaves that side open."""

    low: float | None
    high: float | None


class Tanh(Tagged, frozen=True, tag="tanh"):
    """Hyperbolic tangent."""


class Sigmoid(Tagged, frozen=True, tag="sigmoid"):
    """1 / (1 + exp(-x))."""


class Erf(Tagged, frozen=True, tag="erf"):
    """Error function, as used in GELU."""


class Exp(Tagged, frozen=True, tag="exp"):
    """e to the power of x."""


class Inverse(Tagged, frozen=True, tag="inverse"):
    """1 / x, or 1 / sqrt(x), of an x that is never below `low`.

    low: more than 0. It keeps the unused channels finite that a GPU stores beside the others.
    """

    low: float
    root: bool = False


class Pad(Tagged, frozen=True, tag="pad"):
    """Grow D, H and W.

    mode: what fills the border. before, after: voxels along D, H and W.
    """

    mode: PadMode
    before: Triple
    after: Triple


class Crop(Tagged, frozen=True, tag="crop"):
    """Shrink D, H and W by removing voxels at their ends.

    before, after: voxels along D, H and W.
    """

    before: Triple
    after: Triple


class Channels(Tagged, frozen=True, tag="channels"):
    """Some channels, one after another.

    first: the index of the first. count: how many.
    """

    first: int
    count: int


class Add(Tagged, frozen=True, tag="add"):
    """Sum of two tensors of one shape."""


class Subtract(Tagged, frozen=True, tag="subtract"):
    """The first of two tensors of one shape less the second."""


class Multiply(Tagged, frozen=True, tag="multiply"):
    """Product, voxel by voxel, of two tensors.

    They are of one shape, or either has one channel, a gate, that multiplies all of the other's.
    """


class Concat(Tagged, frozen=True, tag="concat"):
    """Channels of the first input, then those of the second."""


class Upsample(Tagged, frozen=True, tag="upsample"):
    """Enlarge D, H and W by whole factors, with PyTorch's sampling positions.

    mode: of the interpolation. factor: along D, H and W. align_corners: as PyTorch means it.
    """

    mode: Literal["nearest", "trilinear"]
    factor: Triple
    align_corners: bool = False


class Pool(Tagged, frozen=True, tag="pool"):
    """The largest or the mean voxel of each window.

    kernel, stride, padding: along D, H and W; the part of a window outside of the tensor is never
    the largest. counts_padding: whether it counts as zeros in the mean, instead of nothing.
    """

    mode: Literal["largest", "mean"]
    kernel: Triple
    stride: Triple
    padding: Triple = (0, 0, 0)
    counts_padding: bool = True


class Downsample(Tagged, frozen=True, tag="downsample"):
    """Shrink D, H and W by whole factors after a low-pass filter, as anti-aliased networks do.

    Every channel passes by itself through the binomial filter of `taps` along each axis, whose sum
    is 1; output voxel v has its middle tap, the left one of an even number, at voxel v * factor.
    The filter reads the tensor padded past its border by `mode`.
    """

    taps: int
    factor: Triple
    mode: PadMode

    @property
    def before(self) -> Triple:
        """Voxels by which the filter extends past the first voxel of each axis."""
        reach = (self.taps - 1) // 2
        return reach, reach, reach

    @property
    def after(self) -> Triple:
        """Voxels by which the filter extends past the last voxel of each axis."""
        reach = self.taps // 2
        return reach, reach, reach

    @property
    def filter(self) -> FloatArray:
        """Values of the taps along one axis."""
        row = np.array([comb(self.taps - 1, tap) for tap in range(self.taps)])
        return (row / row.sum()).astype(np.float32)

    def weight(self, channels: int) -> FloatArray:
        """Return the same filter as a depthwise convolution weight, [C, 1, kD, kH, kW]."""
        cube = np.einsum("i,j,k->ijk", self.filter, self.filter, self.filter)
        return np.broadcast_to(cube, (channels, 1, *cube.shape))


ActivationLayer: TypeAlias = (
    Relu | LeakyRelu | Elu | Softplus | Clip | Tanh | Sigmoid | Erf | Exp | Inverse
)
"""Layer that changes each number of its one input by itself, in all channels alike."""

VoxelwiseLayer: TypeAlias = (
    InstanceNorm
    | GroupNorm
    | ChannelAffine
    | ActivationLayer
    | PRelu
    | Channels
    | Add
    | Subtract
    | Multiply
    | Concat
)
"""Layer whose output voxel depends on the same voxel of its inputs, and at most on their
statistics.
"""
Layer: TypeAlias = (
    VoxelwiseLayer | Conv3d | ConvTranspose3d | Pad | Crop | Upsample | Pool | Downsample
)


def kind_of(layer: Layer) -> str:
    """Return the name of a layer's kind in files, such as conv_transpose."""
    return str(type(layer).__struct_config__.tag)


def _reach(kernel: Triple, dilation: Triple) -> Triple:
    return added(multiplied(subtracted(kernel, ONES), dilation), ONES)
