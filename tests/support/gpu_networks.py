"""Graphs and random networks for the parity tests of the compiled program."""

import numpy as np
from msgspec import structs

from cuda_cyclegan.engine.network.ensemble import mean_network
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import (
    Add,
    ChannelAffine,
    Channels,
    Clip,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Elu,
    Erf,
    Exp,
    GroupNorm,
    InstanceNorm,
    Inverse,
    Layer,
    LeakyRelu,
    Multiply,
    Pad,
    Pool,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
    Tanh,
    Triple,
    Upsample,
    triple,
)


def random_network(graph: Graph, seed: int) -> Network:
    """The graph with weights that keep the signal's size through the layers.

    A weight of the name "=0.5 of 8" is 0.5 everywhere; "=centred of 8" takes off the mean.
    """
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in graph.weight_shapes():
        if name.startswith("="):
            weights[name] = _stated(name[1:].split()[0], shape)
        elif len(shape) == 5:
            spread = np.sqrt(2 / (np.prod(shape) / max(shape[:2])))
            weights[name] = random.normal(0, spread, shape)
        elif name.endswith("scale"):
            weights[name] = random.uniform(0.5, 1.5, shape)
        else:
            weights[name] = random.normal(0, 0.2, shape)
    return Network(graph, {name: array.astype(np.float32) for name, array in weights.items()})


def _stated(word: str, shape: tuple[int, ...]) -> np.ndarray:
    if word == "centred":
        return (np.eye(shape[0]) - 1 / shape[0]).reshape(shape)
    return np.full(shape, float(word))


def untrained_network(graph: Graph, seed: int) -> Network:
    """The graph as training starts it: weights of spread 0.02, no biases."""
    random = np.random.default_rng(seed)
    weights = {
        name: random.normal(0, 0.02, shape)
        if len(shape) == 5
        else np.full(shape, name[-5:] == "scale")
        for name, shape in graph.weight_shapes()
    }
    return Network(graph, {name: array.astype(np.float32) for name, array in weights.items()})


def chain(channels: int, *layers: tuple[str, Layer] | tuple[str, Layer, tuple[str, ...]]) -> Graph:
    """A graph whose layers read the one before unless they name their inputs."""
    nodes: list[Node] = []
    for name, layer, *inputs in layers:
        before = (nodes[-1].name,) if nodes else (INPUT,)
        nodes.append(Node(name, layer, inputs[0] if inputs else before))
    return Graph(channels, tuple(nodes))


def _conv(name: str, into: int, out: int, kernel: int = 3, bias: bool = True) -> Conv3d:
    edge = (kernel, kernel, kernel)
    half = kernel // 2
    own = (half, half, half)
    return Conv3d(into, out, edge, f"{name}.weight", f"{name}.bias" if bias else None, padding=own)


def _line(channels: int, scale: float, shift: float) -> ChannelAffine:
    """The same line in all channels."""
    return ChannelAffine(channels, f"={scale!r} of {channels}", f"={shift!r} of {channels}")


def _mean_of(name: str, channels: int) -> tuple[str, Conv3d]:
    """The mean of all channels."""
    return name, Conv3d(channels, 1, (1, 1, 1), f"={1 / channels!r} of 1x{channels}")


def layer_norm(
    name: str,
    source: str,
    channels: int,
    *,
    is_affine: bool = True,
    is_subtracted: bool = False,
    epsilon: float = 1e-2,
) -> list[tuple[str, Layer] | tuple[str, Layer, tuple[str, ...]]]:
    """A norm of each voxel over its channels, as imports leave it.

    is_subtracted: whether the mean is a tensor, and not part of a convolution.
    """
    less, square = f"{name} less", f"{name} square"
    centred: list[tuple[str, Layer] | tuple[str, Layer, tuple[str, ...]]] = [
        (less, Conv3d(channels, channels, (1, 1, 1), f"=centred of {channels}"), (source,))
    ]
    if is_subtracted:
        mean, wide = _mean_of(f"{name} mean", channels)
        ones = Conv3d(1, channels, (1, 1, 1), f"=1.0 of {channels}x1")
        spread = f"{name} wide"
        centred = [(mean, wide, (source,)), (spread, ones), (less, Subtract(), (source, spread))]
    product = f"{name} product" if is_affine else name
    affine = ChannelAffine(channels, f"{name}.scale", f"{name}.shift")
    return [
        *centred,
        (square, Multiply(), (less, less)),
        _mean_of(f"{name} mean of squares", channels),
        (f"{name} more", _line(1, 1.0, epsilon)),
        (f"{name} inverse", Inverse(0.99 * epsilon, root=True)),
        (product, Multiply(), (less, f"{name} inverse")),
        *([(name, affine)] if is_affine else []),
    ]


def _grouped(name: str, into: int, out: int, groups: int, kernel: int = 3) -> Conv3d:
    return structs.replace(_conv(name, into, out, kernel), groups=groups)


def _ensemble(*graphs: Graph, disagreement: bool = False) -> Graph:
    networks = [random_network(graph, 0) for graph in graphs]
    return mean_network(networks, disagreement=disagreement).graph


_ONE = (1, 1, 1)
_DOUBLE = (2, 2, 2)

_TWICE, _HALF = (4, 4, 4), (2, 2, 2)
NORM_READ_TWICE = Graph(
    1,
    (
        Node("down", Conv3d(1, 32, _TWICE, "down.weight", None, _HALF, _ONE), (INPUT,)),
        Node("norm", InstanceNorm(32), ("down",)),
        Node("relu", Relu(), ("norm",)),
        Node("conv", _conv("conv", 32, 32), ("relu",)),
        Node("join", Concat(), ("norm", "conv")),
        Node("up", ConvTranspose3d(64, 1, _TWICE, "up.weight", None, _HALF, _ONE), ("join",)),
    ),
)
"""A convolution reads the norm's result through an activation, the last layer reads it without."""


def _mixed_scales(layers: int, growth: int) -> Graph:
    """Dilated convolutions to few channels, each of which reads all maps before it."""
    nodes = [Node("a", _conv("a", 1, 5), (INPUT,)), Node("a.relu", Relu(), ("a",))]
    joined = maps = "a.relu"
    for number in range(layers):
        channels, step = 5 + growth * number, number % 3 + 1
        apart = (step, 1, step)
        conv = structs.replace(_conv(f"c{number}", channels, growth), padding=apart, dilation=apart)
        nodes.append(Node(f"c{number}", conv, (joined,)))
        affine = ChannelAffine(growth, f"s{number}.scale", f"s{number}.shift")
        nodes.append(Node(f"s{number}", affine, (f"c{number}",)))
        maps = f"r{number}"
        nodes.append(Node(maps, LeakyRelu(0.1), (f"s{number}",)))
        nodes.append(Node(f"j{number}", Concat(), (joined, maps)))
        joined = f"j{number}"
    whole = 5 + growth * layers
    nodes.append(Node("leave", _conv("leave", whole, 3, kernel=1), (joined,)))
    nodes.append(Node("end", ChannelAffine(3, "end.scale", "end.shift"), ("leave",)))
    return Graph(1, tuple(nodes))


def _joined_list(layers: int) -> Graph:
    """A dense block, each of whose layers scales the list of all maps before it."""
    nodes = [Node("a", _conv("a", 1, 8, bias=False), (INPUT,))]
    joined = "a"
    for number in range(layers):
        channels = 8 * (number + 1)
        affine = ChannelAffine(channels, f"s{number}.scale", f"s{number}.shift")
        nodes.append(Node(f"s{number}", affine, (joined,)))
        nodes.append(Node(f"r{number}", Relu(), (f"s{number}",)))
        conv = _conv(f"c{number}", channels, 8, bias=False)
        nodes.append(Node(f"c{number}", conv, (f"r{number}",)))
        nodes.append(Node(f"j{number}", Concat(), (joined, f"c{number}")))
        joined = f"j{number}"
    nodes += [
        Node("small", Pool("mean", _DOUBLE, _DOUBLE), (joined,)),
        Node("wide", Upsample("trilinear", _DOUBLE), ("small",)),
        Node("sum", Add(), ("a", "c0")),
        Node("more", Add(), ("sum", "a")),
        Node("both", Concat(), ("wide", "sum")),
        Node("all", Concat(), ("both", "more")),
        Node("leave", _conv("leave", 8 * layers + 24, 1), ("all",)),
    ]
    return Graph(1, tuple(nodes))


ODD_GRAPHS = {
    "list of joined maps": _joined_list(5),
    "maps that share vectors": _mixed_scales(4, 3),
    "maps of one channel": _mixed_scales(11, 1),
    "long sums to few channels": chain(
        1,
        ("a", _conv("a", 1, 72)),
        ("b", _conv("b", 72, 13)),
        ("scaled", ChannelAffine(13, "scaled.scale", "scaled.shift")),
        ("elu", Elu()),
        ("c", _conv("c", 13, 4, kernel=5)),
        ("d", _conv("d", 72, 8), ("a",)),
        ("join", Concat(), ("a", "d")),
        ("e", _conv("e", 80, 32)),
        ("all", Concat(), ("c", "e")),
        ("leave", _conv("leave", 36, 1)),
    ),
    "a map joined to its activation, again and again": chain(
        1,
        ("a", _conv("a", 1, 8)),
        ("elu", Elu()),
        ("bent", LeakyRelu(0.3)),
        ("join", Concat(), ("bent", "elu")),
        ("all", Elu(), ("join",)),
        ("again", Concat(), ("all", "join")),
        ("leave", _conv("leave", 32, 1)),
    ),
    "a map joined to itself": chain(
        1,
        ("a", _conv("a", 1, 8)),
        ("b", _conv("b", 8, 2)),
        ("twice", Concat(), ("b", "b")),
        ("c", _conv("c", 4, 2)),
        ("join", Concat(), ("b", "c")),
        ("other", Concat(), ("c", "b")),
        ("sum", Add(), ("join", "other")),
        ("leave", _conv("leave", 4, 1)),
    ),
    "results that others read, too": chain(
        1,
        ("a", _conv("a", 1, 8)),
        ("b", _conv("b", 8, 4)),
        ("scaled", ChannelAffine(4, "scaled.scale", "scaled.shift")),
        ("elu", Elu()),
        ("sum", Add(), ("elu", "b")),
        ("c", _conv("c", 4, 4)),
        ("norm", InstanceNorm(4)),
        ("d", _conv("d", 4, 4)),
        ("slopes", PRelu(4, "slopes.slope")),
        ("e", _conv("e", 4, 3)),
        ("sigmoid", Sigmoid()),
    ),
    "a norm by channels over joined maps": chain(
        1,
        ("a", _conv("a", 1, 5)),
        ("b", _conv("b", 5, 3, kernel=1)),
        ("norm", InstanceNorm(3)),
        ("join", Concat(), ("a", "b")),
        ("scaled", ChannelAffine(8, "scaled.scale", "scaled.shift")),
        ("relu", Relu()),
        ("again", Concat(), ("relu", "norm")),
        ("last", ChannelAffine(11, "last.scale", "last.shift")),
        ("leave", _conv("leave", 11, 2)),
    ),
    "one norm": chain(3, ("norm", InstanceNorm(3, "norm.scale", "norm.shift"))),
    "norms with a scale or a shift alone": chain(
        1,
        ("conv", _conv("conv", 1, 8)),
        ("scaled", GroupNorm(8, 2, scale="scaled.scale")),
        ("relu", Relu()),
        ("shifted", GroupNorm(8, 4, shift="shifted.shift")),
        ("elu", Elu()),
        ("each scaled", InstanceNorm(8, scale="each.scale")),
        ("elu2", Elu()),
        ("each shifted", InstanceNorm(8, shift="each.shift")),
        ("leave", _conv("leave", 8, 1, kernel=1)),
    ),
    "norms of norms": chain(
        2,
        ("first", InstanceNorm(2, "first.scale", "first.shift")),
        ("grouped", GroupNorm(2, 1, "grouped.scale", "grouped.shift")),
        ("conv", _conv("conv", 2, 4)),
        ("each", InstanceNorm(4, shift="each.shift")),
        ("all", GroupNorm(4, 2, "all.scale", "all.shift")),
        ("sum", Add(), ("all", "each")),
        ("leave", _conv("leave", 4, 1, kernel=1)),
    ),
    "global residual": chain(
        2, ("conv", _conv("conv", 2, 2)), ("sum", Add(), (INPUT, "conv")), ("tanh", Tanh())
    ),
    "input twice": chain(
        1,
        ("a", _conv("a", 1, 3)),
        ("b", _conv("b", 1, 5, kernel=5), (INPUT,)),
        ("join", Concat(), ("a", "b")),
        ("c", _conv("c", 8, 2)),
    ),
    "concat of odd channels, added": chain(
        1,
        ("a", _conv("a", 1, 3)),
        ("b", _conv("b", 1, 2), (INPUT,)),
        ("whole", _conv("whole", 1, 5), (INPUT,)),
        ("join", Concat(), ("a", "b")),
        ("sum", Add(), ("join", "whole")),
        ("act", LeakyRelu(0.1)),
    ),
    "concat at the end": chain(
        1, ("a", _conv("a", 1, 3)), ("b", _conv("b", 3, 2)), ("join", Concat(), ("b", "a"))
    ),
    "norm and activation after everything": chain(
        2,
        ("pad", Pad("replicate", (1, 0, 2), (0, 2, 1))),
        ("relu", Relu()),
        ("conv", Conv3d(2, 4, (2, 3, 4), "conv.weight", "conv.bias")),
        ("affine", ChannelAffine(4, "affine.scale", "affine.shift")),
        ("affine2", ChannelAffine(4, "affine2.scale", "affine2.shift")),
        ("act", LeakyRelu(0.3)),
        ("act2", Tanh()),
        ("norm", InstanceNorm(4)),
    ),
    "pads in a row": chain(
        1,
        ("pad", Pad("reflect", _ONE, _ONE)),
        ("pad2", Pad("zero", _ONE, (0, 0, 0))),
        ("conv", Conv3d(1, 3, (4, 4, 4), "conv.weight")),
        ("pad3", Pad("reflect", _ONE, (2, 1, 1))),
        ("pad4", Pad("zero", (0, 1, 1), _ONE)),
        ("conv2", Conv3d(3, 1, (5, 5, 5), "conv2.weight", "conv2.bias")),
    ),
    "strided and back": chain(
        1,
        ("down", Conv3d(1, 6, (3, 2, 4), "d.weight", "d.bias", (1, 2, 2), (1, 0, 1))),
        ("relu", Relu()),
        (
            "up",
            ConvTranspose3d(6, 3, (1, 2, 3), "u.weight", "u.bias", (1, 2, 2), (0, 0, 1), (0, 0, 1)),
        ),
        ("norm", InstanceNorm(3)),
        ("up2", ConvTranspose3d(3, 2, (3, 3, 3), "u2.weight", "u2.bias", _ONE, _ONE)),
    ),
    "wide maps of odd vectors, and sums sampled": chain(
        1,
        ("a", _conv("a", 1, 40)),
        ("norm", InstanceNorm(40)),
        ("relu", Relu()),
        ("b", _conv("b", 40, 16)),
        ("join", Concat(), ("relu", "b")),
        ("leaky", LeakyRelu(0.1)),
        ("c", _conv("c", 56, 40)),
        ("even", InstanceNorm(40)),
        ("sum", Add(), ("even", "relu")),
        ("sharp", Relu()),
        ("small", Pool("mean", _DOUBLE, _DOUBLE)),
        ("kept", Clip(0.2, 4.0)),
        ("far", Upsample("trilinear", _DOUBLE)),
        ("both", Concat(), ("sharp", "far")),
        ("d", _conv("d", 80, 72)),
        ("last", InstanceNorm(72)),
        ("leave", _conv("leave", 72, 1)),
    ),
    "sub-pixels at the end": chain(
        2,
        ("down", Conv3d(2, 4, _DOUBLE, "d.weight", "d.bias", _DOUBLE)),
        ("up", ConvTranspose3d(4, 2, (3, 3, 3), "u.weight", "u.bias", _DOUBLE, _ONE, _ONE)),
        ("leaky", LeakyRelu(0.2)),
        ("sum", Add(), ("leaky", "up")),
    ),
    "sampled twice": chain(
        1,
        ("down", Conv3d(1, 4, (1, 1, 1), "d.weight", "d.bias", (1, 2, 4))),
        ("near", Upsample("nearest", (1, 2, 1))),
        ("relu", Relu()),
        ("far", Upsample("trilinear", (1, 1, 4))),
        ("pad", Pad("reflect", _ONE, _ONE)),
        ("conv", Conv3d(4, 2, (3, 3, 3), "c.weight", "c.bias")),
        ("sum", Add(), ("conv", "conv")),
    ),
    "two borders around one tensor": chain(
        1,
        ("first", _conv("first", 1, 4)),
        ("norm", InstanceNorm(4)),
        ("pad1", Pad("reflect", _ONE, _ONE)),
        ("conv1", Conv3d(4, 4, (3, 3, 3), "c1.weight")),
        ("pad2", Pad("zero", _DOUBLE, _DOUBLE), ("norm",)),
        ("conv2", Conv3d(4, 4, (5, 5, 5), "c2.weight")),
        ("own", _conv("own", 4, 4), ("norm",)),
        ("sum", Add(), ("conv1", "conv2")),
        ("sum2", Add(), ("sum", "own")),
        ("sum3", Add(), ("sum2", "norm")),
    ),
    "groups and dilation": chain(
        2,
        ("a", Conv3d(2, 4, (3, 3, 3), "a.weight", "a.bias", _DOUBLE, _DOUBLE, _DOUBLE, groups=2)),
        (
            "b",
            ConvTranspose3d(
                4, 6, (3, 2, 3), "b.weight", None, _DOUBLE, (1, 0, 1), _ONE, _DOUBLE, groups=2
            ),
        ),
        ("cut", Crop((0, 0, 0), (2, 2, 2))),
    ),
    "pooling": chain(
        1,
        ("a", _conv("a", 1, 4)),
        ("largest", Pool("largest", (3, 3, 3), _DOUBLE, _ONE)),
        ("mean", Pool("mean", (3, 3, 3), _ONE, _ONE, counts_padding=False)),
        ("zeros", Pool("mean", (3, 2, 3), (1, 2, 1), (1, 0, 1))),
        ("up", Upsample("nearest", (2, 4, 2))),
    ),
    "pools whose padding is wide": chain(
        1,
        ("a", _conv("a", 1, 4)),
        ("largest", Pool("largest", (3, 3, 3), _ONE, _DOUBLE)),
        ("mean", Pool("mean", (3, 3, 3), _ONE, _DOUBLE, counts_padding=False)),
        ("zeros", Pool("mean", (3, 2, 3), _ONE, (2, 1, 2))),
        ("cut", Crop((3, 2, 3), (3, 3, 3))),
    ),
    "roots and channels divided by them": chain(
        1,
        ("a", _conv("a", 1, 6)),
        ("square", Multiply(), ("a", "a")),
        ("sum", _conv("sum", 6, 1, kernel=1)),
        ("inverse", Inverse(0.3, root=True)),
        ("root", Multiply(), ("sum", "inverse")),
        ("unit", Multiply(), ("a", "inverse")),
        ("join", Concat(), ("root", "unit")),
        ("leave", _conv("leave", 7, 1)),
    ),
    "products, differences and parts": chain(
        1,
        ("a", _conv("a", 1, 6)),
        ("slopes", PRelu(6, "slopes.slope")),
        ("some", Channels(1, 3)),
        ("soft", Softplus()),
        ("others", Channels(3, 3), ("slopes",)),
        ("bell", Erf()),
        ("kept", Clip(-0.5, 1.0)),
        ("above", Clip(None, 0.75)),
        ("product", Multiply(), ("soft", "above")),
        ("less", Subtract(), ("product", "some")),
        ("crop", Crop(_ONE, (0, 1, 0))),
        ("pad", Pad("replicate", (0, 1, 0), _ONE)),
    ),
    "exponentials and inverses": chain(
        1,
        ("a", _conv("a", 1, 6)),
        ("bounded", Tanh()),
        ("power", Exp()),
        ("inverse", Inverse(0.3)),
        ("root", Inverse(0.3, root=True)),
        ("product", Multiply(), ("inverse", "root")),
        ("leave", _conv("leave", 6, 1)),
    ),
    "norms of voxels over channels": chain(
        1,
        ("a", _conv("a", 1, 5)),
        *layer_norm("first", "a", 5),
        ("relu", Relu()),
        ("pad", Pad("reflect", _ONE, _ONE)),
        ("b", Conv3d(5, 20, (3, 3, 3), "b.weight")),
        *layer_norm("second", "b", 20, is_affine=False),
        ("small", Pool("mean", _DOUBLE, _DOUBLE)),
        ("near", Upsample("nearest", _DOUBLE)),
        ("even", InstanceNorm(20)),
        *layer_norm("third", "even", 20, is_subtracted=True),
        ("c", _conv("c", 20, 3)),
        ("sum", Add(), ("third", "b")),
        ("join", Concat(), ("first", "c")),
        *layer_norm("fourth", "join", 8),
        ("gate", _conv("gate", 8, 1, kernel=1), ("join",)),
        ("gated", Multiply(), ("fourth", "gate")),
        ("wide", Concat(), ("gated", "sum")),
        ("d", _conv("d", 28, 3)),
        # Three channels are alike in some voxels. A norm with a small epsilon enlarges there what
        # bf16 rounds off: 12 % of patches are then more than 3e-2 off, emulated on the CPU; so the
        # largest of 300 is 2.2e-2.
        ("less", _line(3, 0.3, 0.0)),
        *layer_norm("last", "less", 3, epsilon=1.0),
    ),
    "activations of several layers": chain(
        1,
        ("a", _conv("a", 1, 6)),
        ("narrow", _line(6, 0.5**0.5, 0.0)),
        ("bell", Erf()),
        ("share", _line(6, 0.5, 0.5)),
        ("gelu", Multiply(), ("share", "a")),
        ("pad", Pad("reflect", _ONE, _ONE)),
        ("b", Conv3d(6, 6, (3, 3, 3), "b.weight", "b.bias")),
        ("sum", Add(), ("b", "gelu")),
        ("sigmoid", Sigmoid()),
        ("swish", Multiply(), ("sum", "sigmoid")),
        ("norm", InstanceNorm(6, "norm.scale", "norm.shift")),
        ("soft", Softplus()),
        ("bent", Tanh()),
        ("mish", Multiply(), ("bent", "norm")),
        ("join", Concat(), ("mish", "sigmoid")),
        ("rise", _line(12, 1.0, 3.0)),
        ("kept", Clip(0.0, 6.0)),
        ("product", Multiply(), ("kept", "join")),
        ("hard", _line(12, 1 / 6, 0.0)),
        ("c", _conv("c", 12, 2, kernel=1)),
        ("square", Multiply(), ("c", "c")),
        (
            "cubed",
            _line(2, 0.044715 * (2 / 3.141592653589793) ** 0.5, (2 / 3.141592653589793) ** 0.5),
        ),
        ("power", Multiply(), ("cubed", "c")),
        ("steep", Tanh()),
        ("weight", _line(2, 0.5, 0.5)),
        ("by tanh", Multiply(), ("weight", "c")),
    ),
    "groups of whole vectors": chain(
        1,
        ("a", _conv("a", 1, 48)),
        ("norm", InstanceNorm(48)),
        ("group", _grouped("group", 48, 32, 2)),
        ("relu", Relu()),
        ("down", Conv3d(32, 64, _DOUBLE, "d.weight", "d.bias", _DOUBLE, groups=4)),
        ("up", ConvTranspose3d(64, 16, (4, 4, 4), "u.weight", None, _DOUBLE, _ONE, groups=2)),
        ("again", InstanceNorm(16)),
        ("leave", _conv("leave", 16, 2, kernel=1)),
    ),
    "groups that share vectors": chain(
        1,
        ("a", Conv3d(1, 12, (3, 3, 3), "a.weight", None, _DOUBLE, _ONE)),
        ("up", ConvTranspose3d(12, 6, (4, 4, 4), "u.weight", "u.bias", _DOUBLE, _ONE, groups=2)),
        ("leave", _conv("leave", 6, 1, kernel=1)),
    ),
    "groups that lead to cells": chain(
        1,
        ("a", _conv("a", 1, 6)),
        ("down", Conv3d(6, 12, _DOUBLE, "d.weight", "d.bias", _DOUBLE)),
        ("up", ConvTranspose3d(12, 6, _DOUBLE, "u.weight", "u.bias", _DOUBLE, groups=3)),
        ("deep", Conv3d(6, 16, _DOUBLE, "deep.weight", None, _DOUBLE)),
        ("cells", ConvTranspose3d(16, 2, _DOUBLE, "c.weight", None, _DOUBLE, groups=2)),
        ("leave", _conv("leave", 2, 1, kernel=1)),
    ),
    "each channel by itself": chain(
        1,
        ("a", _conv("a", 1, 24)),
        ("deep", _grouped("deep", 24, 24, 24, kernel=5)),
        (
            "far",
            Conv3d(24, 24, (3, 2, 3), "f.weight", None, (2, 1, 2), (2, 1, 3), (2, 2, 3), groups=24),
        ),
        (
            "up",
            ConvTranspose3d(
                24, 24, (2, 3, 4), "u.weight", "u.bias", (2, 1, 2), (0, 1, 1), groups=24
            ),
        ),
        ("norm", InstanceNorm(24)),
        ("odd", _conv("odd", 24, 5)),
        ("lone", _grouped("lone", 5, 5, 5)),
        ("again", InstanceNorm(5)),
        ("twins", _grouped("twins", 5, 10, 5)),
        ("leave", _conv("leave", 10, 1, kernel=1)),
    ),
    "transposed with dilation": chain(
        1,
        ("a", _conv("a", 1, 5)),
        ("down", Conv3d(5, 6, _DOUBLE, "d.weight", "d.bias", (2, 1, 2))),
        (
            "up",
            ConvTranspose3d(
                6, 3, (2, 3, 2), "u.weight", "u.bias", (2, 1, 2), _ONE, (1, 0, 1), (3, 1, 3)
            ),
        ),
        ("norm", InstanceNorm(3)),
        ("cut", Crop((1, 0, 0), (1, 0, 2))),
        ("pad", Pad("reflect", _ONE, (0, 2, 0))),
        ("leave", Conv3d(3, 1, (1, 3, 1), "l.weight")),
    ),
    "transposed by large strides": chain(
        1,
        ("down", Conv3d(1, 12, (2, 4, 4), "d.weight", "d.bias", (2, 4, 4))),
        ("norm", InstanceNorm(12)),
        (
            "few",
            ConvTranspose3d(
                12, 3, (4, 6, 9), "f.weight", "f.bias", (2, 4, 4), (1, 1, 3), (0, 0, 1)
            ),
        ),
        ("many", ConvTranspose3d(12, 16, (2, 4, 4), "m.weight", None, (2, 4, 4)), ("norm",)),
        ("even", InstanceNorm(16)),
        ("join", Concat(), ("even", "few")),
        ("leave", _conv("leave", 19, 1)),
    ),
    "slopes of channels everywhere": chain(
        1,
        ("a", _conv("a", 1, 6)),
        ("first", PRelu(6, "first.slope")),
        ("norm", InstanceNorm(6, "norm.scale", "norm.shift")),
        ("second", PRelu(6, "second.slope")),
        ("b", _conv("b", 6, 6)),
        ("sum", Add(), ("b", "norm")),
        ("third", PRelu(6, "third.slope")),
        ("c", _conv("c", 1, 3), (INPUT,)),
        ("join", Concat(), ("third", "c")),
        ("fourth", PRelu(9, "fourth.slope")),
        ("some", Channels(4, 4)),
        ("fifth", PRelu(4, "fifth.slope")),
    ),
    "slopes of sub-pixels before the last layer": chain(
        1,
        ("down", Conv3d(1, 8, _DOUBLE, "d.weight", "d.bias", _DOUBLE)),
        ("norm", InstanceNorm(8)),
        ("up", ConvTranspose3d(8, 32, _DOUBLE, "u.weight", None, _DOUBLE)),
        ("slopes", PRelu(32, "slopes.slope")),
        ("pad", Pad("reflect", _DOUBLE, _DOUBLE)),
        ("last", Conv3d(32, 1, (5, 5, 5), "last.weight", "last.bias")),
        ("soft", Softplus()),
    ),
    "cells of single voxels": chain(
        1,
        ("down", Conv3d(1, 64, _DOUBLE, "d.weight", None, _DOUBLE)),
        ("norm", InstanceNorm(64, "norm.scale", "norm.shift")),
        ("leaky", LeakyRelu(0.1)),
        ("up", ConvTranspose3d(64, 32, _DOUBLE, "u.weight", "u.bias", _DOUBLE)),
        ("down2", Conv3d(32, 32, _DOUBLE, "d2.weight", "d2.bias", _DOUBLE)),
        ("steep", LeakyRelu(1.5)),
        ("up2", ConvTranspose3d(32, 32, _DOUBLE, "u2.weight", None, _DOUBLE)),
        ("leave", _conv("leave", 32, 1, kernel=1)),
    ),
    "a border of no voxels": chain(
        1,
        ("sigmoid", Sigmoid()),
        ("pad", Pad("reflect", (0, 0, 0), (0, 0, 0))),
        ("conv", _conv("conv", 1, 8, kernel=1)),
        ("norm", InstanceNorm(8)),
        ("leave", _conv("leave", 8, 1)),
    ),
    "two tensors, in either order": chain(
        1,
        ("a", _conv("a", 1, 3)),
        ("b", _conv("b", 1, 3), (INPUT,)),
        ("norm", InstanceNorm(3)),
        ("less", Subtract(), ("a", "norm")),
        ("gate", Sigmoid(), ("norm",)),
        ("gated", Multiply(), ("less", "gate")),
        ("square", Multiply(), ("gated", "gated")),
        ("kept", Clip(0.0, 2.0)),
        ("back", Subtract(), ("norm", "kept")),
        ("elu", Elu(0.5)),
        ("c", _conv("c", 3, 1)),
        ("rest", Subtract(), (INPUT, "c")),
        ("ends", Clip(-1.0, None)),
    ),
    "gates of one channel": chain(
        2,
        ("a", _conv("a", 2, 12)),
        ("norm", InstanceNorm(12, "norm.scale", "norm.shift")),
        ("relu", Relu()),
        ("query", _conv("query", 12, 1, kernel=1)),
        ("gate", Sigmoid()),
        ("gated", Multiply(), ("gate", "relu")),
        ("b", _conv("b", 12, 12)),
        ("second", InstanceNorm(12)),
        ("one", Channels(1, 1), (INPUT,)),
        ("again", Multiply(), ("second", "one")),
        ("elu", Elu(0.5)),
        ("small", Pool("largest", _DOUBLE, _DOUBLE), ("gated",)),
        ("narrow", _conv("narrow", 12, 1)),
        ("wide", Conv3d(12, 20, (3, 3, 3), "wide.weight", "wide.bias", _DOUBLE, _ONE), ("elu",)),
        ("soft", Softplus()),
        ("deep", Multiply(), ("narrow", "soft")),
        ("up", ConvTranspose3d(20, 6, _DOUBLE, "up.weight", "up.bias", _DOUBLE)),
        ("cells", Multiply(), ("up", "gate")),
        ("join", Concat(), ("cells", "elu")),
        ("all", Multiply(), ("join", "query")),
        ("pad", Pad("reflect", _ONE, _ONE)),
        ("c", Conv3d(18, 2, (3, 3, 3), "c.weight", "c.bias")),
        ("ends", Multiply(), ("c", "gate")),
    ),
    "pooled behind a norm and a sum": chain(
        1,
        ("a", _conv("a", 1, 5)),
        ("norm", InstanceNorm(5, "norm.scale", "norm.shift")),
        ("act", LeakyRelu(0.1)),
        ("small", Pool("largest", _DOUBLE, _DOUBLE)),
        ("b", _conv("b", 5, 5)),
        ("sum", Add(), ("b", "small")),
        ("mean", Pool("mean", (3, 3, 3), _ONE, _ONE)),
        ("near", Upsample("nearest", _DOUBLE)),
        ("join", Concat(), ("act", "near")),
        ("pad", Pad("replicate", _ONE, _ONE)),
        ("most", Pool("largest", (3, 3, 3), _ONE)),
        ("c", _conv("c", 10, 2)),
        ("even", Pool("mean", (1, 3, 1), _ONE, (0, 1, 0), counts_padding=False)),
    ),
    "wide enough for split fp16": chain(
        1,
        ("a", _conv("a", 1, 32)),
        ("norm", InstanceNorm(32)),
        ("slopes", PRelu(32, "slopes.slope")),
        ("small", Pool("largest", _DOUBLE, _DOUBLE)),
        ("b", _conv("b", 32, 32)),
        ("other", InstanceNorm(32)),
        ("product", Multiply(), ("small", "other")),
        ("near", Upsample("nearest", _DOUBLE)),
        ("kept", Clip(-4.0, 4.0)),
        ("less", Subtract(), ("kept", "slopes")),
        ("pad", Pad("reflect", _ONE, _ONE)),
        ("c", Conv3d(32, 2, (3, 3, 3), "c.weight", "c.bias")),
    ),
    "parts of the patches": chain(
        3,
        ("some", Channels(1, 2)),
        ("cut", Crop((1, 0, 2), _ONE)),
        ("cut2", Crop((0, 1, 0), (1, 0, 0))),
        ("pad", Pad("reflect", (2, 1, 1), (1, 1, 2))),
        ("conv", _conv("conv", 2, 2)),
        ("whole", Crop(_ONE, _ONE), (INPUT,)),
        ("filled", Pad("zero", _ONE, _ONE)),
        ("one", Channels(2, 1)),
        ("join", Concat(), ("conv", "one")),
    ),
    "ensemble that ends with activations": _ensemble(
        chain(1, ("conv", _conv("conv", 1, 1)), ("sum", Add(), (INPUT, "conv")), ("tanh", Tanh())),
        chain(
            1,
            ("a", _conv("a", 1, 8)),
            ("norm", InstanceNorm(8)),
            ("relu", Relu()),
            ("b", _conv("b", 8, 1)),
            ("sigmoid", Sigmoid()),
        ),
    ),
    "ensemble that ends with convolutions": _ensemble(
        *[
            chain(
                2,
                ("a", _conv("a", 2, 8)),
                ("norm", InstanceNorm(8, "norm.scale", "norm.shift")),
                ("relu", Relu()),
                ("b", _conv("b", 8, 2)),
            )
        ]
        * 3
    ),
    "ensemble with disagreement": _ensemble(
        chain(1, ("conv", _conv("conv", 1, 1))),
        chain(1, ("conv", _conv("conv", 1, 1, kernel=5)), ("tanh", Tanh())),
        chain(
            1,
            ("a", _conv("a", 1, 8)),
            ("norm", InstanceNorm(8)),
            ("relu", Relu()),
            ("b", _conv("b", 8, 1)),
        ),
        disagreement=True,
    ),
}
"""Layers in unusual company: every parity test goes through them."""

ODD_PATCH = (6, 4, 8)
"""A patch that all of them take."""


TRANSPOSED: tuple[tuple[Triple, Triple, Triple, int], ...] = (
    ((1, 2, 2), (1, 2, 2), _ONE, 1),
    ((3, 3, 3), _ONE, _ONE, 1),
    ((3, 4, 2), (1, 2, 2), _ONE, 2),
    ((3, 5, 4), (3, 3, 2), (1, 2, 1), 1),
    (_DOUBLE, _DOUBLE, _ONE, 2),
)
"""Kernel, stride, dilation and groups of transposed convolutions that sub-pixels do not compute."""


def transposed_graph(
    kernel: Triple, stride: Triple, dilation: Triple, groups: int, width: int = 4
) -> Graph | None:
    """A transposed convolution that multiplies extents by its stride, between a convolution of that
    stride and a norm; None if no padding makes it do so.
    """
    ends = [_on_grid(*along) for along in zip(kernel, stride, dilation, strict=True)]
    if None in ends:
        return None
    padding, extra = (triple(side) for side in zip(*(end for end in ends if end), strict=True))
    ups = "up.weight", "up.bias", stride, padding, extra, dilation, groups
    return chain(
        1,
        ("down", Conv3d(1, width, stride, "down.weight", None, stride)),
        ("norm", InstanceNorm(width)),
        ("relu", Relu()),
        ("up", ConvTranspose3d(width, 2 * width, kernel, *ups)),
        ("after", InstanceNorm(2 * width)),
        ("leave", _conv("leave", 2 * width, 1)),
    )


def _on_grid(kernel: int, stride: int, dilation: int) -> tuple[int, int] | None:
    """Padding and output padding with which a transposed convolution multiplies an extent."""
    more = dilation * (kernel - 1) + 1 - stride
    padding = -(-more // 2)
    extra = 2 * padding - more
    return (padding, extra) if padding >= 0 and extra < max(stride, dilation) else None


_ONES, _ZEROS = (1, 1, 1), (0, 0, 0)


def _between(
    *layers: tuple[str, Layer] | tuple[str, Layer, tuple[str, ...]], into: int = 4, out: int = 4
) -> Graph:
    """Layers after a convolution and a norm, and before a last convolution."""
    before = ("a", _conv("a", 1, into)), ("norm", InstanceNorm(into)), ("relu", Relu())
    return chain(1, *before, *layers, ("leave", _conv("leave", out, 1)))


def _doubled(up: ConvTranspose3d, *after: tuple[str, Layer]) -> Graph:
    """A transposed convolution and its norm between halved maps and layers that end on the grid."""
    down = Conv3d(4, 4, _DOUBLE, "down.weight", None, _DOUBLE)
    layers = ("down", down), ("inner", InstanceNorm(4)), ("up", up), ("after", InstanceNorm(8))
    return _between(*layers, ("leaky", LeakyRelu(0.2)), *after, out=8)


def _up(kernel: Triple, stride: Triple = _DOUBLE, padding: Triple = _ZEROS) -> ConvTranspose3d:
    return ConvTranspose3d(4, 8, kernel, "up.weight", "up.bias", stride, padding)


OFF_GRID = {
    "transposed, 2 N + 1, cut after": _doubled(_up((3, 3, 3)), ("cut", Crop(_ZEROS, _ONES))),
    "transposed, 2 N + 1, cut before": _doubled(_up((3, 3, 3)), ("cut", Crop(_ONES, _ZEROS))),
    "transposed, 2 N + 1, convolved to 2 N": _doubled(
        _up((3, 3, 3)), ("b", Conv3d(8, 8, _DOUBLE, "b.weight"))
    ),
    "transposed, 2 N - 1, padded": _doubled(
        _up((3, 3, 3), padding=_ONES), ("pad", Pad("replicate", _ZEROS, _ONES))
    ),
    "transposed along two axes, 2 N + 2": _doubled(
        _up((2, 4, 4)), ("cut", Crop((0, 1, 1), (0, 1, 1)))
    ),
    "pool of a padded map": _between(
        ("pad", Pad("replicate", _ONES, _ONES)), ("pool", Pool("largest", (3, 3, 3), _ONES))
    ),
    "pool of a map padded at one end, halved": _between(
        ("pad", Pad("zero", _ZEROS, _ONES)),
        ("pool", Pool("mean", (3, 3, 3), _DOUBLE)),
        ("near", Upsample("nearest", _DOUBLE)),
    ),
    "pool without padding, N / 2 - 1": _between(
        ("pool", Pool("mean", (3, 3, 3), _DOUBLE)),
        ("far", Upsample("trilinear", _DOUBLE)),
        ("even", InstanceNorm(4)),
        ("pad", Pad("reflect", _ONES, _ONES)),
    ),
    "pool with padding, N / 2 + 1": _between(
        ("pool", Pool("largest", _DOUBLE, _DOUBLE, _ONES)),
        ("near", Upsample("nearest", _DOUBLE)),
        ("cut", Crop(_ONES, _ONES)),
    ),
    "reflected at one end, by other blocks": chain(
        1,
        ("a", _conv("a", 1, 4)),
        ("pad", Pad("reflect", _ZEROS, (5, 0, 0))),
        ("pool", Pool("largest", (3, 3, 3), _ONES, (0, 1, 1))),
        ("cut", Crop((3, 0, 0), _ZEROS)),
        ("leave", _conv("leave", 4, 1)),
    ),
    "transposed map that a norm reads, too": _between(
        ("b", Conv3d(4, 4, (3, 3, 3), "b.weight")),
        ("inner", LeakyRelu(0.1)),
        ("t", ConvTranspose3d(4, 4, (3, 3, 3), "t.weight", None, _ONES, _ONES)),
        ("even", InstanceNorm(4), ("inner",)),
        ("sum", Add(), ("t", "even")),
        ("pad", Pad("zero", _ONES, _ONES)),
    ),
    "group norm of joined channels": _between(
        ("b", Conv3d(4, 3, (3, 3, 3), "b.weight")),
        ("c", Conv3d(4, 2, (3, 3, 3), "c.weight"), ("relu",)),
        ("join", Concat(), ("b", "c")),
        ("grouped", GroupNorm(5, 1)),
        ("pad", Pad("zero", _ONES, _ONES)),
        out=5,
    ),
    "border wider than a halo, of a map read twice": _between(
        ("wide", Pad("replicate", (3, 3, 3), (3, 3, 3))),
        ("b", Conv3d(4, 4, (3, 3, 3), "b.weight")),
        ("cut", Crop(_DOUBLE, _DOUBLE)),
        ("sum", Add(), ("cut", "relu")),
    ),
    "convolution without padding, padded": _between(
        ("b", Conv3d(4, 4, (3, 5, 3), "b.weight")), ("pad", Pad("reflect", (1, 2, 1), (1, 2, 1)))
    ),
}
"""Layers after which a map has more or fewer voxels than strides make of the volume's."""
