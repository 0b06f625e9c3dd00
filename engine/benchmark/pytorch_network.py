"""A network as a PyTorch module, to compare with; only benchmarks import this, and with it torch.

torch.fx writes its forward, which lets go of each tensor after its last use, as the training
repositories' nested modules do.
"""

import operator
from collections import Counter
from importlib import import_module
from typing import Any

import numpy as np

from ..network.graph import (
    INPUT,
    Add,
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    FloatArray,
    InstanceNorm,
    LeakyRelu,
    Network,
    Node,
    Pad,
    Relu,
    Tanh,
    Upsample,
)

torch: Any = import_module("torch")  # its types are incomplete
fx: Any = import_module("torch.fx")

_EPSILON = 1e-5


def as_module(network: Network) -> Any:
    """A torch.nn.Module in eval mode, float32 on the CPU, that takes and gives [N, C, D, H, W]."""
    root, graph = torch.nn.Module(), fx.Graph()
    readers = Counter(name for node in network.graph.nodes for name in node.inputs)
    values: dict[str, Any] = {INPUT: graph.placeholder("patches")}
    for node in network.graph.nodes:
        inputs = tuple(values[name] for name in node.inputs)
        match node.layer:
            case Add():
                made = graph.call_function(operator.add, inputs)
            case Concat():
                made = graph.call_function(torch.cat, (inputs, 1))
            case _:
                source = node.inputs[0]
                # As the repositories do: nobody else reads what an activation replaces.
                in_place = source != INPUT and readers[source] == 1
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
            kind, sizes = nn.Conv3d, (conv.stride, conv.padding)
            return _convolution(kind, conv, sizes, weights)
        case ConvTranspose3d() as conv:
            kind, sizes = nn.ConvTranspose3d, (conv.stride, conv.padding, conv.output_padding)
            return _convolution(kind, conv, sizes, weights)
        case InstanceNorm(channels, scale, shift, epsilon):
            norm = nn.InstanceNorm3d(channels, epsilon, affine=bool(scale or shift))
            if scale or shift:
                _set(norm.weight, weights[scale] if scale else np.ones(channels, np.float32))
                _set(norm.bias, weights[shift] if shift else np.zeros(channels, np.float32))
            return norm
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
        case Pad() as pad:
            return _padding(pad)
        case Upsample(mode, factor, align_corners):
            corners = align_corners if mode == "trilinear" else None
            return nn.Upsample(scale_factor=factor, mode=mode, align_corners=corners)
        case Tanh():
            return nn.Tanh()
        case Add() | Concat():
            raise TypeError(f"{node.name} joins two tensors, for which there is no module")


def _convolution(
    kind: Any, conv: Conv3d | ConvTranspose3d, sizes: tuple[Any, ...], weights: Any
) -> Any:
    channels = conv.in_channels, conv.out_channels
    module = kind(*channels, conv.kernel, *sizes, bias=conv.bias is not None)
    _set(module.weight, weights[conv.weight])
    if conv.bias is not None:
        _set(module.bias, weights[conv.bias])
    return module


def _padding(pad: Pad) -> Any:
    nn = torch.nn
    edges = [
        edge
        for axis in reversed(range(3))  # torch counts the last axis first
        for edge in (pad.before[axis], pad.after[axis])
    ]
    match pad.mode:
        case "reflect":
            return nn.ReflectionPad3d(edges)
        case "replicate":
            return nn.ReplicationPad3d(edges)
        case "zero":
            return nn.ConstantPad3d(edges, 0.0)


def _set(parameter: Any, array: FloatArray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(array)))
