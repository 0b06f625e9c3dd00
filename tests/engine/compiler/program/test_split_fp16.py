"""Numbers as split fp16: how near they come, and which values may be kept so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support.gpu_networks import chain, random_network

from cuda_cyclegan.engine.compiler.program.split_fp16 import (
    power_of_two,
    scales,
    split_fp16_pays,
    value_bounds,
)
from cuda_cyclegan.engine.compiler.weight_layout import split_fp16, split_fp16_pairs
from cuda_cyclegan.engine.cpu.session import open_cpu_generator, session, session_options
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network
from cuda_cyclegan.engine.network.layers import (
    Add,
    Channels,
    Clip,
    Concat,
    Constant,
    Crop,
    Downsample,
    Elu,
    Erf,
    GroupNorm,
    InstanceNorm,
    Inverse,
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
)

RESNET = ResNetSpec(1, 1, width=32, blocks=2, norm="instance_affine")


def bounds_of(network, patch):
    return value_bounds(network, network.graph.shapes(patch))


def scales_of(network, precision):
    return scales(network, network.graph.shapes((16, 16, 16)), precision)


@given(st.floats(2.0**-10, 1.0, width=32), st.floats(2.0**-12, 1.0, width=32))
def test_split_fp16_is_a_last_place_of_float_off_at_most(largest, share):
    scale = power_of_two(largest)
    value = np.array([largest * share, -largest * share], np.float32)
    high, low = split_fp16(value * np.float32(scale))
    assert np.isfinite(high).all()
    assert (np.abs((high + low) / scale - value) <= 2.0**-23 * np.abs(value)).all()


def test_weights_lie_as_eight_high_and_eight_low_parts():
    weight = np.random.default_rng(0).normal(0, 1, (3, 1, 1, 1, 32)).astype(np.float32)
    stored = split_fp16_pairs(weight, 4.0).view(np.float16).reshape(3, 4, 2, 8).astype(np.float32)
    eights = weight.reshape(3, 4, 8)
    np.testing.assert_array_equal(stored[:, :, 0], (eights * 4).astype(np.float16))
    np.testing.assert_allclose(stored.sum(2) / 4, eights, rtol=2.0**-23, atol=2.0**-27)


def test_no_value_exceeds_its_bound():
    graph = chain(
        2,
        ("norm", InstanceNorm(2, "norm.scale", "norm.shift")),
        ("leaky", LeakyRelu(-1.5)),
        ("sum", Add(), ("norm", "leaky")),
        ("relu", Relu()),
        ("join", Concat(), ("relu", "leaky")),
        ("tanh", Tanh()),
    )
    patch = (4, 6, 8)
    network = random_network(graph, 0)
    patches = np.zeros((1, 2, *patch), np.float32)
    patches[:, :, 3, 4, 5] = 1e3, -1e3  # a lone peak is what comes nearest to the bound
    for index, node in enumerate(graph.nodes):
        shortened = Network(Graph(2, graph.nodes[: index + 1]), network.weights)
        bound = bounds_of(network, patch)[node.name]
        with open_cpu_generator(shortened, threads=1) as generator:
            highest = np.abs(generator(patches)).max()
        assert 0.5 * bound < highest <= 1.0001 * bound


def test_no_value_of_a_feature_exceeds_its_bound():
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    graph = chain(
        4,
        ("norm", GroupNorm(4, 2, "norm.scale", "norm.shift")),
        ("elu", Elu(50.0)),
        ("pad", Pad(Constant(-90.0), (1, 1, 1), (1, 1, 1))),
        ("blur", Downsample(3, (2, 2, 2), Constant(95.0))),
        ("sigmoid", Sigmoid()),
    )
    patch = (4, 6, 8)
    network = random_network(graph, 0)
    patches = np.zeros((1, 4, *patch), np.float32)
    patches[:, ::2, 3, 4, 5] = 1e3, -1e3
    for index, node in enumerate(graph.nodes):
        shortened = Network(Graph(4, graph.nodes[: index + 1]), network.weights)
        [made] = session(to_onnx(shortened), session_options(1)).run(None, {INPUT: patches})
        highest = np.abs(made).max()
        assert highest <= 1.0001 * bounds_of(network, patch)[node.name] < np.inf


PLAIN_BEHIND_A_NORM = (
    ("slopes", PRelu(3, "slopes.slope")),
    ("soft", Softplus()),
    ("bell", Erf()),
    ("less", Subtract(), ("norm", "soft")),
    ("product", Multiply(), ("less", "slopes")),
    ("lower", Clip(None, -3.0)),
    ("upper", Clip(-50.0, None), ("product",)),
    ("both", Clip(-2.0, 5.0), ("product",)),
    ("largest", Pool("largest", (3, 3, 3), (1, 1, 1), (1, 1, 1)), ("product",)),
    ("mean", Pool("mean", (2, 2, 2), (2, 2, 2)), ("product",)),
    ("cut", Crop((1, 1, 1), (0, 0, 0)), ("product",)),
    ("some", Channels(1, 2)),
    ("positive", Clip(0.5, None), ("product",)),
    ("inverse", Inverse(0.5)),
    ("root", Inverse(0.5, root=True), ("positive",)),
)


@pytest.mark.parametrize("peak", [1e3, -1e3])
def test_no_value_of_what_other_graphs_hold_exceeds_its_bound(peak):
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    graph = chain(3, ("norm", InstanceNorm(3, "norm.scale", "norm.shift")), *PLAIN_BEHIND_A_NORM)
    patch = (4, 6, 8)
    network = random_network(graph, 0)
    network.weights["slopes.slope"][:] = -1.5, 2.0, 0.1
    patches = np.random.default_rng(0).normal(0, 1e-3, (1, 3, *patch)).astype(np.float32)
    patches[:, :, 3, 4, 5] = peak
    for index, node in enumerate(graph.nodes):
        shortened = Network(Graph(3, graph.nodes[: index + 1]), network.weights)
        [made] = session(to_onnx(shortened), session_options(1)).run(None, {INPUT: patches})
        highest = np.abs(made).max()
        assert highest <= 1.0001 * bounds_of(network, patch)[node.name] < np.inf


def test_a_clip_bounds_what_nothing_else_does():
    graph = chain(1, ("clip", Clip(-7.0, 3.0)), ("open", Clip(0.0, None)), ("soft", Softplus()))
    bounds = bounds_of(random_network(graph, 0), (4, 4, 4))
    assert (bounds["clip"], bounds["open"]) == (7.0, 3.0)
    lone = chain(1, ("open", Clip(0.0, None)), ("soft", Softplus()), ("p", PRelu(1, "p.slope")))
    assert set(bounds_of(random_network(lone, 0), (4, 4, 4)).values()) == {np.inf}


def test_unbounded_values_are_not_kept_as_split_fp16():
    bounded = scales_of(random_network(build(RESNET), 0), "fp32")
    assert len(bounded) == 9  # all convolutions but the first
    assert all(2.0 <= scale <= 2.0**15 for scale in bounded.values())
    for norm in ("none", "stored"):
        assert not scales_of(random_network(build(structs.replace(RESNET, norm=norm)), 0), "fp32")
    large = random_network(build(RESNET), 0)
    weights = {n: a * (1e4 if n.endswith("scale") else 1) for n, a in large.weights.items()}
    assert not scales_of(Network(large.graph, weights), "fp32")


def test_only_float_programs_on_fast_gpus_use_split_fp16():
    assert split_fp16_pays("fp32", (9, 0))
    assert split_fp16_pays("tf32", (9, 0))
    assert not split_fp16_pays("fp32", (8, 6))
    assert not split_fp16_pays("fp16", (9, 0))


def test_in_tf32_what_all_later_layers_pass_on_is_exact():
    graph = build(RESNET)
    by_name = {node.name: node for node in graph.nodes}
    found = scales_of(random_network(graph, 0), "tf32")
    wanted = {by_name[name].inputs[0] for name in ("down0", "down1")}
    assert set(found) == wanted
