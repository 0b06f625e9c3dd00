"""Activations of several layers are recognised, however a file states them, and only those."""

from collections import Counter
from math import pi, sqrt
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from onnx import NodeProto
from support.described_gpus import H200
from support.gpu_networks import ODD_GRAPHS, ODD_PATCH, chain, layer_norm, random_network
from support.onnx_files import model, node
from support.onnx_judge import ARRAYS, ended, vector, written_down
from support.step_interpreter import interpret

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program import compound_layers as compound_layers_module
from cuda_cyclegan.engine.compiler.program.compound_layers import compound_layers
from cuda_cyclegan.engine.compiler.program.layer_values import layer_values
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Activation, Pointwise
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.network.layers import (
    ChannelAffine,
    Concat,
    Conv3d,
    Erf,
    Inverse,
    Multiply,
    Pad,
    Sigmoid,
    Triple,
)
from cuda_cyclegan.engine.options import Precision

GELU = Activation(curve="gelu")
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "tf32", "fp32")
NUMBERS = {
    "root2": vector(sqrt(2)),
    "half root2": vector(sqrt(0.5)),
    "near root2": vector(1.414),
    "half": vector(0.5),
    "one": vector(1),
    "three": vector(3),
    "six": vector(6),
    "sixth": vector(1 / 6),
    "nothing": vector(0),
    "cube": vector(0.044715),
    "steep": vector(sqrt(2 / pi)),
    "quick": vector(1.702),
    "each": vector(0.7, 0.7, 0.7, 0.8).reshape(4, 1, 1, 1),
    "most": vector(8),
    "least": vector(-8),
}
ERF = node("Erf", "scaled", "bell"), node("Add", "bell one", "share")
TANH = (
    node("Pow", "a three", "cubed"),
    node("Mul", "cubed cube", "curved"),
    node("Add", "a curved", "line"),
    node("Mul", "line steep", "power"),
    node("Tanh", "power", "t"),
    node("Add", "one t", "share"),
)
FORMS: dict[str, tuple[list[NodeProto], str, float]] = {
    "GELU as PyTorch exports it": (
        [
            node("Div", "a root2", "scaled"),
            *ERF,
            node("Mul", "a share", "product"),
            node("Mul", "product half", "b"),
        ],
        "gelu",
        1.0,
    ),
    "GELU whose half is taken first": (
        [
            node("Mul", "half a", "halved"),
            node("Div", "a root2", "scaled"),
            *ERF,
            node("Mul", "share halved", "b"),
        ],
        "gelu",
        1.0,
    ),
    "GELU of one operator": ([node("Gelu", "a", "b")], "gelu", 1.0),
    "GELU by tanh": (
        [*TANH, node("Mul", "half a", "halved"), node("Mul", "halved share", "b")],
        "swish",
        sqrt(8 / pi),
    ),
    "GELU by tanh of one operator": (
        [node("Gelu", "a", "b", approximate="tanh")],
        "swish",
        sqrt(8 / pi),
    ),
    "quick GELU": (
        [
            node("Mul", "a quick", "scaled"),
            node("Sigmoid", "scaled", "share"),
            node("Mul", "a share", "b"),
        ],
        "swish",
        1.702,
    ),
    "SiLU": ([node("Sigmoid", "a", "share"), node("Mul", "share a", "b")], "swish", 1.0),
    "hard swish of one operator": ([node("HardSwish", "a", "b")], "hard_swish", 1.0),
    "hard swish by its limits": (
        [
            node("Add", "a three", "line"),
            node("Clip", "line nothing0 six0", "kept"),
            node("Mul", "a kept", "product"),
            node("Div", "product six", "b"),
        ],
        "hard_swish",
        1.0,
    ),
    "Mish of one operator": ([node("Mish", "a", "b")], "mish", 1.0),
    "Mish of its parts": (
        [
            node("Softplus", "a", "soft"),
            node("Tanh", "soft", "share"),
            node("Mul", "a share", "b"),
        ],
        "mish",
        1.0,
    ),
}
LIMITS = {"nothing0": np.float32(0), "six0": np.float32(6)}
LIMITS |= {"least0": np.float32(-8), "most0": np.float32(8)}


def imported(nodes: list[NodeProto], folder: Path) -> Network:
    numbers = {name.replace(" ", "_"): array for name, array in NUMBERS.items()}
    proto = model(ended(*nodes), ARRAYS | numbers | LIMITS, opset=20)
    return written_down(proto, folder).network


@pytest.mark.parametrize("name", FORMS)
def test_an_activation_of_several_operators_is_one_pass(name: str, tmp_path: Path) -> None:
    nodes, curve, slope = FORMS[name]
    network = imported(nodes, tmp_path)
    [found] = compound_layers(network)[0].values()
    assert (found.source, found.operation.curve) == ("0.conv", curve)
    assert found.operation.slope == pytest.approx(slope, rel=1e-6)
    assert (found.operation.cube > 0) == ("tanh" in name)
    steps = lower(network, Layout((8, 8, 8), 1, "fp16"), H200).steps
    assert [step.activation.curve for step in steps if isinstance(step, Pointwise)] == [curve]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Mul", "a a", "b")],
        [node("Tanh", "a", "share"), node("Mul", "a share", "b")],
        [node("Div", "a near_root2", "scaled"), *ERF, node("Mul", "a share", "b")],
        [node("Div", "a root2", "scaled"), *ERF, node("Mul", "a share", "b")],
        [node("Mul", "a each", "s"), node("Sigmoid", "s", "share"), node("Mul", "a share", "b")],
        [
            node("Clip", "a least0 most0", "kept"),
            node("Sigmoid", "kept", "share"),
            node("Mul", "a share", "b"),
        ],
        [node("Neg", "a", "s"), node("Sigmoid", "s", "share"), node("Mul", "s share", "b")],
    ],
    ids=[
        "a square",
        "another share",
        "GELU of a rounded root",
        "twice a GELU",
        "slopes of channels",
        "a sigmoid of a limited tensor",
        "a swish of the negative tensor",
    ],
)
def test_a_similar_product_is_not_taken_for_one_of_them(
    nodes: list[NodeProto], tmp_path: Path
) -> None:
    found, unneeded = compound_layers(imported(nodes, tmp_path))
    assert [one.source for one in found.values()] in ([], ["1.channel_affine"])
    assert not unneeded or found


def test_a_gate_that_others_read_is_still_computed() -> None:
    graph = chain(
        1,
        ("a", Conv3d(1, 4, (1, 1, 1), "a.weight")),
        ("gate", Sigmoid()),
        ("swish", Multiply(), ("a", "gate")),
        ("both", Multiply(), ("gate", "swish")),
    )
    found, unneeded = compound_layers(random_network(graph, 0))
    assert [*found] == ["swish"]
    assert not unneeded


def check(graph: Graph, extents: Triple = (8, 8, 8)) -> None:
    """The steps of a graph, with all kernels, compute what the CPU does."""
    network = random_network(graph, 0)
    lowered = lower(network, Layout(extents, 1, "fp16", matrix_kernels=True), H200)
    patches = np.random.default_rng(0).normal(size=(1, 1, *extents)).astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator:
        wanted = generator(patches)
    made = interpret(lowered, patches, graph.out_channels)
    np.testing.assert_allclose(made, wanted, atol=1e-4 * np.abs(wanted).max())


def test_an_activation_whose_source_joins_its_only_reader_stays_as_it_is() -> None:
    """A convolution to few channels computes the half, too, and its own result is never there."""
    check(
        chain(
            1,
            ("a", Conv3d(1, 32, (3, 3, 3), "a.weight", padding=(1, 1, 1))),
            ("c", Conv3d(32, 3, (3, 3, 3), "c.weight", padding=(1, 1, 1))),
            ("b", Conv3d(32, 3, (3, 3, 3), "b.weight", padding=(1, 1, 1)), ("a",)),
            ("half", ChannelAffine(3, "=0.5 of 3", "=0.0 of 3")),
            ("wide", ChannelAffine(3, "=1.4142135623730951 of 3", "=0.0 of 3")),
            ("bell", Erf()),
            ("more", ChannelAffine(3, "=1.0 of 3", "=1.0 of 3")),
            ("gelu", Multiply(), ("half", "more")),
            ("join", Concat(), ("c", "half")),
            ("all", Concat(), ("join", "gelu")),
            ("leave", Conv3d(9, 1, (1, 1, 1), "leave.weight")),
        )
    )


def test_a_last_layer_reads_a_norm_that_is_written() -> None:
    check(
        chain(
            1,
            ("a", Conv3d(1, 32, (3, 3, 3), "a.weight", padding=(1, 1, 1))),
            *layer_norm("norm", "a", 32),
            ("pad", Pad("reflect", (2, 2, 2), (2, 2, 2))),
            ("leave", Conv3d(32, 1, (5, 5, 5), "leave.weight")),
        )
    )


def test_convolutions_of_an_odd_graph_read_norms_that_are_written() -> None:
    check(ODD_GRAPHS["norms of voxels over channels"], ODD_PATCH)


def test_layers_of_an_odd_graph_become_all_curves() -> None:
    network = random_network(ODD_GRAPHS["activations of several layers"], 0)
    found, unneeded = compound_layers(network)
    curves = Counter(one.operation.curve for one in found.values())
    assert curves == {"gelu": 1, "swish": 2, "mish": 1, "hard_swish": 1}
    kept = {node.name for node in network.graph.nodes} - unneeded
    assert "sigmoid" in kept  # the concatenation reads it
    assert not kept & {"bell", "narrow", "share", "soft", "bent", "rise", "kept", "square"}
    steps = lower(network, Layout(ODD_PATCH, 1, "fp16"), H200).steps
    assert "erf" not in str(steps)


CENTRED = node("ReduceMean", "a", "mean", axes=[1]), node("Sub", "a mean", "less")
SQUARES = node("Mul", "less less", "square")
VARIANCE = node("ReduceMean", "square", "variance", axes=[1])
DEVIATION = node("Add", "variance little", "more"), node("Sqrt", "more", "deviation")
NORMS: dict[str, list[NodeProto]] = {
    "of its steps": [
        *CENTRED,
        node("Pow", "less two", "square"),
        VARIANCE,
        node("Sub", "a mean", "again"),
        *DEVIATION,
        node("Div", "again deviation", "normal"),
        node("Mul", "factors normal", "scaled"),
        node("Add", "scaled summands", "b"),
    ],
    "of its steps, by a product": [
        *CENTRED,
        SQUARES,
        VARIANCE,
        *DEVIATION,
        node("Reciprocal", "deviation", "inverse"),
        node("Mul", "less inverse", "normal"),
        node("Mul", "factors normal", "scaled"),
        node("Add", "scaled summands", "b"),
    ],
    "of one operator": [
        node("Transpose", "a", "l", perm=[0, 2, 3, 4, 1]),
        node("LayerNormalization", "l last lasts", "n", epsilon=1e-4),
        node("Transpose", "n", "b", perm=[0, 4, 1, 2, 3]),
    ],
}
FACTORS, SUMMANDS = vector(0.5, 1, -1, 2), vector(0.1, 0.2, 0.3, 0.4)
IN_NORMS = {
    "two": vector(2),
    "little": np.float32(1e-4),
    "factors": FACTORS.reshape(4, 1, 1, 1),
    "summands": SUMMANDS.reshape(4, 1, 1, 1),
    "last": FACTORS,
    "lasts": SUMMANDS,
    "uneven": vector(0.1, 0.4, 0.25, 0.25).reshape(1, 4, 1, 1, 1),
}


def with_norm(nodes: list[NodeProto], folder: Path) -> Network:
    return written_down(model(ended(*nodes), ARRAYS | IN_NORMS), folder).network


@pytest.mark.parametrize("name", NORMS)
def test_a_layer_norm_of_several_operators_is_one_pass(name: str, tmp_path: Path) -> None:
    network = with_norm(NORMS[name], tmp_path)
    lowered = lower(network, Layout((8, 8, 8), 1, "fp16"), H200)
    [step] = [step for step in lowered.steps if isinstance(step, Pointwise)]
    assert step.norm is not None
    assert (step.norm.channels, step.source.channels) == (4, 8)
    assert step.norm.epsilon == pytest.approx(1e-4, rel=1e-6)
    assert step.table is not None  # the convolution's bias
    scale, shift = (lowered.constants[key] for key in (step.norm.scale, step.norm.shift))
    np.testing.assert_array_equal(scale, [*FACTORS, 0, 0, 0, 0])
    np.testing.assert_array_equal(shift, [*SUMMANDS, 0, 0, 0, 0])


SIMILAR: dict[str, list[NodeProto]] = {
    "by the root mean square": [
        node("Mul", "a a", "square"),
        VARIANCE,
        *DEVIATION,
        node("Div", "a deviation", "b"),
    ],
    "by the sum of squares": [
        *CENTRED,
        SQUARES,
        node("ReduceSum", "square channels", "variance"),
        *DEVIATION,
        node("Div", "less deviation", "b"),
    ],
    "of unequal weights": [
        node("Mul", "a uneven", "weighed"),
        node("ReduceSum", "weighed channels", "mean"),
        node("Sub", "a mean", "less"),
        SQUARES,
        VARIANCE,
        *DEVIATION,
        node("Div", "less deviation", "b"),
    ],
    "with a large mean left": [
        *CENTRED,
        SQUARES,
        VARIANCE,
        *DEVIATION,
        node("Div", "a deviation", "b"),
    ],
}


@pytest.mark.parametrize("name", SIMILAR)
def test_a_similar_norm_is_not_taken_for_one(name: str, tmp_path: Path) -> None:
    proto = model(ended(*SIMILAR[name]), ARRAYS | IN_NORMS | {"channels": np.array([1])})
    assert compound_layers(written_down(proto, tmp_path).network) == ({}, frozenset())


def test_norms_of_an_odd_graph_are_passes() -> None:
    network = random_network(ODD_GRAPHS["norms of voxels over channels"], 0)
    for precision in PRECISIONS:
        steps = lower(network, Layout(ODD_PATCH, 1, precision), H200).steps
        norms = [step for step in steps if isinstance(step, Pointwise) and step.norm]
        assert [step.norm and step.norm.channels for step in norms] == [5, 20, 20, 5, 8, 3]
        assert not any(step.sampling for step in norms)
        assert "inverse_root" not in str(steps)


def test_a_network_is_searched_once_for_patches_and_blocks_of_any_extents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = random_network(ODD_GRAPHS["norms of voxels over channels"], 0)
    searched, counts = list[str](), list[int]()

    def noted(*arguments: Any) -> Any:
        searched.append(arguments[0])
        return layer_values(*arguments)

    monkeypatch.setattr(compound_layers_module, "layer_values", noted)
    for edge, in_blocks in ((8, False), (16, False), (16, True)):
        layout = Layout((edge, edge, edge), 1, "fp16", in_blocks=in_blocks)
        steps = lower(network, layout, H200).steps
        norms = [step.norm for step in steps if isinstance(step, Pointwise) and step.norm]
        assert [norm.channels for norm in norms] == [5, 20, 20, 5, 8, 3]
        counts.append(len(searched))
    assert counts[0]
    assert counts == counts[:1] * 3
    kept = ref(network)
    del network
    assert kept() is None


def test_a_norm_of_more_channels_than_a_warp_holds_stays_as_it_is() -> None:
    for channels, count in ((1024, 1), (1025, 0)):
        centred = Conv3d(channels, channels, (1, 1, 1), f"=centred of {channels}")
        mean = Conv3d(channels, 1, (1, 1, 1), f"={1 / channels!r} of 1x{channels}")
        graph = chain(
            1,
            ("a", Conv3d(1, channels, (1, 1, 1), "a.weight")),
            ("less", centred),
            ("square", Multiply(), ("less", "less")),
            ("mean", mean),
            ("more", ChannelAffine(1, "=1.0 of 1", "=0.001 of 1")),
            ("inverse", Inverse(0.9e-3, root=True)),
            ("norm", Multiply(), ("inverse", "less")),
            ("leave", Conv3d(channels, 1, (1, 1, 1), "leave.weight")),
        )
        assert len(compound_layers(random_network(graph, 0))[0]) == count


def test_a_sum_and_its_activation_are_one_pass() -> None:
    graph = chain(
        1,
        ("a", Conv3d(1, 8, (1, 1, 1), "a.weight", "a.bias")),
        ("b", Conv3d(8, 8, (1, 1, 1), "b.weight", "b.bias")),
        ("sum", Multiply(), ("a", "b")),
        ("narrow", ChannelAffine(8, "=0.7071067811865476 of 8", "=0.0 of 8")),
        ("bell", Erf()),
        ("share", ChannelAffine(8, "=0.5 of 8", "=0.5 of 8")),
        ("gelu", Multiply(), ("sum", "share")),
        ("leave", Conv3d(8, 1, (1, 1, 1), "leave.weight")),
    )
    steps = lower(random_network(graph, 0), Layout((8, 8, 8), 1, "fp16"), H200).steps
    last = [step for step in steps if isinstance(step, Pointwise)][-1]
    assert (last.combination, last.after) == ("multiply", GELU)
