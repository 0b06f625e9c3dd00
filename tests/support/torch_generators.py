"""The generators of the training repositories, with their own module structure in torch.

Written from descriptions of the layouts; what matters is that state_dict keys and the order of
operations are those of the named repository.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
Module = TypeVar("Module", bound=nn.Module)


def instance(channels: int) -> nn.Module:
    return nn.InstanceNorm3d(channels)


def tracked_instance(channels: int) -> nn.Module:
    return nn.InstanceNorm3d(channels, track_running_stats=True)


def affine_instance(channels: int) -> nn.Module:
    return nn.InstanceNorm3d(channels, affine=True)


def batch(channels: int) -> nn.Module:
    return nn.BatchNorm3d(channels)


PADS: dict[str, Callable[[int], nn.Module]] = {
    "reflect": nn.ReflectionPad3d,
    "replicate": nn.ReplicationPad3d,
}


class Residual(nn.Module):
    """x + conv_block(x), the block of every numbered ResNet."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_block(x)


class Sequence(nn.Module):
    """A generator that is one nn.Sequential called model."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.model = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def padded_resnet(
    inputs: int = 1,
    outputs: int = 1,
    width: int = 4,
    blocks: int = 2,
    *,
    pad: str = "reflect",
    norm: Norm = instance,
    bias: bool = True,
    up_bias: bool = True,
    dropout: bool = False,
    samplings: int = 2,
) -> Sequence:
    """davidiommi and DavidSolanas; ganslate with up_bias: pad layers, transposed convolutions."""
    layers: list[nn.Module] = [
        PADS[pad](3),
        nn.Conv3d(inputs, width, 7, bias=bias),
        norm(width),
        nn.ReLU(True),
    ]
    for _ in range(samplings):
        layers += [nn.Conv3d(width, 2 * width, 3, 2, 1, bias=bias), norm(2 * width), nn.ReLU(True)]
        width *= 2
    for _ in range(blocks):
        drop = [nn.Dropout(0.5)] if dropout else []
        layers.append(
            Residual(
                [
                    PADS[pad](1),
                    nn.Conv3d(width, width, 3, bias=bias),
                    norm(width),
                    nn.ReLU(True),
                    *drop,
                    PADS[pad](1),
                    nn.Conv3d(width, width, 3, bias=bias),
                    norm(width),
                ]
            )
        )
    for _ in range(samplings):
        layers += [
            nn.ConvTranspose3d(width, width // 2, 3, 2, 1, 1, bias=up_bias),
            norm(width // 2),
            nn.ReLU(True),
        ]
        width //= 2
    return Sequence([*layers, PADS[pad](3), nn.Conv3d(width, outputs, 7), nn.Tanh()])


def unpadded_resnet(
    inputs: int = 1,
    outputs: int = 1,
    width: int = 4,
    blocks: int = 2,
    *,
    norm: Norm = instance,
    bias: bool = True,
) -> Sequence:
    """mfazampour; dan-hanson with affine norms: zeros inside the convolutions, no pad layers."""
    layers: list[nn.Module] = [
        nn.Conv3d(inputs, width, 7, 1, 3, bias=bias),
        norm(width),
        nn.ReLU(True),
    ]
    for _ in range(2):
        layers += [nn.Conv3d(width, 2 * width, 3, 2, 1, bias=bias), norm(2 * width), nn.ReLU(True)]
        width *= 2
    for _ in range(blocks):
        layers.append(
            Residual(
                [
                    nn.Conv3d(width, width, 3, 1, 1, bias=bias),
                    norm(width),
                    nn.ReLU(True),
                    nn.Conv3d(width, width, 3, 1, 1, bias=bias),
                    norm(width),
                ]
            )
        )
    for _ in range(2):
        layers += [
            nn.ConvTranspose3d(width, width // 2, 3, 2, 1, 1, bias=bias),
            norm(width // 2),
            nn.ReLU(True),
        ]
        width //= 2
    return Sequence([*layers, nn.Conv3d(width, outputs, 7, 1, 3), nn.Tanh()])


def sampling_resnet(
    width: int = 4,
    blocks: int = 2,
    *,
    mode: str = "nearest",
    align_corners: bool | None = None,
    spectral: Callable[[nn.Module], nn.Module] | None = None,
    dropout: bool = False,
) -> Sequence:
    """naga-karthik: replicating pad layers, sampling and convolution; spectral norm, dropout."""
    wrap = spectral or (lambda module: module)
    drop = [nn.Dropout(0.2)] if dropout else []
    layers: list[nn.Module] = [
        nn.ReplicationPad3d(3),
        wrap(nn.Conv3d(1, width, 7)),
        instance(width),
        nn.ReLU(True),
    ]
    for _ in range(2):
        down = wrap(nn.Conv3d(width, 2 * width, 3, 2, 1))
        layers += [down, instance(2 * width), nn.ReLU(True), *drop]
        width *= 2
    for _ in range(blocks):
        layers.append(
            Residual(
                [
                    nn.ReplicationPad3d(1),
                    wrap(nn.Conv3d(width, width, 3)),
                    instance(width),
                    nn.ReLU(True),
                    nn.ReplicationPad3d(1),
                    wrap(nn.Conv3d(width, width, 3)),
                    instance(width),
                    *drop,
                ]
            )
        )
    for _ in range(2):
        layers += [
            nn.Upsample(scale_factor=2, mode=mode, align_corners=align_corners),
            nn.ReplicationPad3d(1),
            wrap(nn.Conv3d(width, width // 2, 3)),
            instance(width // 2),
            nn.ReLU(True),
            *drop,
        ]
        width //= 2
    return Sequence([*layers, nn.ReplicationPad3d(3), wrap(nn.Conv3d(width, 1, 7)), nn.Tanh()])


class NamedBlock(nn.Module):
    """dhaberl's convolution, norm and activation under `conv`."""

    def __init__(self, convolution: nn.Module, channels: int, act: bool = True) -> None:
        super().__init__()
        activation = nn.ReLU(True) if act else nn.Identity()
        self.conv = nn.Sequential(convolution, nn.InstanceNorm3d(channels), activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class NamedResidual(nn.Module):
    """dhaberl's residual block under `block`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            NamedBlock(reflecting(channels, channels, 3), channels),
            NamedBlock(reflecting(channels, channels, 3), channels, act=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def reflecting(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv3d:
    return nn.Conv3d(inputs, outputs, kernel, stride, kernel // 2, padding_mode="reflect")


class NamedResNet(nn.Module):
    """dhaberl: parts by name, every convolution pads by reflection, also the strided ones."""

    def __init__(self, width: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.initial = nn.Sequential(
            reflecting(1, width, 7), nn.InstanceNorm3d(width), nn.ReLU(True)
        )
        self.down_blocks = nn.ModuleList(
            NamedBlock(reflecting(n * width, 2 * n * width, 3, 2), 2 * n * width) for n in (1, 2)
        )
        self.res_blocks = nn.Sequential(*(NamedResidual(4 * width) for _ in range(blocks)))
        self.up_blocks = nn.ModuleList(
            NamedBlock(nn.ConvTranspose3d(2 * n * width, n * width, 3, 2, 1, 1), n * width)
            for n in (2, 1)
        )
        self.last = reflecting(width, 1, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.initial(x)
        for down in self.down_blocks:
            x = down(x)
        x = self.res_blocks(x)
        for up in self.up_blocks:
            x = up(x)
        return torch.tanh(self.last(x))


class UNetLevel(nn.Module):
    """One level of the nested U-Net; `skip_first` is what tells davidiommi from neoamos."""

    def __init__(
        self, layers: Iterable[nn.Module], *, outermost: bool = False, skip_first: bool = True
    ) -> None:
        super().__init__()
        self.outermost = outermost
        self.skip_first = skip_first
        self.model = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if self.outermost:
            return self.model(x)
        inside = self.model(x)
        return torch.cat([x, inside] if self.skip_first else [inside, x], 1)


class UNet(nn.Module):
    """davidiommi (and neoamos, mfazampour, ganslate): a U-Net built from the inside out."""

    def __init__(
        self,
        inputs: int = 1,
        outputs: int = 1,
        levels: int = 3,
        width: int = 4,
        *,
        norm: Norm = instance,
        bias: bool = True,
        skip_first: bool = True,
    ) -> None:
        super().__init__()
        widths = [width * min(2**level, 8) for level in range(levels)]
        block: nn.Module | None = None
        for level in reversed(range(1, levels)):
            inner, outer = widths[level], widths[level - 1]
            down = [nn.LeakyReLU(0.2, True), nn.Conv3d(outer, inner, 4, 2, 1, bias=bias)]
            entering = inner if block is None else 2 * inner
            up = [
                nn.ReLU(True),
                nn.ConvTranspose3d(entering, outer, 4, 2, 1, bias=bias),
                norm(outer),
            ]
            middle = [] if block is None else [norm(inner), block]
            block = UNetLevel([*down, *middle, *up], skip_first=skip_first)
        assert block is not None
        self.model = UNetLevel(
            [
                nn.Conv3d(inputs, width, 4, 2, 1, bias=bias),
                block,
                nn.ReLU(True),
                nn.ConvTranspose3d(2 * width, outputs, 4, 2, 1),
                nn.Tanh(),
            ],
            outermost=True,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def patch_discriminator(width: int = 4) -> Sequence:
    """The junyanz PatchGAN, whose keys look like a generator's without blocks."""
    return Sequence(
        [
            nn.Conv3d(1, width, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv3d(width, 2 * width, 4, 2, 1),
            instance(2 * width),
            nn.LeakyReLU(0.2, True),
            nn.Conv3d(2 * width, 1, 4, 1, 1),
        ]
    )


def trained(module: Module) -> Module:
    """Give every parameter and statistic a value that shows when it is left out or misplaced."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            elif name.endswith(("running_mean", "bias")):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
            elif tensor.dim() == 1 and name.endswith("weight"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            elif tensor.dim() == 5 and not name.endswith(".filt"):
                spread = (tensor[0].numel()) ** -0.5
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * spread)
        if any(name.endswith("_u") for name in module.state_dict()):
            for _ in range(4):  # spectral norm finds its vectors as it trains
                module.train()(torch.zeros(1, 1, 16, 16, 16))
    return module
