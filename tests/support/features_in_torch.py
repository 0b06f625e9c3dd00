"""Generators in plain PyTorch, after the words of their specs.

They call torch's own functions and share no code with the layer graph, so that the two can prove
each other wrong.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from support.network_features import CUT
from torch import Tensor

from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    Rectifier,
    ResNetSpec,
    Spec,
    UNetSpec,
)
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Constant, Elu, FloatArray, LeakyRelu, PadMode, Relu

Weights = Mapping[str, Tensor]


def in_torch(
    spec: Spec, network: Network, patches: FloatArray, kind: torch.dtype = torch.float64
) -> FloatArray:
    """Return what PyTorch computes with a spec's weights."""
    weights = {name: torch.tensor(array, dtype=kind) for name, array in network.weights.items()}
    return computed(spec, weights, torch.tensor(patches, dtype=kind)).to(torch.float32).numpy()


def computed(spec: Spec, weights: Weights, inputs: Tensor) -> Tensor:
    """The same of tensors."""
    output = (_resnet_of if isinstance(spec, ResNetSpec) else _unet_of)(spec, weights, inputs)
    output = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "none": lambda x: x}[spec.end](output)
    return inputs + output if spec.adds_input else output


def _padded(x: Tensor, widths: tuple[int, int], mode: PadMode) -> Tensor:
    sides = widths * 3
    if isinstance(mode, Constant):
        return functional.pad(x, sides, value=mode.value)
    if mode == "zero":
        return functional.pad(x, sides)
    return functional.pad(x, sides, mode)


def _conv(
    x: Tensor, name: str, weights: Weights, mode: PadMode, stride: Any = 1, dilation: int = 1,
    padding: int | None = None,
) -> Tensor:  # fmt: skip
    weight = weights[f"{name}.weight"]
    width = dilation * (weight.shape[-1] // 2) if padding is None else padding
    padded = _padded(x, (width, width), mode)
    return functional.conv3d(padded, weight, weights.get(f"{name}.bias"), stride, dilation=dilation)


def _transposed(x: Tensor, name: str, weights: Weights, stride: Any, extra: Any) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    return functional.conv_transpose3d(x, weight, bias, stride, 1, extra)


def _norm(x: Tensor, name: str, weights: Weights, spec: Spec) -> Tensor:
    scale, shift = weights.get(f"{name}.scale"), weights.get(f"{name}.shift")
    match spec.norm:
        case "none":
            return x
        case "stored" if scale is not None and shift is not None:
            return x * scale.reshape(-1, 1, 1, 1) + shift.reshape(-1, 1, 1, 1)
        case "instance" | "instance_affine":
            return functional.instance_norm(x, weight=scale, bias=shift, eps=spec.norm_epsilon)
        case Groups(groups):
            return functional.group_norm(x, groups, scale, shift, spec.norm_epsilon)
        case _:
            raise NotImplementedError


def _activated(x: Tensor, activation: Rectifier) -> Tensor:
    match activation:
        case Relu():
            return functional.relu(x)
        case LeakyRelu(slope):
            return functional.leaky_relu(x, slope)
        case Elu(alpha):
            return functional.elu(x, alpha)


def _sampled(x: Tensor, spec: Spec) -> Tensor:
    match spec.upsampling:
        case "nearest":
            return functional.interpolate(x, scale_factor=spec.stride, mode="nearest")
        case "trilinear_zeros":
            around = [int(factor > 1) for factor in reversed(spec.stride) for _ in range(2)]
            made = functional.interpolate(
                functional.pad(x, around), scale_factor=spec.stride, mode="trilinear"
            )
            places = [
                slice(n, -n) if (n := factor * (factor > 1)) else slice(None)
                for factor in spec.stride
            ]
            return made[:, :, places[0], places[1], places[2]]
        case _:
            corners = spec.upsampling == "trilinear_corners"
            return functional.interpolate(
                x, scale_factor=spec.stride, mode="trilinear", align_corners=corners
            )


_ROWS = {2: [1, 1], 3: [1, 2, 1], 4: [1, 3, 3, 1], 5: [1, 4, 6, 4, 1]}


def _filter(taps: int, like: Tensor) -> Tensor:
    row = torch.tensor(_ROWS[taps], dtype=like.dtype)
    cube = row[:, None, None] * row[None, :, None] * row[None, None, :]
    return (cube / cube.sum())[None, None].repeat(like.shape[1], 1, 1, 1, 1)


def blurred(x: Tensor, blur: Blur, stride: tuple[int, int, int]) -> Tensor:
    """Downsample of contrastive unpaired translation, in three dimensions."""
    widths = (blur.taps - 1) // 2, -(-(blur.taps - 1) // 2)
    padded = _padded(x, widths, blur.padding)
    return functional.conv3d(padded, _filter(blur.taps, x), stride=stride, groups=x.shape[1])


def unblurred(x: Tensor) -> Tensor:
    """Upsample of contrastive unpaired translation, in three dimensions: 4 taps, replicated."""
    padded = functional.pad(x, (1,) * 6, "replicate")
    output = functional.conv_transpose3d(
        padded, _filter(4, x) * 8, stride=2, padding=2, groups=x.shape[1]
    )
    return output[:, :, 1:-1, 1:-1, 1:-1]


def _resnet_of(spec: ResNetSpec, weights: Weights, x: Tensor) -> Tensor:
    act = spec.activation
    x = _conv(x, "first", weights, spec.padding)
    x = _activated(_norm(x, "first.norm", weights, spec), act)
    for step in range(spec.downsamplings):
        name = f"down{step}"
        x = _conv(x, name, weights, spec.down_padding, 1 if spec.blur else spec.stride)
        x = _activated(_norm(x, f"{name}.norm", weights, spec), act)
        if spec.blur:
            x = blurred(x, spec.blur, spec.stride)
    for index in range(spec.blocks):
        x = _block_of(spec, weights, f"block{index}", x)
    for step in range(spec.downsamplings):
        name = f"up{step}"
        if spec.upsampling == "transposed":
            extra = tuple(factor - 1 for factor in spec.stride)
            x = _transposed(x, name, weights, spec.stride, extra)
        else:
            x = unblurred(x) if spec is CUT else _sampled(x, spec)
            x = _conv(x, name, weights, spec.up_padding or spec.padding)
        x = _activated(_norm(x, f"{name}.norm", weights, spec), spec.up_activation or act)
    return _conv(x, "last", weights, spec.padding)


def _block_of(spec: ResNetSpec, weights: Weights, name: str, entering: Tensor) -> Tensor:
    mode, act = spec.block_padding or spec.padding, spec.block_activation or spec.activation
    x = _conv(entering, f"{name}.conv0", weights, mode, dilation=spec.block_dilation)
    x = _activated(_norm(x, f"{name}.norm0", weights, spec), act)
    x = _conv(x, f"{name}.conv1", weights, mode, dilation=spec.block_dilation)
    x = _norm(x, f"{name}.norm1", weights, spec)
    match spec.residual:
        case "sum":
            return entering + x
        case "activated_sum":
            return _activated(entering + x, act)
        case "none":
            return x


def _unet_of(spec: UNetSpec, weights: Weights, x: Tensor, level: int = 0) -> Tensor:
    """A level and all inside it, as the nested modules of the training repositories run."""
    outermost, innermost = level == 0, level == spec.levels - 1
    down, up = f"down{level}", f"up{level}"
    entering = x
    if not outermost:
        x = _activated(x, spec.down_activation)
    x = _conv(x, down, weights, spec.padding, spec.stride, padding=1)
    if not outermost and not innermost:
        x = _norm(x, f"{down}.norm", weights, spec)
    if not innermost:
        x = _unet_of(spec, weights, x, level + 1)
    x = _activated(x, spec.up_activation)
    if spec.upsampling == "transposed":
        x = _transposed(x, up, weights, spec.stride, 0)
    else:
        x = _conv(_sampled(x, spec), up, weights, spec.padding)
    if outermost:
        return x
    x = _norm(x, f"{up}.norm", weights, spec)
    return torch.cat([entering, x] if spec.skip_first else [x, entering], 1)
