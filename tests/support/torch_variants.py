"""Generators that differ from the usual ones in single respects, as training code may have them.

All keep the key naming of the numbered ResNet or of the nested U-Net, so that nothing in a
checkpoint but its weights speaks of the difference.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from support.torch_generators import Norm, Sequence, UNetLevel, instance
from torch import Tensor, nn

Wrap = Callable[[nn.Module], nn.Module]

PAD_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "reflect": nn.ReflectionPad3d,
    "replicate": nn.ReplicationPad3d,
    "zero": nn.ZeroPad3d,
    "constant": lambda width: nn.ConstantPad3d(width, -1.0),
}


class Block(nn.Module):
    """A residual block whose end and whose name can be chosen."""

    def __init__(self, layers: nn.Sequential, form: str, name: str) -> None:
        super().__init__()
        self.form, self.name = form, name
        setattr(self, name, layers)

    def forward(self, x: Tensor) -> Tensor:
        made = getattr(self, self.name)(x)
        match self.form:
            case "none":
                return made
            case "activated-sum":
                return torch.relu(x + made)
            case _:
                return x + made


@dataclass(frozen=True)
class ResNet:
    """Parts of a numbered ResNet.

    pad, block_pad, up_pad: a pad layer by name, or "" for padding inside the convolutions, by
    `mode` or, of those that shrink, by `down_mode`. up: "transposed", or how it samples.
    """

    width: int = 2
    blocks: int = 1
    samplings: int = 1
    inputs: int = 1
    outputs: int = 1
    pad: str = "reflect"
    block_pad: str = "reflect"
    up_pad: str = "reflect"
    mode: str = "zeros"
    down_mode: str = "zeros"
    norm: Norm | None = instance
    activation: Callable[[], nn.Module] = nn.ReLU
    block_activation: Callable[[], nn.Module] | None = None
    up_activation: Callable[[], nn.Module] | None = None
    residual: str = "sum"
    end: Callable[[], nn.Module] | None = nn.Tanh
    up: str = "transposed"
    stride: tuple[int, int, int] = (2, 2, 2)
    dilation: int = 1
    block_name: str = "conv_block"
    wrap: Wrap = lambda module: module
    bias: bool = True

    def made(self) -> Sequence:
        """The generator."""
        width = self.width
        layers = [*self._padded(self.pad, 7, self.inputs, width), *self._behind(width)]
        for _ in range(self.samplings):
            down = nn.Conv3d(
                *(width, 2 * width, 3),
                stride=self.stride,
                padding=1,
                padding_mode=self.down_mode,
                bias=self.bias,
            )
            layers += [self.wrap(down), *self._behind(2 * width)]
            width *= 2
        layers += [self._block(width) for _ in range(self.blocks)]
        for _ in range(self.samplings):
            layers += [*self._up(width), *self._behind(width // 2, self.up_activation)]
            width //= 2
        layers += self._padded(self.pad, 7, width, self.outputs, bias=True)
        return Sequence([*layers, *([self.end()] if self.end else [])])

    def _behind(
        self, channels: int, activation: Callable[[], nn.Module] | None = None
    ) -> list[nn.Module]:
        norm = [self.norm(channels)] if self.norm else []
        return [*norm, (activation or self.activation)()]

    def _padded(
        self,
        pad: str,
        kernel: int,
        inputs: int,
        outputs: int,
        dilation: int = 1,
        bias: bool | None = None,
    ) -> list[nn.Module]:
        reach = dilation * (kernel // 2)
        layer = [PAD_LAYERS[pad](reach)] if pad else []
        conv = nn.Conv3d(
            *(inputs, outputs, kernel),
            padding=0 if pad else reach,
            padding_mode=self.mode,
            dilation=dilation,
            bias=self.bias if bias is None else bias,
        )
        return [*layer, self.wrap(conv)]

    def _block(self, width: int) -> Block:
        norm = [self.norm(width)] if self.norm else []
        first, second = (
            self._padded(self.block_pad, 3, width, width, self.dilation) for _ in range(2)
        )
        activation = (self.block_activation or self.activation)()
        layers = nn.Sequential(*first, *norm, activation, *second)
        if self.norm:
            layers.append(self.norm(width))
        return Block(layers, self.residual, self.block_name)

    def _up(self, width: int) -> list[nn.Module]:
        if self.up == "transposed":
            extra = tuple(step - 1 for step in self.stride)
            kernel, padding = 3, 1
            conv = nn.ConvTranspose3d(
                *(width, width // 2, kernel), self.stride, padding, extra, bias=self.bias
            )
            return [self.wrap(conv)]
        kind, _, corners = self.up.partition("-")
        align = {"nearest": None}.get(kind, bool(corners))
        sample = nn.Upsample(scale_factor=self.stride, mode=kind, align_corners=align)
        return [sample, *self._padded(self.up_pad, 3, width, width // 2)]


class Filter(nn.Module):
    """A fixed filter of each channel by itself, as contrastive unpaired translation stores it."""

    def __init__(self, channels: int, row: tuple[float, ...], gain: float) -> None:
        super().__init__()
        line = torch.tensor(row)
        cube = line[:, None, None] * line[None, :, None] * line[None, None, :]
        cube = gain * cube / cube.sum()
        self.channels = channels
        self.register_buffer("filt", cube.repeat(channels, 1, 1, 1, 1))


class BlurDown(Filter):
    """Halves the extents behind [1, 2, 1]."""

    def __init__(self, channels: int, mode: str) -> None:
        super().__init__(channels, (1.0, 2.0, 1.0), 1.0)
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        grown = nn.functional.pad(x, [1] * 6, mode=self.mode)
        return nn.functional.conv3d(grown, self.filt, stride=2, groups=self.channels)


class BlurUp(Filter):
    """Doubles the extents by [1, 3, 3, 1], which the 3-D code sums to 4 and not to 8.

    mode: of padding; the published one asks for "repl", which its filter takes for zeros.
    """

    def __init__(self, channels: int, mode: str) -> None:
        super().__init__(channels, (1.0, 3.0, 3.0, 1.0), 4.0)
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        grown = nn.functional.pad(x, [1] * 6, mode=self.mode)
        made = nn.functional.conv_transpose3d(
            grown, self.filt, stride=2, padding=2, groups=self.channels
        )
        return made[:, :, 1:-1, 1:-1, 1:-1]


def anti_aliased(
    width: int = 2,
    blocks: int = 1,
    *,
    samplings: int = 2,
    mode: str = "replicate",
    up_mode: str = "replicate",
) -> Sequence:
    """lucianoAvinas: filters around convolutions that keep the extents."""

    def padded(inputs: int, outputs: int, kernel: int) -> nn.Conv3d:
        return nn.Conv3d(inputs, outputs, kernel, padding=kernel // 2, padding_mode="replicate")

    layers: list[nn.Module] = [padded(1, width, 7), instance(width), nn.ReLU()]
    for _ in range(samplings):
        layers += [nn.Conv3d(width, 2 * width, 3, padding=1), instance(2 * width), nn.ReLU()]
        layers += [BlurDown(2 * width, mode)]
        width *= 2
    for _ in range(blocks):
        parts = [padded(width, width, 3), instance(width), nn.ReLU()]
        parts += [padded(width, width, 3), instance(width)]
        layers.append(Block(nn.Sequential(*parts), "sum", "conv_block"))
    for _ in range(samplings):
        layers += [BlurUp(width, up_mode), nn.Conv3d(width, width // 2, 3, padding=1)]
        layers += [instance(width // 2), nn.ReLU()]
        width //= 2
    return Sequence([*layers, padded(width, 1, 7), nn.Tanh()])


def unet(
    levels: int = 2,
    width: int = 2,
    *,
    norm: Norm = instance,
    slope: float = 0.2,
    up_activation: Callable[[], nn.Module] = nn.ReLU,
    end: Callable[[], nn.Module] = nn.Tanh,
    mode: str = "zeros",
    stride: tuple[int, int, int] = (2, 2, 2),
    skip_first: bool = True,
) -> nn.Module:
    """A nested U-Net; the kernel is larger than the stride by two along each axis."""
    kernel = tuple(step + 2 for step in stride)
    widths = [width * min(2**level, 8) for level in range(levels)]

    def down(inputs: int, outputs: int) -> nn.Module:
        return nn.Conv3d(inputs, outputs, kernel, stride, 1, padding_mode=mode)

    def up(inputs: int, outputs: int) -> nn.Module:
        return nn.ConvTranspose3d(inputs, outputs, kernel, stride, 1)

    block: nn.Module | None = None
    for level in reversed(range(1, levels)):
        inner, outer = widths[level], widths[level - 1]
        middle = [norm(inner), block] if block else []
        entering = 2 * inner if block else inner
        layers = [nn.LeakyReLU(slope), down(outer, inner), *middle]
        layers += [up_activation(), up(entering, outer), norm(outer)]
        block = UNetLevel(layers, skip_first=skip_first)
    assert block is not None
    outermost = [down(1, width), block, up_activation(), up(2 * width, 1), end()]
    whole = nn.Module()
    whole.model = UNetLevel(outermost, outermost=True)
    whole.forward = whole.model.forward
    return whole


class Adding(nn.Module):
    """A generator of the difference to its input."""

    def __init__(self, generator: nn.Module) -> None:
        super().__init__()
        self.model = generator.model

    def forward(self, x: Tensor) -> Tensor:
        return x + self.model(x)


class Followed(nn.Module):
    """A generator with a layer without weights behind it."""

    def __init__(self, generator: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.model = generator.model
        self.behind = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.model(x))


class Times(nn.Module):
    """A constant factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor
