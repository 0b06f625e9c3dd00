"""Activations of several layers are recognised, however a file states them, and only those."""

from collections import Counter
from math import pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto
from support.described_gpus import H200
from support.gpu_networks import ODD_GRAPHS, ODD_PATCH, chain, random_network
from support.onnx_files import model, node
from support.onnx_judge import ARRAYS, ended, vector, written_down

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.compound_layers import compound_activations
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Activation, Pointwise
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import ChannelAffine, Conv3d, Erf, Multiply, Sigmoid

GELU, MISH, HARD_SWISH = (Activation(curve=curve) for curve in ("gelu", "mish", "hard_swish"))
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
    [found] = compound_activations(network)[0].values()
    assert (found.source, found.activation.curve) == ("0.conv", curve)
    assert found.activation.slope == pytest.approx(slope, rel=1e-6)
    assert (found.activation.cube > 0) == ("tanh" in name)
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
    found, unneeded = compound_activations(imported(nodes, tmp_path))
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
    found, unneeded = compound_activations(random_network(graph, 0))
    assert [*found] == ["swish"]
    assert not unneeded


def test_layers_of_an_odd_graph_become_all_curves() -> None:
    network = random_network(ODD_GRAPHS["activations of several layers"], 0)
    found, unneeded = compound_activations(network)
    curves = Counter(one.activation.curve for one in found.values())
    assert curves == {"gelu": 1, "swish": 2, "mish": 1, "hard_swish": 1}
    kept = {node.name for node in network.graph.nodes} - unneeded
    assert "sigmoid" in kept  # the concatenation reads it
    assert not kept & {"bell", "narrow", "share", "soft", "bent", "rise", "kept", "square"}
    steps = lower(network, Layout(ODD_PATCH, 1, "fp16"), H200).steps
    assert "erf" not in str(steps)


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
