"""Generators of other families as labs train them, and ONNX files of them as exporters write."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from monai.networks import nets
from monai.networks.blocks import SubpixelUpsample
from monai.networks.nets import basic_unet
from support import torch_generators, torch_variants
from support.features_in_torch import computed
from support.network_features import FEATURES, trained
from torch import Tensor, nn

from cuda_cyclegan.engine.network.architectures import Spec
from cuda_cyclegan.engine.network.graph import Network

EXTENT = 16
_NORM = ("INSTANCE", {"affine": True})


class Normalised(nn.Module):
    """Batch norm, pooling, products, slices and what else plain graphs may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv3d(1, 8, 3, padding=1, padding_mode="replicate")
        self.norm = nn.BatchNorm3d(8)
        self.slopes = nn.PReLU(8)
        self.group = nn.Conv3d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.even = nn.Conv3d(8, 4, 2)
        self.spread = nn.ConvTranspose3d(4, 4, 3, 2, 1, 1, groups=2)
        self.leave = nn.Conv3d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.slopes(self.norm(self.enter(x)))
        wide = nn.functional.softplus(self.group(wide)) - wide
        gated = wide[:, :4] * torch.sigmoid(wide[:, 4:])
        small = nn.functional.avg_pool3d(nn.functional.pad(gated, (1, 0, 0, 1, 0, 0)), 3, 1, 1)
        small = nn.functional.max_pool3d(small[:, :, :, :-1, 1:], 3, 2, 1)
        halved = self.even(nn.functional.pad(wide, (0, 1) * 3))
        near = nn.functional.interpolate(small, scale_factor=2, mode="nearest")
        joined = torch.cat([near, halved, self.spread(small)], 1)
        return self.leave(torch.clamp(joined * 0.5 + 0.1, -2, 3)).clamp(min=-1)


def pix2pix_hd(width: int = 4, samplings: int = 2, blocks: int = 1) -> nn.Module:
    """The global generator of pix2pixHD in three dimensions, whose blocks reflect."""
    layers: list[nn.Module] = [nn.ReflectionPad3d(3), nn.Conv3d(1, width, 7)]
    layers += [nn.InstanceNorm3d(width), nn.ReLU(True)]
    for _ in range(samplings):
        layers += [nn.Conv3d(width, 2 * width, 3, 2, 1), nn.InstanceNorm3d(2 * width)]
        layers.append(nn.ReLU(True))
        width *= 2
    for _ in range(blocks):
        layers.append(Reflecting(width))
    for _ in range(samplings):
        layers.append(nn.ConvTranspose3d(width, width // 2, 3, 2, 1, 1))
        layers += [nn.InstanceNorm3d(width // 2), nn.ReLU(True)]
        width //= 2
    return nn.Sequential(*layers, nn.ReflectionPad3d(3), nn.Conv3d(width, 1, 7), nn.Tanh())


class Reflecting(nn.Module):
    """A residual block of pix2pixHD."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = [nn.ReflectionPad3d(1), nn.Conv3d(width, width, 3), nn.InstanceNorm3d(width)]
        again = [nn.ReflectionPad3d(1), nn.Conv3d(width, width, 3), nn.InstanceNorm3d(width)]
        self.inner = nn.Sequential(*half, nn.ReLU(True), *again)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Expanded(nn.Module):
    """An attention gate that is expanded, an input that is repeated, and spectral norm left in."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.utils.spectral_norm(nn.Conv3d(1, 4, 3, padding=1))
        self.down = nn.Conv3d(4, 6, 3, 2, 1)
        self.gate = nn.Conv3d(6, 1, 1)
        self.leave = nn.Conv3d(4, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.mish(self.enter(x)) + x.repeat(1, 4, 1, 1, 1)
        gate = torch.sigmoid(self.gate(torch.relu(self.down(wide))))
        sizes = wide.shape[2:]
        gate = nn.functional.interpolate(gate, sizes, mode="trilinear", align_corners=True)
        return torch.tanh(self.leave(wide * gate.expand_as(wide) - x))


class Tracked(nn.Module):
    """Norms as in davidiommi's generators, which track statistics that its test never uses."""

    def __init__(self) -> None:
        super().__init__()
        norm: dict[str, Any] = {"affine": False, "track_running_stats": True}
        self.model = nn.Sequential(
            *(nn.ReplicationPad3d(1), nn.Conv3d(1, 4, 3), nn.InstanceNorm3d(4, **norm), nn.ReLU()),
            *(nn.Conv3d(4, 6, 3, 2, 1), nn.InstanceNorm3d(6, **norm), nn.ReLU()),
            *(nn.ConvTranspose3d(6, 4, 3, 2, 1, 1), nn.InstanceNorm3d(4, **norm), nn.ReLU()),
            *(nn.Conv3d(4, 1, 1), nn.Tanh()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def tracked() -> nn.Module:
    """One that has seen some patches."""
    torch.manual_seed(0)
    module = Tracked().train()
    with torch.no_grad():
        for _ in range(20):
            module(2 * torch.randn(2, 1, 8, 8, 8) + 1)
    return rounded(module)


class ShallowBasicUNet(nn.Module):
    """MONAI's BasicUNet of two of its four levels, each of which is exported alike."""

    def __init__(self) -> None:
        super().__init__()
        kind: dict[str, Any] = {
            "act": ("LeakyReLU", {"negative_slope": 0.1}),
            "norm": _NORM,
            "bias": True,
        }
        self.enter = basic_unet.TwoConv(3, 1, 4, **kind)
        self.down = basic_unet.Down(3, 4, 4, **kind)
        self.deepest = basic_unet.Down(3, 4, 8, **kind)
        self.up = basic_unet.UpCat(3, 8, 4, 4, **kind)
        self.leave = basic_unet.UpCat(3, 4, 4, 4, halves=False, **kind)
        self.last = nn.Conv3d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.enter(x)
        half = self.down(wide)
        return self.last(self.leave(self.up(self.deepest(half), half), wide))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "DynUNet": lambda: nets.DynUNet(
        3, 1, 1, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16], norm_name=_NORM
    ),
    "DynUNet of residual blocks": lambda: nets.DynUNet(
        3, 1, 1, [3, 3, 3], [1, (1, 2, 2), 2], [(1, 2, 2), 2], filters=[4, 8, 16], res_block=True
    ),
    "UNet of residual units": lambda: nets.UNet(3, 1, 1, (4, 8), (2,), num_res_units=2),
    "BasicUNet": ShallowBasicUNet,
    "SegResNet": lambda: nets.SegResNet(
        3, 8, 1, 1, blocks_down=(1, 2), blocks_up=(1,), norm=("GROUP", {"num_groups": 4})
    ),
    "AutoEncoder": lambda: nets.AutoEncoder(3, 1, 1, (4, 8), (2, 2), num_res_units=1),
    "AttentionUnet": lambda: nets.AttentionUnet(3, 1, 1, (4, 8), (2,)),
    "CUT with anti-aliasing": lambda: torch_variants.anti_aliased(width=4, samplings=1),
    "pix2pixHD": pix2pix_hd,
    "sub-pixels and GELU": lambda: nn.Sequential(
        *(nn.Conv3d(1, 4, 3, 2, 1), SubpixelUpsample(3, 4, 4, 2), nn.GELU()),
        *(nn.Conv3d(4, 1, 3, padding=1), nn.Tanh()),
    ),
    "what is expanded": Expanded,
    "all kinds of layers": Normalised,
}


def network(name: str) -> nn.Module:
    """One of them, with weights that show when one is left out or misplaced."""
    torch.manual_seed(0)
    return torch_generators.trained(NETWORKS[name]()).eval()


class Feature(nn.Module):
    """A network of the CycleGAN family, computed by PyTorch's own functions."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.spec: Spec = FEATURES[name]
        self.network: Network = trained(self.spec)
        self.tensors = {key: torch.tensor(it) for key, it in self.network.weights.items()}

    def forward(self, x: Tensor) -> Tensor:
        return computed(self.spec, self.tensors, x)


def rounded(module: nn.Module) -> nn.Module:
    """The network with each of its numbers rounded to bfloat16, in which files compress well."""
    loose: dict[str, Tensor] = getattr(module, "tensors", {})
    with torch.no_grad():
        for tensor in (*module.state_dict().values(), *loose.values()):
            tensor.copy_(tensor.bfloat16())
    return module


@contextmanager
def silent() -> Iterator[None]:
    """Exporters warn and log of themselves."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def exported(
    module: nn.Module, path: Path, how: str = "opset 17", extent: int = EXTENT, channels: int = 1
) -> Path:
    """An ONNX file of the old exporter in some opset, or of dynamo; "fixed" for one patch."""
    patch = torch.zeros(1, channels, extent, extent, extent)
    is_fixed = how.endswith("fixed")
    options: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"]}
    if how.startswith("dynamo"):
        any_extent = torch.export.Dim.DYNAMIC
        shapes = None if is_fixed else (dict.fromkeys((2, 3, 4), any_extent),)
        options |= {"dynamo": True, "verbose": False, "external_data": False}
        options["dynamic_shapes"] = shapes
    else:
        axes = {"x": {0: "n", 2: "d", 3: "h", 4: "w"}}
        options |= {"dynamo": False, "opset_version": int(how.split()[1])}
        options["dynamic_axes"] = None if is_fixed else axes
    with silent(), torch.no_grad():
        torch.onnx.export(module, (patch,), str(path), **options)
    return path
