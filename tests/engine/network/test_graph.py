"""The layer graph: shapes, strides, and messages for patches that do not fit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.engine.errors import PatchShapeError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node, TensorShape
from cuda_cyclegan.engine.network.layers import (
    Add,
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    InstanceNorm,
    Layer,
    Pad,
    Relu,
    Upsample,
)

DOWN = Conv3d(1, 1, (3, 3, 3), "w", stride=(2, 2, 2), padding=(1, 1, 1))
UP = ConvTranspose3d(
    1, 1, (3, 3, 3), "w", stride=(2, 2, 2), padding=(1, 1, 1), output_padding=(1, 1, 1)
)


def chain(*layers: Layer, channels: int = 1) -> Graph:
    """Layers one after another, named a, b, c ..."""
    names = [INPUT, *(chr(ord("a") + number) for number in range(len(layers)))]
    steps = zip(names, names[1:], layers, strict=False)
    return Graph(channels, tuple(Node(name, layer, (before,)) for before, name, layer in steps))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), "at least one"),
        ((Node("a", Relu(), ("b",)), Node("b", Relu(), (INPUT,))), "'a' reads 'b' before"),
        ((Node("a", Relu(), (INPUT,)), Node("a", Relu(), ("a",))), "two nodes are named 'a'"),
    ],
)
def test_malformed_graphs_cannot_be_made(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph(1, nodes)


@pytest.mark.parametrize(
    ("layer", "channels", "shape"),
    [
        (Conv3d(2, 5, (7, 5, 3), "w", padding=(3, 0, 1)), 2, TensorShape(5, (9, 8, 10))),
        (Conv3d(2, 5, (4, 4, 4), "w", stride=(2, 3, 1)), 2, TensorShape(5, (3, 3, 7))),
        (ConvTranspose3d(2, 3, (3, 4, 2), "w", stride=(2, 2, 1)), 2, TensorShape(3, (19, 26, 11))),
        (Pad("zero", (1, 0, 2), (0, 3, 1)), 2, TensorShape(2, (10, 15, 13))),
        (Upsample("nearest", (1, 2, 3)), 2, TensorShape(2, (9, 24, 30))),
        (InstanceNorm(2), 2, TensorShape(2, (9, 12, 10))),
    ],
)
def test_every_layer_knows_its_output(layer: Layer, channels: int, shape: TensorShape) -> None:
    graph = chain(layer, channels=channels)
    assert graph.shapes((9, 12, 10))["a"] == shape
    assert graph.out_channels == shape.channels


def test_joints_add_or_keep_channels() -> None:
    wide = Node("wide", Conv3d(1, 3, (1, 1, 1), "w"), (INPUT,))
    concat = Graph(1, (wide, Node("both", Concat(), (INPUT, "wide"))))
    assert concat.shapes((4, 4, 4))["both"] == TensorShape(4, (4, 4, 4))
    assert Graph(1, (wide, Node("sum", Add(), ("wide", "wide")))).out_channels == 3


def test_readers_are_named_once_in_their_order() -> None:
    nodes = (
        Node("a", Relu(), (INPUT,)),
        Node("square", Add(), ("a", "a")),
        Node("sum", Add(), ("square", "a")),
    )
    readers = Graph(1, nodes).readers()
    found = {name: [node.name for node in reading] for name, reading in readers.items()}
    assert found == {INPUT: ["a"], "a": ["square", "sum"], "square": ["sum"], "sum": []}


@pytest.mark.parametrize(
    ("graph", "stride"),
    [
        (chain(Relu()), (1, 1, 1)),
        (chain(DOWN, UP), (2, 2, 2)),
        (chain(DOWN, DOWN, UP, DOWN, UP, UP), (4, 4, 4)),
        (chain(UP, DOWN), (1, 1, 1)),
        (chain(DOWN, Upsample("nearest", (2, 2, 2))), (2, 2, 2)),
        (chain(Conv3d(1, 1, (2, 2, 2), "w", stride=(1, 2, 4))), (1, 2, 4)),
        (build(ResNetSpec(1, 1, 2, 2, downsamplings=3)), (8, 8, 8)),
        (build(UNetSpec(1, 1, 2, levels=5)), (32, 32, 32)),
    ],
)
def test_stride_is_the_deepest_sampling(graph: Graph, stride: tuple[int, int, int]) -> None:
    assert graph.stride == stride


@pytest.mark.parametrize(
    ("graph", "patch", "message"),
    [
        (chain(DOWN, UP), (8, 9, 8), "Patch 8x9x8 .* multiple of 2x2x2"),
        (chain(DOWN), (8, 8, 8), "patch of 8x8x8 into 4x4x4"),
        (chain(Conv3d(1, 1, (5, 5, 5), "w")), (4, 8, 8), "Layer a has an empty output for 4x8x8"),
        (chain(Pad("reflect", (3, 3, 3), (3, 3, 3))), (8, 3, 8), "reflect 3 voxels of 8x3x8"),
        (chain(Conv3d(2, 1, (1, 1, 1), "w")), (4, 4, 4), "takes 2 channels, but its input has 1"),
        (chain(InstanceNorm(3)), (4, 4, 4), "takes 3 channels"),
        (
            Graph(1, (Node("a", DOWN, (INPUT,)), Node("b", Add(), (INPUT, "a")))),
            (4, 4, 4),
            "Layer b joins maps of 4x4x4 and 2x2x2",
        ),
    ],
)
def test_patches_that_do_not_fit_are_refused(
    graph: Graph, patch: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(PatchShapeError, match=message):
        graph.check_patch(patch)


specs = st.one_of(
    st.builds(
        ResNetSpec,
        in_channels=st.integers(1, 3),
        out_channels=st.integers(1, 3),
        width=st.integers(1, 4),
        blocks=st.integers(0, 3),
        downsamplings=st.integers(0, 3),
        padding=st.sampled_from(["reflect", "replicate", "zero"]),
        norm=st.sampled_from(["instance", "instance_affine", "stored", "none"]),
        upsampling=st.sampled_from(
            ["transposed", "nearest", "trilinear", "trilinear_corners", "trilinear_zeros"]
        ),
        first_kernel=st.sampled_from([3, 5, 7]),
    ),
    st.builds(
        UNetSpec,
        in_channels=st.integers(1, 3),
        out_channels=st.integers(1, 3),
        width=st.integers(1, 4),
        levels=st.integers(2, 5),
        norm=st.sampled_from(["instance", "instance_affine", "stored", "none"]),
        upsampling=st.sampled_from(
            ["transposed", "nearest", "trilinear", "trilinear_corners", "trilinear_zeros"]
        ),
        skip_first=st.booleans(),
    ),
)


@given(spec=specs, multiples=st.tuples(*[st.integers(2, 5)] * 3))
def test_generators_keep_every_patch_of_their_stride(
    spec: Spec, multiples: tuple[int, int, int]
) -> None:
    graph = build(spec)
    depth, height, width = (n * max(s, 4) for n, s in zip(multiples, graph.stride, strict=True))
    graph.check_patch((depth, height, width))
    assert graph.out_channels == spec.out_channels


@given(spec=specs)
def test_weights_are_named_once_each(spec: Spec) -> None:
    names = [name for name, _ in build(spec).weight_shapes()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "'w' is missing"),
        ({"w": np.zeros((1, 1, 3, 3, 3), np.float32)}, "'s' is missing"),
        ({"w": np.zeros((1, 1, 3, 3), np.float32)}, r"'w' is \(1, 1, 3, 3\), not"),
    ],
)
def test_networks_need_every_weight_in_its_shape(weights: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network(chain(DOWN, ChannelAffine(1, "s", "s")), weights)
