"""The generators of the CycleGAN family as graphs, with one canonical name for each weight.

Importers map a training repository's keys onto these names; nothing below knows a checkpoint.
The layouts follow the published networks of Zhu et al. 2017 (ResNet) and Isola et al. 2017
(U-Net), taken to three dimensions.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec.structs import asdict

from ..decoding import Tagged
from .graph import (
    INPUT,
    Add,
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Graph,
    InstanceNorm,
    Layer,
    LeakyRelu,
    Node,
    Pad,
    PadMode,
    Relu,
    Tanh,
    Triple,
    Upsample,
)

Norm: TypeAlias = Literal["instance", "instance_affine", "stored", "none"]
"""Instance norm without or with scale and shift, fixed stored statistics, or no norm at all."""

Upsampling: TypeAlias = Literal["transposed", "nearest", "trilinear", "trilinear_corners"]
"""How a decoder enlarges: a transposed convolution, or sampling and then a convolution."""


class ResNetSpec(Tagged, frozen=True, tag="resnet"):
    """A ResNet generator: first conv, down-samplings, residual blocks, up-samplings, last conv.

    padding: around the first conv, the block convs, the last conv and convs after sampling.
    down_padding: around the strided convs.
    norm_bias, up_bias, last_bias: whether convs before a norm, up-sampling convs, last have a bias.
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
    tanh: bool = True


class UNetSpec(Tagged, frozen=True, tag="unet"):
    """A U-Net generator of strided k4 convs; level 0 is the outermost.

    skip_first: whether a level concatenates [skip, deeper] (Isola) or [deeper, skip].
    inner_bias: whether convs inside the outermost level have a bias.
    """

    in_channels: int
    out_channels: int
    width: int
    levels: int
    norm: Norm = "instance"
    upsampling: Upsampling = "transposed"
    skip_first: bool = True
    inner_bias: bool = True
    tanh: bool = True

    def level_width(self, level: int) -> int:
        """Channels that level `level` hands inwards; they double up to eight times the width."""
        return self.width * min(2**level, 8)


Spec: TypeAlias = ResNetSpec | UNetSpec

_BOUNDS = {
    "in_channels": (1, 64),
    "out_channels": (1, 64),
    "width": (1, 1024),
    "blocks": (0, 64),
    "downsamplings": (0, 6),
    "levels": (1, 10),
    "first_kernel": (1, 31),
    "last_kernel": (1, 31),
}
"""Far beyond any trained generator; they keep a hostile file from asking for endless layers."""


def out_of_bounds(spec: Spec) -> Iterator[tuple[str, str]]:
    """Numbers of a spec that no trained generator has, each by its field, and what it must be."""
    for name, value in asdict(spec).items():
        low, high = _BOUNDS.get(name, (value, value))
        if not low <= value <= high:
            yield name, f"must lie from {low} to {high}, not at {value}"


def build(spec: Spec) -> Graph:
    """Graph of a generator; its weights are named as the builder names its layers."""
    match spec:
        case ResNetSpec():
            return _resnet(spec)
        case UNetSpec():
            return _unet(spec)


class _Builder:
    """Appends layers one after another; remembers the newest tensor."""

    def __init__(self, norm: Norm) -> None:
        self.nodes: list[Node] = []
        self.newest = INPUT
        self._norm: Norm = norm

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        self.nodes.append(Node(name, layer, inputs or (self.newest,)))
        self.newest = name
        return name

    def conv(
        self,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        *,
        bias: bool,
        mode: PadMode,
        stride: int = 1,
        padding: int | None = None,
    ) -> None:
        """A convolution with `mode` padding; zeros are left to the convolution itself."""
        width = kernel // 2 if padding is None else padding
        own = 0
        if mode == "zero":
            own = width
        else:
            self.add(f"{name}.pad", Pad(mode, _cube(width), _cube(width)))
        self.add(
            name,
            Conv3d(
                *channels,
                kernel=_cube(kernel),
                weight=f"{name}.weight",
                bias=f"{name}.bias" if bias else None,
                stride=_cube(stride),
                padding=_cube(own),
            ),
        )

    def norm(self, name: str, channels: int) -> None:
        scale, shift = f"{name}.scale", f"{name}.shift"
        match self._norm:
            case "instance":
                self.add(name, InstanceNorm(channels))
            case "instance_affine":
                self.add(name, InstanceNorm(channels, scale, shift))
            case "stored":
                self.add(name, ChannelAffine(channels, scale, shift))
            case "none":
                pass

    def sample(self, name: str, upsampling: Upsampling) -> None:
        """Double D, H and W by sampling."""
        mode = "nearest" if upsampling == "nearest" else "trilinear"
        corners = upsampling == "trilinear_corners"
        self.add(f"{name}.sample", Upsample(mode, (2, 2, 2), corners))

    def transposed(
        self, name: str, channels: tuple[int, int], kernel: int, *, bias: bool, output_padding: int
    ) -> None:
        """Double D, H and W by a transposed convolution of stride 2 and padding 1."""
        self.add(
            name,
            ConvTranspose3d(
                *channels,
                kernel=_cube(kernel),
                weight=f"{name}.weight",
                bias=f"{name}.bias" if bias else None,
                stride=(2, 2, 2),
                padding=(1, 1, 1),
                output_padding=_cube(output_padding),
            ),
        )


def _cube(edge: int) -> Triple:
    return edge, edge, edge


def _resnet(spec: ResNetSpec) -> Graph:
    net = _Builder(spec.norm)
    width = spec.width
    net.conv(
        "first",
        (spec.in_channels, width),
        spec.first_kernel,
        bias=spec.norm_bias,
        mode=spec.padding,
    )
    net.norm("first.norm", width)
    net.add("first.relu", Relu())

    for step in range(spec.downsamplings):
        name = f"down{step}"
        net.conv(name, (width, 2 * width), 3, bias=spec.norm_bias, mode=spec.down_padding, stride=2)
        width *= 2
        net.norm(f"{name}.norm", width)
        net.add(f"{name}.relu", Relu())

    for index in range(spec.blocks):
        _residual_block(net, spec, f"block{index}", width)

    for step in range(spec.downsamplings):
        name = f"up{step}"
        if spec.upsampling == "transposed":
            channels = width, width // 2
            net.transposed(name, channels, 3, bias=spec.up_bias, output_padding=1)
        else:
            net.sample(name, spec.upsampling)
            net.conv(name, (width, width // 2), 3, bias=spec.up_bias, mode=spec.padding)
        width //= 2
        net.norm(f"{name}.norm", width)
        net.add(f"{name}.relu", Relu())

    net.conv(
        "last", (width, spec.out_channels), spec.last_kernel, bias=spec.last_bias, mode=spec.padding
    )
    if spec.tanh:
        net.add("tanh", Tanh())
    return Graph(spec.in_channels, tuple(net.nodes))


def _residual_block(net: _Builder, spec: ResNetSpec, name: str, width: int) -> None:
    entering = net.newest
    net.conv(f"{name}.conv0", (width, width), 3, bias=spec.norm_bias, mode=spec.padding)
    net.norm(f"{name}.norm0", width)
    net.add(f"{name}.relu", Relu())
    net.conv(f"{name}.conv1", (width, width), 3, bias=spec.norm_bias, mode=spec.padding)
    net.norm(f"{name}.norm1", width)
    net.add(f"{name}.add", Add(), entering, net.newest)


def _unet(spec: UNetSpec) -> Graph:
    net = _Builder(spec.norm)
    skips: list[str] = []
    for level in range(spec.levels):
        outermost, innermost = level == 0, level == spec.levels - 1
        entering = spec.in_channels if outermost else spec.level_width(level - 1)
        name = f"down{level}"
        if not outermost:
            skips.append(net.newest)
            net.add(f"{name}.leaky", LeakyRelu(0.2))
        channels = entering, spec.level_width(level)
        net.conv(name, channels, 4, bias=spec.inner_bias, mode="zero", stride=2, padding=1)
        if not outermost and not innermost:
            net.norm(f"{name}.norm", spec.level_width(level))

    for level in reversed(range(spec.levels)):
        outermost, innermost = level == 0, level == spec.levels - 1
        inside = spec.level_width(level) * (1 if innermost else 2)
        leaving = spec.out_channels if outermost else spec.level_width(level - 1)
        name = f"up{level}"
        net.add(f"{name}.relu", Relu())
        bias = outermost or spec.inner_bias
        if spec.upsampling == "transposed":
            net.transposed(name, (inside, leaving), 4, bias=bias, output_padding=0)
        else:
            net.sample(name, spec.upsampling)
            net.conv(name, (inside, leaving), 3, bias=bias, mode="zero")
        if not outermost:
            net.norm(f"{name}.norm", leaving)
            deeper, skip = net.newest, skips.pop()
            pair = (skip, deeper) if spec.skip_first else (deeper, skip)
            net.add(f"{name}.concat", Concat(), *pair)
    if spec.tanh:
        net.add("tanh", Tanh())
    return Graph(spec.in_channels, tuple(net.nodes))
