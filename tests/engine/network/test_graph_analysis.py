"""FLOPs, receptive field, value range, and the largest patch that fits, computed from a graph."""

from collections.abc import Callable
from math import inf, prod
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.covering_networks import SPECS, covering
from support.gpu_networks import ODD_GRAPHS, chain, random_network
from support.network_features import CUT, patches_for, trained
from support.tiers import examples

from cuda_cyclegan.engine.cpu.session import session, session_options
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.graph_analysis import (
    flops,
    held_bytes,
    largest_patch,
    node_ranges,
    output_range,
    receptive_field,
    sees_whole_patch,
)
from cuda_cyclegan.engine.network.layers import (
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
    Upsample,
)


def counted_by_torch(run: Callable[[], object]) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(("width", "gigaflops"), [(32, 701), (64, 2619)])
def test_the_published_generators(width: int, gigaflops: int) -> None:
    graph = build(ResNetSpec(1, 1, width, 9))
    assert round(flops(graph, (128, 128, 128)) / 1e9) == gigaflops


def test_a_patch_that_is_no_cube_counts_as_torch_counts_it() -> None:
    import torch
    from support.torch_generators import padded_resnet

    module = padded_resnet(width=4, blocks=2).eval()
    counted = counted_by_torch(lambda: module(torch.zeros(1, 1, 16, 24, 8)))
    assert flops(build(ResNetSpec(1, 1, 4, 2)), (16, 24, 8)) == counted


@pytest.mark.parametrize("name", covering(name for name in SPECS if SPECS[name] is not CUT))
def test_every_feature_counts_as_torch_counts_it(name: str) -> None:
    import torch
    from support.features_in_torch import in_torch

    spec = SPECS[name]
    network, patches = trained(spec), patches_for(spec, (16, 24, 16))
    counted = counted_by_torch(lambda: in_torch(spec, network, patches, torch.float32))
    assert flops(build(spec), (16, 24, 16)) == counted


@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_every_unusual_graph_counts_as_torch_counts_it(name: str) -> None:
    import torch

    from cuda_cyclegan.engine.benchmark.pytorch import as_module

    network = random_network(ODD_GRAPHS[name], 0)
    patches = torch.zeros(1, network.graph.in_channels, 8, 8, 8)
    counted = counted_by_torch(lambda: as_module(network)(patches))
    assert flops(network.graph, (8, 8, 8)) == counted


def test_a_unet_has_work_on_every_level() -> None:
    graph = build(UNetSpec(1, 1, 4, 3))
    assert flops(graph, (16, 16, 16)) * 8 == flops(graph, (32, 32, 32))


WIDTH = 48


def without_norms(graph: Graph) -> Graph:
    """The graph without layers that see the whole patch."""
    instead: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(instead.get(name, name) for name in node.inputs)
        if isinstance(node.layer, InstanceNorm):
            instead[node.name] = inputs[0]
        else:
            nodes.append(structs.replace(node, inputs=inputs))
    return Graph(graph.in_channels, tuple(nodes))


DOWN = Conv3d(1, 1, (3, 3, 3), "d.weight", None, (2, 2, 2), (1, 1, 1))
DILATED = Conv3d(1, 1, (3, 3, 3), "w.weight", None, (1, 1, 1), (2, 2, 2), (2, 2, 2))
UP = ConvTranspose3d(1, 1, (4, 4, 4), "u.weight", None, (2, 2, 2), (1, 1, 1))
GRAPHS = {
    "strides and dilation": chain(1, ("d", DOWN), ("e", DOWN), ("w", DILATED)),
    "down and up": chain(1, ("d", DOWN), ("w", DILATED), ("u", UP)),
    "sampling": chain(1, ("d", DOWN), ("s", Upsample("trilinear", (2, 2, 2))), ("w", DILATED)),
    "pooling": ODD_GRAPHS["pooling"],
    "groups": ODD_GRAPHS["groups and dilation"],
    "each channel by itself": without_norms(ODD_GRAPHS["each channel by itself"]),
    "transposed with dilation": without_norms(ODD_GRAPHS["transposed with dilation"]),
    "parts": ODD_GRAPHS["parts of the patches"],
    "two paths": ODD_GRAPHS["input twice"],
}


def seen(graph: Graph) -> int:
    """The widest run of planes along W in which a change is seen by one plane of the result."""
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    running = session(to_onnx(random_network(graph, 1)), session_options(1))
    patch = np.random.default_rng(0).normal(size=(1, graph.in_channels, 8, 8, WIDTH))
    patches = np.repeat(patch.astype(np.float32), WIDTH + 1, 0)
    for at in range(WIDTH):
        patches[at + 1, ..., at] += 3
    [made] = running.run(None, {"input": patches})
    changed = (np.abs(made[1:] - made[0]) > 1e-6).any(axis=(1, 2, 3))
    return max(np.ptp(np.flatnonzero(plane)) + 1 for plane in changed.T if plane.any())


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_what_a_voxel_depends_on(name: str) -> None:
    assert receptive_field(GRAPHS[name])[2] == seen(GRAPHS[name])


def test_a_norm_sees_the_whole_patch() -> None:
    assert sees_whole_patch(chain(1, ("norm", InstanceNorm(1))))
    assert not sees_whole_patch(GRAPHS["sampling"])


ONE, TWO = (1, 1, 1), (2, 2, 2)
ENDS: dict[str, tuple[list[Layer], tuple[float, float]]] = {
    "nothing": ([], (-inf, inf)),
    "tanh": ([Tanh()], (-1, 1)),
    "sigmoid": ([Sigmoid()], (0, 1)),
    "half of a tanh, and a half": ([Tanh(), ChannelAffine(1, "half", "half")], (0, 1)),
    "a sigmoid turned over": ([Sigmoid(), ChannelAffine(1, "less", "one")], (0, 1)),
    "nothing times a tanh": ([Tanh(), ChannelAffine(1, "none", "one")], (-inf, inf)),
    "clip": ([Clip(0.0, 1.0)], (0, 1)),
    "clip on one side": ([Clip(None, 1.0)], (-inf, 1)),
    "relu": ([Relu()], (0, inf)),
    "relu of a tanh": ([Tanh(), Relu()], (0, 1)),
    "leaky relu of a tanh": ([Tanh(), LeakyRelu(0.5)], (-0.5, 1)),
    "leaky relu that turns signs": ([Tanh(), LeakyRelu(-0.5)], (0, 1)),
    "elu": ([Elu(2.0)], (-2, inf)),
    "erf of anything": ([Erf()], (-1, 1)),
    "what moves voxels": ([Tanh(), Upsample("trilinear", TWO), Crop(ONE, ONE)], (-1, 1)),
    "replicated": ([Sigmoid(), Pad("replicate", ONE, ONE)], (0, 1)),
    "zeros around": ([Clip(0.5, 1.0), Pad("zero", ONE, ONE)], (0, 1)),
    "a number around": ([Sigmoid(), Pad(Constant(-1.0), ONE, ONE)], (-1, 1)),
    "means with zeros": ([Clip(0.5, 1.0), Pool("mean", (3, 3, 3), ONE, ONE)], (0, 1)),
    "means": ([Clip(0.5, 1.0), Pool("mean", TWO, TWO)], (0.5, 1)),
    "what comes behind": ([Tanh(), Conv3d(1, 1, ONE, "weight")], (-inf, inf)),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_ends_of_what_comes_out(name: str) -> None:
    layers, ends = ENDS[name]
    assert _ends(*(Node(f"n{at}", layer, (f"n{at - 1}",)) for at, layer in enumerate(layers))) == (
        ends
    )


def test_two_inputs() -> None:
    tanh, sigmoid = Node("t", Tanh(), ("n-1",)), Node("s", Sigmoid(), ("n-1",))
    assert _ends(tanh, sigmoid, Node("c", Concat(), ("t", "s"))) == (-1, 1)
    assert _ends(tanh, sigmoid, Node("a", Add(), ("t", "s"))) == (-1, 2)
    assert _ends(tanh, sigmoid, Node("a", Subtract(), ("t", "s"))) == (-2, 1)
    assert _ends(sigmoid, Node("a", Subtract(), ("s", "n-1"))) == (-inf, inf)
    assert _ends(tanh, sigmoid, Node("m", Multiply(), ("t", "s"))) == (-1, 1)
    assert _ends(tanh, Node("m", Multiply(), ("t", "t"))) == (0, 1)
    assert _ends(Node("m", Multiply(), ("n-1", "n-1"))) == (0, inf)
    relu = Node("r", Relu(), ("t",))
    assert _ends(tanh, relu, Node("m", Multiply(), ("r", "n-1"))) == (-inf, inf)


def test_a_norm_is_bounded_if_the_extents_are_known() -> None:
    norm = Node("norm", InstanceNorm(2, "scale", "shift"), (INPUT,))
    nodes = norm, Node("relu", Relu(), ("norm",))
    weights = {
        "scale": np.array([-3, 1], np.float32),
        "shift": np.array([0.5, -2], np.float32),
    }
    assert node_ranges(nodes, weights)["relu"] == (0, inf)
    shapes = Graph(2, nodes).shapes((2, 2, 4))
    assert node_ranges(nodes, weights, shapes) == {"norm": (-14, 14), "relu": (0, 14)}


SCALED = ("scale", "shift")
BOUNDED: tuple[Layer, ...] = (
    Conv3d(2, 2, (3, 3, 3), "weight", "bias", ONE, ONE, groups=2),
    Conv3d(2, 2, ONE, "point"),
    ConvTranspose3d(2, 2, TWO, "doubling", None, TWO, (0, 0, 0)),
    InstanceNorm(2, *SCALED),
    GroupNorm(2, 1, *SCALED),
    ChannelAffine(2, *SCALED),
    Relu(),
    LeakyRelu(-0.3),
    PRelu(2, "slope"),
    Elu(1.5),
    Softplus(),
    *(Clip(-0.25, None), Clip(None, 0.5), Clip(-0.5, 2.0)),
    *(Tanh(), Sigmoid(), Erf(), Exp()),
    *(Inverse(0.5), Inverse(0.25, root=True)),
    *(Pad(mode, ONE, ONE) for mode in ("reflect", "replicate", "zero", Constant(-3.0))),
    Crop(ONE, ONE),
    Channels(1, 1),
    *(Add(), Subtract(), Multiply(), Concat()),
    *(Upsample(mode, TWO) for mode in ("nearest", "trilinear")),
    Upsample("trilinear", TWO, align_corners=True),
    *(Pool("largest", (3, 3, 3), TWO, ONE), Pool("mean", (3, 3, 3), TWO, ONE)),
    Pool("mean", (3, 3, 3), TWO, ONE, counts_padding=False),
    *(Downsample(taps, TWO, mode) for taps, mode in ((3, "reflect"), (4, "zero"))),
)
"""Layers of every kind, on two channels."""

TWICE = (Add, Subtract, Multiply, Concat)
EDGE_OF_RANGE = st.sampled_from([-80.0, -3.0, -0.5, 0.0, 0.25, 2.0, 6.0, 80.0])
SPAN = st.lists(EDGE_OF_RANGE, min_size=2, max_size=2, unique=True).map(
    lambda ends: (min(ends), max(ends))
)


def test_every_kind_of_layer_is_compared_with_its_bounds() -> None:
    def kinds(union: Any) -> set[type]:
        return {kind for one in get_args(union) for kind in (kinds(one) or {one})}

    assert {type(layer) for layer in BOUNDED} == kinds(Layer)


@pytest.mark.parametrize("layer", BOUNDED, ids=repr)
@settings(max_examples=examples(60))
@given(first=SPAN, second=SPAN, seed=st.integers(0, 1000), is_negative=st.booleans())
def test_no_value_is_outside_the_bounds_of_its_layer(
    layer: Layer,
    first: tuple[float, float],
    second: tuple[float, float],
    seed: int,
    is_negative: bool,
) -> None:
    """Inputs reach both ends of their ranges."""
    import torch

    from cuda_cyclegan.engine.benchmark.pytorch import as_module

    several = isinstance(layer, TWICE)
    graph = chain(
        2,
        ("left", Clip(*first)),
        ("right", Clip(*second), (INPUT,)),
        ("it", layer, ("left", "right") if several else ("left",)),
    )
    sign = np.float32(-1 if is_negative else 1)
    weights = random_network(graph, seed).weights
    network = Network(graph, {key: sign * np.abs(one) for key, one in weights.items()})
    random = np.random.default_rng(seed)
    patch = random.uniform(-100, 100, (1, 2, 4, 4, 4)).astype(np.float32)
    output = as_module(network)(torch.from_numpy(patch)).detach().numpy()
    low, high = output_range(network)
    slack = 1e-5 * np.abs(output).max() + 1e-6
    assert low - slack <= output.min() <= output.max() <= high + slack


def _ends(*nodes: Node) -> tuple[float, float]:
    numbers = {"half": 0.5, "less": -1.0, "one": 1.0, "none": 0.0}
    weights = {key: np.full(1, number, np.float32) for key, number in numbers.items()}
    weights["weight"] = np.ones((1, 1, 1, 1, 1), np.float32)
    first = Node("n-1", Conv3d(1, 1, ONE, "weight"), (INPUT,))
    named = {name for node in (first, *nodes) for name in _weights(node.layer)}
    graph = Graph(1, (first, *nodes))
    return output_range(Network(graph, {key: weights[key] for key in named}))


def _weights(layer: Layer) -> list[str]:
    match layer:
        case ChannelAffine(_, scale, shift):
            return [scale, shift]
        case Conv3d(weight=weight):
            return [weight]
        case _:
            return []


GRAPH = build(ResNetSpec(1, 1, 4, 2))
EDGES = st.integers(8, 500).map(lambda edge: edge * 4)


@given(patch=st.tuples(EDGES, EDGES, EDGES), room=st.integers(1 << 20, 1 << 40))
def test_it_fits_is_taken_by_the_network_and_keeps_about_the_proportions(
    patch: tuple[int, int, int], room: int
) -> None:
    found = largest_patch(GRAPH, patch, lambda one: held_bytes(GRAPH, one) <= room)
    if found is None:
        return
    GRAPH.check_patch(found)
    assert held_bytes(GRAPH, found) <= room
    assert all(edge <= whole for edge, whole in zip(found, patch, strict=True))
    shares = [edge / whole for edge, whole in zip(found, patch, strict=True)]
    if min(found) >= 64:
        assert max(shares) / min(shares) < 1.5


@pytest.mark.parametrize("free", [1 << 28, 1 << 32, 1 << 36])
def test_it_is_not_much_smaller_than_it_must_be(free: int) -> None:
    found = largest_patch(GRAPH, (2000, 2000, 2000), lambda one: held_bytes(GRAPH, one) <= free)
    assert found is not None
    larger = found[0] + 48, found[1] + 48, found[2] + 48
    assert held_bytes(GRAPH, larger) > free
    assert prod(found) > 0


def test_there_may_be_none() -> None:
    assert largest_patch(GRAPH, (64, 64, 64), lambda _: False) is None
