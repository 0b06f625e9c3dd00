"""The generators of the CycleGAN family as graphs, with one canonical name for each weight.

Importers map a training repository's keys onto these names; nothing below knows a checkpoint.
The layouts follow the published networks of Zhu et al. 2017 (ResNet) and Isola et al. 2017
(U-Net), taken to three dimensions.
"""

from collections.abc import Iterator
from operator import mul
from typing import Literal, TypeAlias

import msgspec

from ..decoding import Tagged
from . import layers
from .graph import INPUT, Graph, Node, graph_out_of_bounds, numbers
from .layers import Layer, PadMode, Triple, triple


class Groups(Tagged, frozen=True, tag="group"):
    """Group norm, with scale and shift of each channel or without."""

    groups: int
    affine: bool = True


Norm: TypeAlias = Literal["instance", "instance_affine", "stored", "none"] | Groups
"""Instance norm without or with scale and shift, fixed stored statistics, no norm, group norm."""

Rectifier: TypeAlias = layers.Relu | layers.LeakyRelu | layers.Elu
"""Activation after a norm."""

Upsampling: TypeAlias = Literal[
    "transposed", "nearest", "trilinear", "trilinear_corners", "trilinear_zeros"
]
"""Up-sampling of a decoder: a transposed convolution, or sampling and then a convolution.

Doubling by the anti-aliasing filter [1, 3, 3, 1] with replicated border, as in contrastive unpaired
translation, has the same result as "trilinear"; with zeros there, as "trilinear_zeros".
"""

Residual: TypeAlias = Literal["sum", "activated_sum", "none"]
"""Output of a residual block: the sum with its input, that sum after the block's activation, or the
output of its convolutions only.
"""

End: TypeAlias = Literal["tanh", "sigmoid", "none"]
"""Activation after the last convolution."""


class Blur(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The low-pass filter of an anti-aliased encoder: binomial, of `taps` along each axis."""

    taps: int = 3
    padding: PadMode = "reflect"


class ResNetSpec(Tagged, frozen=True, tag="resnet"):
    """A ResNet generator: first conv, down-samplings, residual blocks, up-samplings, last conv.

    padding: around the first and the last conv; block_padding: around those of the blocks;
    down_padding: around those that shrink, up_padding: around those after sampling. None: as
    padding.
    norm_bias, up_bias, last_bias: whether convs before a norm, up-sampling convs, last have a bias.
    activation: of the first conv and the encoder; block_activation, up_activation: of the blocks
    and the decoder. None: as activation.
    stride: by which each down-sampling shrinks and each up-sampling enlarges D, H and W.
    blur: if set, convs of the encoder keep the extents, and the filter shrinks their output.
    adds_input: whether the patch is added to the network's output.
    """

    in_channels: int
    out_channels: int
    width: int
    blocks: int
    downsamplings: int = 2
    padding: PadMode = "reflect"
    down_padding: PadMode = "zero"
    norm: Norm = "instance"
    upsampling: Upsampling = "transposed"
    norm_bias: bool = True
    up_bias: bool = True
    last_bias: bool = True
    first_kernel: int = 7
    last_kernel: int = 7
    end: End = "tanh"
    block_padding: PadMode | None = None
    up_padding: PadMode | None = None
    activation: Rectifier = layers.Relu()
    block_activation: Rectifier | None = None
    up_activation: Rectifier | None = None
    residual: Residual = "sum"
    norm_epsilon: float = 1e-5
    stride: Triple = (2, 2, 2)
    block_dilation: int = 1
    blur: Blur | None = None
    adds_input: bool = False


class UNetSpec(Tagged, frozen=True, tag="unet"):
    """A U-Net generator of strided convs; level 0 is the outermost.

    skip_first: whether a level concatenates [skip, deeper] (Isola) or [deeper, skip].
    inner_bias: whether convs inside the outermost level have a bias.
    padding: around convs that shrink and those after sampling.
    down_activation, up_activation: before the convs that shrink and those that enlarge.
    stride: by which each level shrinks D, H and W; kernels are larger by 2.
    adds_input: whether the patch is added to the network's output.
    """

    in_channels: int
    out_channels: int
    width: int
    levels: int
    norm: Norm = "instance"
    upsampling: Upsampling = "transposed"
    skip_first: bool = True
    inner_bias: bool = True
    end: End = "tanh"
    padding: PadMode = "zero"
    down_activation: Rectifier = layers.LeakyRelu(0.2)
    up_activation: Rectifier = layers.Relu()
    norm_epsilon: float = 1e-5
    stride: Triple = (2, 2, 2)
    adds_input: bool = False

    def level_width(self, level: int) -> int:
        """Return the channels that level `level` passes inwards; they double up to eight times the
        width.
        """
        return self.width * min(2**level, 8)


Spec: TypeAlias = ResNetSpec | UNetSpec

Architecture: TypeAlias = Spec | Graph
"""A generator of the family by name and numbers, or any network as its layers."""

_BOUNDS: dict[str, tuple[float, float]] = {
    "in_channels": (1, 64),
    "out_channels": (1, 64),
    "width": (1, 1024),
    "blocks": (0, 64),
    "downsamplings": (0, 6),
    "levels": (1, 10),
    "first_kernel": (1, 31),
    "last_kernel": (1, 31),
    "groups": (1, 1024),
    "norm_epsilon": (1e-12, 1),
    "slope": (-10, 10),
    "alpha": (0, 10),
    "value": (-1000, 1000),
    "stride": (1, 4),
    "block_dilation": (1, 16),
    "taps": (1, 7),
}
"""Bounds far beyond any trained generator, so that a hostile file cannot request endless layers."""


def out_of_bounds(architecture: Architecture) -> Iterator[tuple[str, str]]:
    """Yield values that no trained generator has, each with its field and the allowed range."""
    match architecture:
        case Graph():
            yield from graph_out_of_bounds(architecture)
        case spec:
            yield from _spec_out_of_bounds(spec)


def _spec_out_of_bounds(spec: Spec) -> Iterator[tuple[str, str]]:
    for path, value in numbers(spec):
        low, high = _BOUNDS.get(path.rpartition(".")[2], (value, value))
        if not low <= value <= high:
            yield path, f"must be from {low:g} to {high:g}, not {value:g}"
    if isinstance(spec.norm, Groups) and spec.width % max(1, spec.norm.groups):
        yield "norm.groups", f"must divide the width of {spec.width}, not be {spec.norm.groups}"
    if spec.adds_input and spec.in_channels != spec.out_channels:
        yield "adds_input", "must be false if the numbers of input and output channels differ"


def build(architecture: Architecture) -> Graph:
    """Return the graph of a generator; weights have the names that the builder gives its layers."""
    match architecture:
        case Graph():
            return architecture
        case ResNetSpec():
            return _resnet(architecture)
        case UNetSpec():
            return _unet(architecture)


class _Builder:
    """Builder that appends layers one after another and remembers the newest tensor."""

    def __init__(self, spec: Spec) -> None:
        self.nodes: list[Node] = []
        self.newest = INPUT
        self._spec = spec

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        self.nodes.append(Node(name, layer, inputs or (self.newest,)))
        self.newest = name
        return name

    def conv(
        self,
        name: str,
        channels: tuple[int, int],
        kernel: int | Triple,
        *,
        bias: bool,
        mode: PadMode,
        stride: Triple = (1, 1, 1),
        padding: int | None = None,
        dilation: int = 1,
    ) -> None:
        """Append a convolution with `mode` padding; zeros are left to the convolution itself.

        padding: by default the one that keeps the extents at a stride of 1.
        """
        kernel = _cube(kernel) if isinstance(kernel, int) else kernel
        width = _cube(dilation * (kernel[0] // 2) if padding is None else padding)
        own = _cube(0)
        if mode == "zero":
            own = width
        else:
            self.add(f"{name}.pad", layers.Pad(mode, width, width))
        weight, summand = f"{name}.weight", f"{name}.bias" if bias else None
        layer = layers.Conv3d(*channels, kernel, weight, summand, stride, own, _cube(dilation))
        self.add(name, layer)

    def norm(self, name: str, channels: int) -> None:
        scale, shift = f"{name}.scale", f"{name}.shift"
        epsilon = self._spec.norm_epsilon
        match self._spec.norm:
            case "instance":
                self.add(name, layers.InstanceNorm(channels, epsilon=epsilon))
            case "instance_affine":
                self.add(name, layers.InstanceNorm(channels, scale, shift, epsilon))
            case "stored":
                self.add(name, layers.ChannelAffine(channels, scale, shift))
            case "none":
                pass
            case Groups(groups, True):
                self.add(name, layers.GroupNorm(channels, groups, scale, shift, epsilon))
            case Groups(groups):
                self.add(name, layers.GroupNorm(channels, groups, epsilon=epsilon))

    def sample(self, name: str) -> None:
        """Enlarge D, H and W by sampling."""
        upsampling = self._spec.upsampling
        mode = "nearest" if upsampling == "nearest" else "trilinear"
        corners = upsampling == "trilinear_corners"
        around = triple(int(factor > 1) for factor in self._spec.stride)
        if upsampling == "trilinear_zeros":
            self.add(f"{name}.around", layers.Pad("zero", around, around))
        self.add(f"{name}.sample", layers.Upsample(mode, self._spec.stride, corners))
        if upsampling == "trilinear_zeros":
            cut = triple(map(mul, around, self._spec.stride))
            self.add(f"{name}.inside", layers.Crop(cut, cut))

    def transposed(
        self,
        name: str,
        channels: tuple[int, int],
        kernel: Triple,
        *,
        bias: bool,
        output_padding: Triple,
    ) -> None:
        """Enlarge D, H and W by a transposed convolution of padding 1."""
        weight, summand = f"{name}.weight", f"{name}.bias" if bias else None
        stride = self._spec.stride
        sizes = kernel, weight, summand, stride, _cube(1), output_padding
        self.add(name, layers.ConvTranspose3d(*channels, *sizes))

    def finished(self) -> Graph:
        """Return the graph, with the layers at its end."""
        match self._spec.end:
            case "tanh":
                self.add("tanh", layers.Tanh())
            case "sigmoid":
                self.add("sigmoid", layers.Sigmoid())
            case "none":
                pass
        if self._spec.adds_input:
            self.add("sum", layers.Add(), INPUT, self.newest)
        return Graph(self._spec.in_channels, tuple(self.nodes))


def _cube(edge: int) -> Triple:
    return edge, edge, edge


def _resnet(spec: ResNetSpec) -> Graph:
    net = _Builder(spec)
    width = spec.width
    entering = spec.in_channels, width
    net.conv("first", entering, spec.first_kernel, bias=spec.norm_bias, mode=spec.padding)
    net.norm("first.norm", width)
    net.add("first.relu", spec.activation)
    for step in range(spec.downsamplings):
        _down(net, spec, f"down{step}", width)
        width *= 2
    for index in range(spec.blocks):
        _residual_block(net, spec, f"block{index}", width)
    for step in range(spec.downsamplings):
        _up(net, spec, f"up{step}", width)
        width //= 2
    leaving = width, spec.out_channels
    net.conv("last", leaving, spec.last_kernel, bias=spec.last_bias, mode=spec.padding)
    return net.finished()


def _down(net: _Builder, spec: ResNetSpec, name: str, width: int) -> None:
    stride = _cube(1) if spec.blur else spec.stride
    channels = width, 2 * width
    net.conv(name, channels, 3, bias=spec.norm_bias, mode=spec.down_padding, stride=stride)
    net.norm(f"{name}.norm", 2 * width)
    net.add(f"{name}.relu", spec.activation)
    if spec.blur:
        net.add(f"{name}.blur", layers.Downsample(spec.blur.taps, spec.stride, spec.blur.padding))


def _residual_block(net: _Builder, spec: ResNetSpec, name: str, width: int) -> None:
    entering, channels = net.newest, (width, width)
    mode = spec.block_padding or spec.padding
    activation = spec.block_activation or spec.activation
    for index in range(2):
        layer, bias, dilation = f"{name}.conv{index}", spec.norm_bias, spec.block_dilation
        net.conv(layer, channels, 3, bias=bias, mode=mode, dilation=dilation)
        net.norm(f"{name}.norm{index}", width)
        if index == 0:
            net.add(f"{name}.relu", activation)
    if spec.residual != "none":
        net.add(f"{name}.add", layers.Add(), entering, net.newest)
    if spec.residual == "activated_sum":
        net.add(f"{name}.after", activation)


def _up(net: _Builder, spec: ResNetSpec, name: str, width: int) -> None:
    channels = width, width // 2
    if spec.upsampling == "transposed":
        depth, height, breadth = (factor - 1 for factor in spec.stride)
        extra = depth, height, breadth
        net.transposed(name, channels, _cube(3), bias=spec.up_bias, output_padding=extra)
    else:
        net.sample(name)
        mode = spec.up_padding or spec.padding
        net.conv(name, channels, 3, bias=spec.up_bias, mode=mode)
    net.norm(f"{name}.norm", width // 2)
    net.add(f"{name}.relu", spec.up_activation or spec.activation)


def _unet(spec: UNetSpec) -> Graph:
    net = _Builder(spec)
    kernel = triple(factor + 2 for factor in spec.stride)
    skips: list[str] = []
    for level in range(spec.levels):
        outermost, innermost = level == 0, level == spec.levels - 1
        entering = spec.in_channels if outermost else spec.level_width(level - 1)
        name = f"down{level}"
        if not outermost:
            skips.append(net.newest)
            net.add(f"{name}.leaky", spec.down_activation)
        channels, bias, mode = (entering, spec.level_width(level)), spec.inner_bias, spec.padding
        net.conv(name, channels, kernel, bias=bias, mode=mode, stride=spec.stride, padding=1)
        if not outermost and not innermost:
            net.norm(f"{name}.norm", spec.level_width(level))

    for level in reversed(range(spec.levels)):
        outermost, innermost = level == 0, level == spec.levels - 1
        inside = spec.level_width(level) * (1 if innermost else 2)
        leaving = spec.out_channels if outermost else spec.level_width(level - 1)
        name = f"up{level}"
        net.add(f"{name}.relu", spec.up_activation)
        bias = outermost or spec.inner_bias
        if spec.upsampling == "transposed":
            net.transposed(name, (inside, leaving), kernel, bias=bias, output_padding=_cube(0))
        else:
            net.sample(name)
            net.conv(name, (inside, leaving), 3, bias=bias, mode=spec.padding)
        if not outermost:
            net.norm(f"{name}.norm", leaving)
            deeper, skip = net.newest, skips.pop()
            pair = (skip, deeper) if spec.skip_first else (deeper, skip)
            net.add(f"{name}.concat", layers.Concat(), *pair)
    return net.finished()
