"""The networks of a 3D CycleGAN: the ResNet generator of Johnson et al. 2016 as Zhu et al. 2017 use
it, and the PatchGAN discriminator of Isola et al. 2017, both with three-dimensional layers.

The generator keeps its layers in one Sequential named `model`, so that its weights carry the names
that training code of this family writes.
"""

from torch import Tensor, nn


def _norm(channels: int) -> nn.Module:
    return nn.InstanceNorm3d(channels, affine=False, track_running_stats=False)


class ResnetBlock(nn.Module):
    """x + conv(conv(x)), reflecting at the border."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.ReflectionPad3d(1),
            nn.Conv3d(channels, channels, 3),
            _norm(channels),
            nn.ReLU(inplace=True),
            nn.ReflectionPad3d(1),
            nn.Conv3d(channels, channels, 3),
            _norm(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_block(x)


class ResnetGenerator(nn.Module):
    """[N, 1, D, H, W] in [-1, 1] to the same shape and range; D, H, W divisible by 2**downs.

    It enlarges by nearest neighbour and a convolution, which, unlike a transposed convolution of
    kernel 3, treats all voxels alike and so leaves no checkerboard (Odena et al. 2016).
    """

    def __init__(self, ngf: int, blocks: int, downs: int) -> None:
        super().__init__()
        layers = [nn.ReflectionPad3d(3), nn.Conv3d(1, ngf, 7), _norm(ngf), nn.ReLU(inplace=True)]
        width = ngf
        for _ in range(downs):
            layers += [nn.Conv3d(width, 2 * width, 3, stride=2, padding=1)]
            layers += [_norm(2 * width), nn.ReLU(inplace=True)]
            width *= 2
        layers += [ResnetBlock(width) for _ in range(blocks)]
        for _ in range(downs):
            half = width // 2
            layers += [
                nn.Upsample(scale_factor=2),
                nn.ReflectionPad3d(1),
                nn.Conv3d(width, half, 3),
            ]
            layers += [_norm(half), nn.ReLU(inplace=True)]
            width = half
        layers += [nn.ReflectionPad3d(3), nn.Conv3d(ngf, 1, 7), nn.Tanh()]
        self.model = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class PatchDiscriminator(nn.Module):
    """[N, 1, D, H, W] to a map of verdicts, one for each receptive field of 18 voxels edge.

    It has no norm: whether an absolute intensity is right is half of what it must learn.
    """

    def __init__(self, ndf: int) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv3d(1, ndf, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv3d(ndf, 2 * ndf, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv3d(2 * ndf, 2 * ndf, 3, padding=1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv3d(2 * ndf, 1, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def initialise(network: nn.Module) -> None:
    """Weights from N(0, 0.02), biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv3d):
            nn.init.normal_(module.weight, 0.0, 0.02)
            nn.init.zeros_(module.bias)


def parameters(network: nn.Module) -> int:
    return sum(weights.numel() for weights in network.parameters())


def freeze(network: nn.Module, frozen: bool) -> None:
    """Keep (or stop keeping) a network's weights out of the backward pass."""
    for weights in network.parameters():
        weights.requires_grad_(not frozen)
