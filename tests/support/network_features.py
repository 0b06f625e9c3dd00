"""Generators that each have something which plain ones lack."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from msgspec import structs

from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Constant, Elu, FloatArray, LeakyRelu

RESNET = ResNetSpec(1, 1, width=8, blocks=2)
UNET = UNetSpec(1, 1, width=8, levels=3)
CUT = structs.replace(RESNET, blur=Blur(), upsampling="trilinear", up_padding="zero")


def _resnet(**facts: Any) -> ResNetSpec:
    return structs.replace(RESNET, **facts)


def _unet(**facts: Any) -> UNetSpec:
    return structs.replace(UNET, **facts)


FEATURES: Mapping[str, Spec] = {
    "leaky relu": _resnet(activation=LeakyRelu(0.2)),
    "elu": _resnet(activation=Elu()),
    "elu of another alpha, no norm": _resnet(activation=Elu(0.3), norm="none"),
    "activations by part": _resnet(
        block_activation=LeakyRelu(0.01), up_activation=Elu(), norm="instance_affine"
    ),
    "inner padding": _resnet(block_padding="replicate"),
    "outer padding": _resnet(padding="zero", block_padding="reflect"),
    "constant padding": _resnet(padding=Constant(-1.0), down_padding=Constant(0.5)),
    "padding behind sampling": _resnet(upsampling="nearest", up_padding="zero"),
    "group norm": _resnet(norm=Groups(4)),
    "group norm without scale": _resnet(norm=Groups(2, affine=False)),
    "group norm of all channels": _resnet(norm=Groups(1), activation=LeakyRelu(0.1)),
    "group norm of single channels": _resnet(norm=Groups(8)),
    "group norm, sampled": _resnet(norm=Groups(4), upsampling="trilinear"),
    "no norm": _resnet(norm="none"),
    "epsilon": _resnet(norm_epsilon=1e-1),
    "relu after the sum": _resnet(residual="activated_sum"),
    "elu after the sum": _resnet(residual="activated_sum", block_activation=Elu(), norm=Groups(2)),
    "no skip": _resnet(residual="none"),
    "sigmoid": _resnet(end="sigmoid"),
    "open end": _resnet(end="none"),
    "added input": _resnet(adds_input=True),
    "added input of several channels": _resnet(
        in_channels=3, out_channels=3, adds_input=True, end="none"
    ),
    "strides of 1, 2, 2": _resnet(stride=(1, 2, 2)),
    "strides of 1, 2, 2, sampled": _resnet(stride=(1, 2, 2), upsampling="nearest"),
    "dilation": _resnet(block_dilation=2),
    "dilation, zeros": _resnet(block_dilation=2, padding="zero"),
    "anti-aliasing": CUT,
    "anti-aliasing of an encoder": _resnet(blur=Blur(4, "replicate"), norm=Groups(2)),
    "anti-aliasing in-plane": _resnet(blur=Blur(5, "zero"), stride=(1, 2, 2)),
    "anti-aliasing, constant": _resnet(blur=Blur(2, Constant(1.0)), activation=Elu()),
    "U-Net of two levels": _unet(levels=2),
    "U-Net, group norm": _unet(norm=Groups(4)),
    "U-Net, group norm without scale": _unet(norm=Groups(8, affine=False)),
    "U-Net, activations": _unet(down_activation=Elu(0.5), up_activation=LeakyRelu(0.1)),
    "U-Net, elu before transposed": _unet(up_activation=Elu()),
    "U-Net, epsilon": _unet(norm_epsilon=1e-1),
    "U-Net, no norm": _unet(norm="none"),
    "U-Net, padding": _unet(padding="replicate", upsampling="nearest"),
    "U-Net, constant padding": _unet(padding=Constant(-1.0), upsampling="trilinear"),
    "U-Net, sigmoid": _unet(end="sigmoid"),
    "U-Net, open end": _unet(end="none"),
    "U-Net, added input": _unet(adds_input=True, skip_first=False),
    "U-Net, strides of 1, 2, 2": _unet(stride=(1, 2, 2)),
}


def random_spec(random: Random, widths: Sequence[int], blocks: Sequence[int]) -> Spec:
    """One of the features, in one of the widths; blocks: how many a ResNet may have."""
    spec = structs.replace(FEATURES[random.choice(sorted(FEATURES))], width=random.choice(widths))
    if isinstance(spec, ResNetSpec):
        return structs.replace(spec, blocks=random.choice(blocks))
    return spec


def trained(spec: Spec, seed: int = 0) -> Network:
    """Random weights that keep values near 1, scales and shifts that are not 1 and 0."""
    random = np.random.default_rng(seed)
    graph = build(spec)
    weights: dict[str, FloatArray] = {}
    for name, shape in graph.weight_shapes():
        numbers = random.standard_normal(shape).astype(np.float32)
        if name.endswith(".weight"):
            numbers *= np.float32(1.2 / np.sqrt(np.prod(shape[1:])))
        elif name.endswith(".scale"):
            numbers = 1 + numbers / 4
        else:
            numbers /= 4
        weights[name] = numbers
    return Network(graph, weights)


def patches_for(spec: Spec, extents: tuple[int, int, int], batch: int = 1) -> FloatArray:
    """Patches whose mean is not 0."""
    shape = batch, spec.in_channels, *extents
    return np.random.default_rng(1).uniform(-1, 0.8, shape).astype(np.float32)
