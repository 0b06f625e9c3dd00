"""A network as a PyTorch module, to compare with; only benchmarks import this, and with it torch.

torch.fx writes its forward, which lets go of each tensor after its last use, as the training
repositories' nested modules do.
"""

import operator
from collections import Counter
from importlib import import_module
from math import inf
from typing import Any

import numpy as np

from ..network.graph import INPUT, Network, Node
from ..network.layers import (
    Add,
    ChannelAffine,
    Channels,
    Clip,
    Concat,
    Constant,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    Elu,
    Erf,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    LeakyRelu,
    Multiply,
    Pad,
    PadMode,
    Pool,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
    Tanh,
    Triple,
    Upsample,
)

torch: Any = import_module("torch")  # its types are incomplete
fx: Any = import_module("torch.fx")

_EPSILON = 1e-5


def as_module(network: Network) -> Any:
    """A torch.nn.Module in eval mode, float32 on the CPU, that takes and gives [N, C, D, H, W]."""
    root, graph = torch.nn.Module(), fx.Graph()
    readers = Counter(name for node in network.graph.nodes for name in node.inputs)
    channels = network.graph.channels()
    values: dict[str, Any] = {INPUT: graph.placeholder("patches")}
    views = {INPUT}
    for node in network.graph.nodes:
        inputs = tuple(values[name] for name in node.inputs)
        match node.layer:
            case Add():
                made = graph.call_function(operator.add, inputs)
            case Concat():
                made = graph.call_function(torch.cat, (inputs, 1))
            case Subtract():
                made = graph.call_function(operator.sub, inputs)
            case Multiply():
                made = graph.call_function(operator.mul, inputs)
            case Erf():
                made = graph.call_function(torch.erf, inputs)
            case Crop() | Channels() as piece:
                made = graph.call_function(operator.getitem, (*inputs, _place(piece)))
                views.add(node.name)
            case Downsample() as layer:
                name = node.name.replace(".", "_")
                root.add_module(name, _downsample(layer, channels[node.name]))
                made = graph.call_module(name, inputs)
            case _:
                source = node.inputs[0]
                # As the repositories do: nobody else reads what an activation replaces.
                in_place = source not in views and readers[source] == 1
                name = node.name.replace(".", "_")
                root.add_module(name, _module(node, network, in_place=in_place))
                made = graph.call_module(name, inputs)
        values[node.name] = made
    graph.output(values[network.graph.output])
    return fx.GraphModule(root, graph).eval()


def _module(node: Node, network: Network, *, in_place: bool) -> Any:
    nn, weights = torch.nn, network.weights
    match node.layer:
        case Conv3d() as conv:
            bias = conv.bias is not None
            sizes = (conv.stride, conv.padding, conv.dilation, conv.groups, bias)
            return _convolution(nn.Conv3d, conv, sizes, weights)
        case ConvTranspose3d() as conv:
            bias = conv.bias is not None
            sizes = (conv.stride, conv.padding, conv.output_padding, conv.groups, bias)
            return _convolution(nn.ConvTranspose3d, conv, (*sizes, conv.dilation), weights)
        case InstanceNorm(channels, scale, shift, epsilon):
            norm = nn.InstanceNorm3d(channels, epsilon, affine=bool(scale or shift))
            return _affine(norm, scale, shift, weights)
        case GroupNorm(channels, groups, scale, shift, epsilon):
            norm = nn.GroupNorm(groups, channels, epsilon, affine=bool(scale or shift))
            return _affine(norm, scale, shift, weights)
        case ChannelAffine(channels, scale, shift):
            norm = nn.BatchNorm3d(channels, _EPSILON)
            _set(norm.running_var, np.full(channels, 1 - _EPSILON, np.float32))
            _set(norm.weight, weights[scale])
            _set(norm.bias, weights[shift])
            return norm
        case Relu():
            return nn.ReLU(in_place)
        case LeakyRelu(slope):
            return nn.LeakyReLU(slope, in_place)
        case Elu(alpha):
            return nn.ELU(alpha, in_place)
        case PRelu(channels, slope):
            rectifier = nn.PReLU(channels)
            _set(rectifier.weight, weights[slope])
            return rectifier
        case Softplus():
            return nn.Softplus()
        case Clip(low, high):
            return nn.Hardtanh(-inf if low is None else low, inf if high is None else high)
        case Pool("largest", kernel, stride, padding):
            return nn.MaxPool3d(kernel, stride, padding)
        case Pool(_, kernel, stride, padding, counts_padding):
            return nn.AvgPool3d(kernel, stride, padding, count_include_pad=counts_padding)
        case Pad(mode, before, after):
            return _padding(mode, before, after)
        case Upsample(mode, factor, align_corners):
            corners = align_corners if mode == "trilinear" else None
            return nn.Upsample(scale_factor=factor, mode=mode, align_corners=corners)
        case Tanh():
            return nn.Tanh()
        case Sigmoid():
            return nn.Sigmoid()
        case (
            Add() | Subtract() | Multiply() | Concat() | Erf() | Crop() | Channels() | Downsample()
        ):
            raise TypeError(f"{node.name} is no module of torch by itself")


def _affine(norm: Any, scale: str | None, shift: str | None, weights: Any) -> Any:
    channels = norm.weight.shape if scale or shift else ()
    if scale or shift:
        _set(norm.weight, weights[scale] if scale else np.ones(channels, np.float32))
        _set(norm.bias, weights[shift] if shift else np.zeros(channels, np.float32))
    return norm


def _place(piece: Crop | Channels) -> tuple[slice, ...]:
    """Where in [N, C, D, H, W] a piece lies."""
    if isinstance(piece, Channels):
        return slice(None), slice(piece.first, piece.first + piece.count)
    ends = zip(piece.before, piece.after, strict=True)
    return slice(None), slice(None), *(slice(low, -high or None) for low, high in ends)


def _downsample(layer: Downsample, channels: int) -> Any:
    """Padding, and a convolution of each channel by itself."""
    nn = torch.nn
    conv = nn.Conv3d(channels, channels, layer.taps, layer.factor, groups=channels, bias=False)
    _set(conv.weight, layer.weight(channels))
    return nn.Sequential(_padding(layer.mode, layer.before, layer.after), conv)


def _convolution(
    kind: Any, conv: Conv3d | ConvTranspose3d, sizes: tuple[Any, ...], weights: Any
) -> Any:
    channels = conv.in_channels, conv.out_channels
    module = kind(*channels, conv.kernel, *sizes)
    _set(module.weight, weights[conv.weight])
    if conv.bias is not None:
        _set(module.bias, weights[conv.bias])
    return module


def _padding(mode: PadMode, before: Triple, after: Triple) -> Any:
    nn = torch.nn
    edges = [
        edge
        for axis in reversed(range(3))  # torch counts the last axis first
        for edge in (before[axis], after[axis])
    ]
    match mode:
        case "reflect":
            return nn.ReflectionPad3d(edges)
        case "replicate":
            return nn.ReplicationPad3d(edges)
        case "zero":
            return nn.ConstantPad3d(edges, 0.0)
        case Constant(value):
            return nn.ConstantPad3d(edges, value)


def _set(parameter: Any, array: FloatArray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.array(array)))  # of its own, as some are read-only
