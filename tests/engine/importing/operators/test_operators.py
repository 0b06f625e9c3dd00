"""Each operator of ONNX computes what ONNX Runtime does with it, or is refused in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.lazy_modules import torch
from support.onnx_files import conv_arrays, model, node, written
from support.onnx_judge import ARRAYS, FLOAT, WIDE, ended, kinds, vector, written_down

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.onnx_file import read_onnx
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.layers import LeakyRelu, kind_of

FIGURES = {
    "p": vector(1.5, -2.5, 0.5, 3.0),
    "q": vector(2, -1, 1, -3),
    "up": vector(1, 2, 3, 4),
    "i": np.array([-7, 7, 7, -7]),
    "j": np.array([2, 2, -2, -2]),
    "yes": np.array([True, False, True, False]),
    "also": np.array([True, True, False, False]),
    "grid": np.arange(1, 9, dtype=np.float32).reshape(2, 4),
    "line": np.arange(1, 5, dtype=np.float32).reshape(1, 4),
    "square4": np.arange(16, dtype=np.float32).reshape(4, 4),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "four": np.array([4]),
    "ends": np.array([-9]),
    "back": np.array([-1]),
    "start": np.array(1),
    "stop": np.array(9),
    "step": np.array(2),
    "order": np.array([2, 0, 3, 1]),
    "form": np.array([1, 4, 1, 1, 1]),
}
FOLDED: dict[str, list[NodeProto]] = {
    **{kind: [node(kind, "p q", "o")] for kind in ("Add", "Sub", "Mul", "Div", "Min", "Max")},
    **{kind: [node(kind, "p", "o")] for kind in ("Neg", "Abs", "Floor", "Ceil", "Reciprocal")},
    **{kind: [node(kind, "yes also", "o")] for kind in ("And", "Or")},
    **{kind: [node(kind, "p q", "o")] for kind in ("Less", "Greater")},
    **{
        kind: [node(kind, "grid", "o", axes=[0], keepdims=0)]
        for kind in ("ReduceMean", "ReduceProd", "ReduceMin", "ReduceMax", "ReduceL2")
    },
    "ReduceSum": [node("ReduceSum", "grid zero", "o")],
    "ReduceSum of none": [node("ReduceSum", "p", "o", noop_with_empty_axes=1)],
    "ReduceSum of all": [node("ReduceSum", "grid", "s"), node("Tile", "s step4", "o")],
    "Div of integers": [node("Div", "i j", "o")],
    "MatMul": [node("MatMul", "line square4", "o")],
    "MatMul of vectors": [node("MatMul", "p q", "s"), node("Mul", "s p", "o")],
    "MatMul of a matrix and a vector": [node("MatMul", "square4 p", "o")],
    "Mod of integers": [node("Mod", "i j", "o")],
    "Mod as in C": [node("Mod", "p q", "o", fmod=1)],
    "Mod of integers as in C": [node("Mod", "i j", "o", fmod=1)],
    "Pow": [node("Pow", "up p", "o")],
    "Sqrt": [node("Sqrt", "up", "o")],
    "Equal": [node("Equal", "i j", "e"), node("Not", "e", "o")],
    "Where": [node("Where", "yes p q", "o")],
    "Cast": [node("Cast", "p", "o", to=7)],
    "Identity": [node("Identity", "p", "o")],
    "Dropout": [node("Dropout", "p", "o")],
    "Constant, numbers": [node("Constant", "", "o", value_floats=[1.0, 2.0, 3.0, 5.0])],
    "Constant, integers": [node("Constant", "", "o", value_ints=[1, 2, 3, 5])],
    "Constant, a number": [node("Constant", "", "k", value_float=2.5), node("Mul", "k p", "o")],
    "Constant, an integer": [node("Constant", "", "k", value_int=3), node("Mul", "k i", "o")],
    "ConstantOfShape": [node("ConstantOfShape", "four", "k"), node("Add", "k p", "o")],
    "Expand": [node("Expand", "start four", "o")],
    "Tile": [node("Tile", "pair two", "o")],
    "Range": [node("Range", "start stop step", "o")],
    "Transpose": [node("Transpose", "line", "o")],
    "Squeeze": [node("Squeeze", "line zero", "o")],
    "Unsqueeze": [node("Unsqueeze", "p one", "o")],
    "Concat": [node("Concat", "pair pair", "o", axis=0)],
    "Gather": [node("Gather", "p order", "o")],
    "Slice": [node("Slice", "grid one two zero", "o")],
    "Slice, backwards": [node("Slice", "p back ends zero back", "o")],
    "Shape": [node("Shape", "form", "s"), node("Expand", "p s4", "o")],
    "Shape, from the second": [node("Shape", "grid", "s", start=1), node("Mul", "s i", "o")],
    "Shape, to the second": [node("Shape", "grid", "s", end=-1), node("Mul", "s i", "o")],
}
MORE = {
    "pair": vector(1.5, -2),
    "step4": np.array([1, 4]),
    "s4": np.array([4]),
}


@pytest.mark.parametrize("name", FOLDED)
def test_numbers_that_are_known_beforehand_are_computed(name: str, tmp_path: Path) -> None:
    nodes = [
        *FOLDED[name],
        node("Cast", "o", "floats", to=1),
        node("Reshape", "floats form", "factors"),
        node("Mul", "a factors", "b"),
    ]
    proto = model(ended(*nodes), ARRAYS | FIGURES | MORE)
    assert kinds(proto, tmp_path)[0] == "conv"


def test_ends_of_a_slice_are_attributes_in_old_files(tmp_path: Path) -> None:
    nodes = [
        node("Slice", "grid", "o", starts=[1], ends=[2], axes=[0]),
        node("Reshape", "o form", "factors"),
        node("Mul", "a factors", "b"),
    ]
    assert kinds(model(ended(*nodes), ARRAYS | FIGURES, opset=9), tmp_path)[0] == "conv"


ACTIVATIONS: dict[str, tuple[NodeProto, int]] = {
    "Elu": (node("Elu", "a", "b", alpha=0.3), 17),
    "Erf": (node("Erf", "a", "b"), 17),
    "Gelu": (node("Gelu", "a", "b"), 20),
    "Gelu by tanh": (node("Gelu", "a", "b", approximate="tanh"), 20),
    "HardSigmoid": (node("HardSigmoid", "a", "b"), 17),
    "HardSigmoid of another slope": (node("HardSigmoid", "a", "b", alpha=0.4, beta=0.1), 17),
    "HardSwish": (node("HardSwish", "a", "b"), 17),
    "Mish": (node("Mish", "a", "b"), 18),
    "Swish": (node("Swish", "a", "b", alpha=1.5), 24),
    "Selu": (node("Selu", "a", "b"), 17),
    "Selu of another alpha": (node("Selu", "a", "b", alpha=1.2, gamma=0.8), 17),
    "Celu": (node("Celu", "a", "b", alpha=0.7), 17),
    "Abs": (node("Abs", "a", "b"), 17),
    "Exp": (node("Exp", "a", "b"), 17),
    "Softmax over channels": (node("Softmax", "a", "b", axis=1), 17),
    "LogSoftmax over channels": (node("LogSoftmax", "a", "b", axis=1), 17),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_computes_what_onnx_runtime_does(name: str, tmp_path: Path) -> None:
    operator, opset = ACTIVATIONS[name]
    assert len(kinds(model(ended(operator), ARRAYS, opset=opset), tmp_path)) > 2


def without(operator: NodeProto, *inputs: str) -> NodeProto:
    """An operator with these inputs, of which empty ones are left out."""
    operator.input[:] = inputs
    return operator


FORMS: dict[str, list[NodeProto]] = {
    "a Slice without axes": [without(node("Slice", "a", "b"), "a", "none1", "most2", "", "ones2")],
    "a Slice without steps": [node("Slice", "a none1 most2", "b")],
    "a constant Slice without axes": [
        without(node("Slice", "grid", "s"), "grid", "none1", "rows2", "", "row2"),
        node("Reshape", "s form", "factors"),
        node("Mul", "a factors", "b"),
    ],
    "a constant rounded to fp16": [
        node("Cast", "many", "h", to=10),
        node("Cast", "h", "s", to=1),
        node("Mul", "a s", "b"),
    ],
    "a constant rounded to bf16": [
        node("Cast", "many", "h", to=16),
        node("Cast", "h", "s", to=1),
        node("Mul", "a s", "b"),
    ],
    "lengths of numbers by themselves": [
        without(node("ReduceL2", "many", "s", noop_with_empty_axes=1), "many"),
        node("Mul", "a s", "b"),
    ],
    "squares of numbers by themselves": [
        without(node("ReduceSumSquare", "a", "b", noop_with_empty_axes=1), "a"),
    ],
    "lengths of channels": [node("ReduceL2", "a axis", "s"), node("Mul", "a s", "b")],
    "lengths by themselves": [
        node("ReduceL2", "a none0", "b", noop_with_empty_axes=1),
    ],
    "vectors of length 1": [
        node("ReduceL2", "a axis", "s"),
        without(node("Clip", "s", "c"), "s", "tiny"),
        node("Shape", "a", "all"),
        node("Expand", "c all", "e"),
        node("Div", "a e", "b"),
    ],
    "vectors of sum 1": [
        node("ReduceL1", "a axis", "s"),
        node("Max", "s tiny", "c"),
        node("Div", "a c", "b"),
    ],
    "squares of channels": [node("ReduceSumSquare", "a axis", "s"), node("Mul", "a s", "b")],
    "a root in a sum": [
        node("ReduceSumSquare", "a axis", "s"),
        node("Add", "s little", "t"),
        node("Sqrt", "t", "r"),
        node("Relu", "r", "relu"),
        node("Add", "a relu", "b"),
    ],
    "a root with a number, as divisor": [
        node("ReduceL2", "a axis", "s"),
        node("Add", "s little", "t"),
        node("Div", "a t", "b"),
    ],
    "ones like the tensor": [
        node("Shape", "a", "s"),
        node("ConstantOfShape", "s", "ones", value=numpy_helper.from_array(vector(1))),
        node("Add", "a ones", "t"),
        node("ConstantOfShape", "s", "zeros"),
        node("Max", "t zeros", "b"),
    ],
    "the larger of a number per channel": [node("Max", "a each", "b")],
    "the smaller of a number per channel": [node("Min", "each a", "b")],
    "the largest of wide windows": [
        node("MaxPool", "a", "t", kernel_shape=[3] * 3, pads=[2] * 6),
        node("Slice", "t one3 back3 axes3", "b"),
    ],
    "means of wide windows": [
        node("AveragePool", "a", "t", kernel_shape=[3] * 3, pads=[2] * 6),
        node("Slice", "t one3 back3 axes3", "b"),
    ],
    "channels times a matrix": [
        node("Transpose", "a", "l", perm=[0, 2, 3, 4, 1]),
        node("MatMul", "l matrix", "m"),
        node("Add", "m last", "n"),
        node("Transpose", "n", "b", perm=[0, 4, 1, 2, 3]),
    ],
    "a LayerNorm of the least epsilon": [
        node("Transpose", "a", "l", perm=[0, 2, 3, 4, 1]),
        node("LayerNormalization", "l last", "n", epsilon=1e-9),
        node("Transpose", "n", "b", perm=[0, 4, 1, 2, 3]),
    ],
    "a sum of one": [node("Sum", "a", "b")],
}
IN_FORMS = {
    "none0": np.array([], np.int64),
    "none1": np.array([0, 0]),
    "most2": np.array([1, 4]),
    "rows2": np.array([1, 4]),
    "ones2": np.array([1, 1]),
    "row2": np.array([1, 1]),
    "axis": np.array([1]),
    "many": vector(0.1, -1.7, 7000.1, 1 / 3).reshape(1, 4, 1, 1, 1) / 3,
    "tiny": np.float32(1e-12),
    "little": np.float32(1e-4),
    "each": vector(0.1, -0.2, 0.3, 0).reshape(4, 1, 1, 1),
    "one3": np.array([1, 1, 1]),
    "back3": np.array([-1, -1, -1]),
    "axes3": np.array([2, 3, 4]),
    "matrix": np.random.default_rng(5).normal(size=(4, 4)).astype(FLOAT),
    "last": vector(0.5, 1, -1, 2),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_computes_what_onnx_runtime_does(name: str, tmp_path: Path) -> None:
    proto = model(ended(*FORMS[name]), ARRAYS | FIGURES | IN_FORMS, opset=18)
    assert kinds(proto, tmp_path)


@pytest.mark.parametrize(
    ("positions", "rounding"),
    [
        ("half_pixel", "ceil"),
        ("half_pixel", "floor"),
        ("pytorch_half_pixel", "ceil"),
        ("asymmetric", "round_prefer_ceil"),
        ("asymmetric", "ceil"),
    ],
)
def test_nearest_sampling_past_the_border(positions: str, rounding: str, tmp_path: Path) -> None:
    pool = node("MaxPool", "a", "p", kernel_shape=[2] * 3, strides=[2] * 3)
    sample = node("Resize", "p", "b", nearest_mode=rounding, **{POSITIONS: positions})
    proto = model(
        ended(pool, without(sample, "p", "", "scales")),
        ARRAYS | {"scales": vector(1, 1, 2, 2, 2)},
    )
    assert kinds(proto, tmp_path)[:2] == ["conv", "pool"]


def test_a_file_in_half_precision_is_computed_in_single(tmp_path: Path) -> None:
    proto = model(ended(node("Cast", "a", "b", to=10)), ARRAYS)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    file = read_onnx(written(proto, tmp_path / "g.onnx"))
    assert file.is_half
    assert len(convert_graph(file, None).network.graph.nodes) == 2


def under_autocast(kind: int) -> ModelProto:
    """Two convolutions in half precision, with a norm between them in single."""
    arrays = conv_arrays() | conv_arrays(1, 4, name="v")
    proto = model(
        [
            node("Cast", "x", "h", to=kind),
            node("Conv", "h w w.bias", "a", pads=[1] * 6),
            node("Cast", "a", "b", to=1),
            node("InstanceNormalization", "b scale shift", "c"),
            node("Cast", "c", "d", to=kind),
            node("Conv", "d v v.bias", "e", pads=[1] * 6),
            node("Cast", "e", "y", to=1),
        ],
        {"scale": vector(1, 2, 3, 4), "shift": vector(4, 3, 2, 1)},
    )
    for name, array in arrays.items():
        stored = helper.make_tensor(name, kind, array.shape, array.reshape(-1))
        proto.graph.initializer.append(stored)
    return proto


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_network_under_autocast_is_computed_in_single(kind: int, tmp_path: Path) -> None:
    proto = under_autocast(kind)
    file = read_onnx(written(proto, tmp_path / "g.onnx"))
    network = convert_graph(file, None).network
    patch = np.random.default_rng(0).normal(size=(1, 1, 8, 6, 10)).astype(FLOAT)
    [expected] = ReferenceEvaluator(proto).run(None, {"x": patch})
    with open_cpu_generator(network, threads=1) as generator:
        error = relative_error(generator(patch), expected)
    assert file.is_half
    assert error < (1e-3 if kind == TensorProto.FLOAT16 else 8e-3)
    rounded = numpy_helper.to_array(proto.graph.initializer[2]).astype(FLOAT)
    assert any(np.array_equal(one, rounded) for one in network.weights.values())


def test_a_branch_of_a_scripted_function_names_the_way_out(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [node("Identity", "a", "c")],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)],
    )
    operator = node("If", "yes", "b", then_branch=branch, else_branch=branch)
    proto = model(ended(operator), ARRAYS | {"yes": np.array(True)})
    with pytest.raises(CheckpointError, match=r"If .* import the \.pt2 file"):
        written_down(proto, tmp_path)


def test_further_outputs_of_an_old_batch_norm_are_those_of_training(tmp_path: Path) -> None:
    norm = node("BatchNormalization", "a p p p p", "b mean variance")
    with pytest.raises(CheckpointError, match="normalises by the batch"):
        written_down(model(ended(norm), ARRAYS | FIGURES, opset=13), tmp_path)


def test_a_prelu_of_one_slope_has_the_slope_that_an_export_has(tmp_path: Path) -> None:
    proto = model(ended(node("PRelu", "a slope", "b")), ARRAYS | {"slope": vector(0.1)})
    layers = [one.layer for one in written_down(proto, tmp_path).network.graph.nodes]
    assert layers[1] == LeakyRelu(0.1)


CHANNELWISE = {
    "half": vector(0.5),
    "minus": vector(-0.5),
    "c": np.array([0.5, -1, 2, 3], np.float32).reshape(1, 4, 1, 1, 1),
}
CHANGED = ["conv", "channel_affine", "conv"]
FILLED, PICKED = ["channel_affine", "concat"], ["channels", "channels", "concat"]
LAYERS: dict[str, tuple[list[NodeProto], list[str]]] = {
    "numbers less a tensor": ([node("Sub", "c a", "b")], CHANGED),
    "a tensor less numbers": ([node("Sub", "a c", "b")], CHANGED),
    "a tensor by numbers": ([node("Div", "a c", "b")], CHANGED),
    "numbers and a tensor": ([node("Add", "c a", "b")], CHANGED),
    "numbers times a tensor": ([node("Mul", "c a", "b")], CHANGED),
    "its negative": ([node("Neg", "a", "b")], CHANGED),
    "a sum of three": ([node("Sum", "a a a", "b")], ["conv", "add", "add", "conv"]),
    "its square": ([node("Pow", "a square", "b")], ["conv", "multiply", "conv"]),
    "no less than zero": ([node("Max", "a nought", "b")], ["conv", "relu", "conv"]),
    "the larger of two": (
        [node("Neg", "a", "m"), node("Max", "a m nought", "b")],
        ["conv", "channel_affine", "subtract", "relu", "add", "relu", "conv"],
    ),
    "the smaller of two": (
        [node("Neg", "a", "m"), node("Min", "a m", "b")],
        ["conv", "channel_affine", "subtract", "relu", "subtract", "conv"],
    ),
    "constant channels before": (
        [
            node("Shape", "a", "s"),
            node("ConstantOfShape", "s", "k"),
            node("Concat", "k a", "p", axis=1),
            node("Slice", "p one five one", "b"),
        ],
        ["conv", "channel_affine", "concat", "channels", "conv"],
    ),
    "constant channels after": (
        [
            node("Shape", "a", "s"),
            node("Expand", "number s", "k"),
            node("Concat", "a k", "p", axis=1),
            node("Slice", "p one five one", "b"),
        ],
        ["conv", "channel_affine", "concat", "channels", "conv"],
    ),
    "between zero and all": ([node("Clip", "a nought", "b")], ["conv", "relu", "conv"]),
    "no more than two": ([node("Min", "a square", "b")], ["conv", "clip", "conv"]),
    "what does nothing": (
        [node("Dropout", "a", "d"), node("Cast", "d", "e", to=1), node("Identity", "e", "b")],
        ["conv", "conv"],
    ),
    "halves of the channels": (
        [node("Split", "a", "l r", axis=1), node("Concat", "r l", "b", axis=1)],
        ["conv", "channels", "channels", "concat", "conv"],
    ),
    "parts of the channels": (
        [node("Split", "a parts", "l r", axis=-4), node("Concat", "r l", "b", axis=1)],
        ["conv", "channels", "channels", "concat", "conv"],
    ),
    "one channel as several": (
        [node("Conv", "a one1", "o"), node("Expand", "o four", "b")],
        ["conv", "conv", "conv", "conv"],
    ),
    "one channel as often": (
        [node("Conv", "a one1", "o"), node("Tile", "o times", "b")],
        ["conv", "conv", "conv", "conv"],
    ),
    "a gate that was repeated": (
        [node("Conv", "a one1", "o"), node("Expand", "o four", "g"), node("Mul", "a g", "b")],
        ["conv", "conv", "multiply", "conv"],
    ),
    "a gate that was repeated, first": (
        [node("Conv", "a one1", "o"), node("Expand", "o four", "g"), node("Mul", "g a", "b")],
        ["conv", "conv", "multiply", "conv"],
    ),
    "a sum of channels": (
        [node("ReduceSum", "a one", "o"), node("Mul", "a o", "b")],
        ["conv", "conv", "multiply", "conv"],
    ),
    "a mean of channels": (
        [node("ReduceMean", "a", "o", axes=[1]), node("Mul", "o a", "b")],
        ["conv", "conv", "multiply", "conv"],
    ),
    "a mean of channels without their axis": (
        [
            node("ReduceMean", "a", "m", axes=[1], keepdims=0),
            node("Unsqueeze", "m one", "o"),
            node("Mul", "a o", "b"),
        ],
        ["conv", "conv", "multiply", "conv"],
    ),
    "the largest channel": (
        [node("ReduceMax", "a", "o", axes=[1]), node("Mul", "a o", "b")],
        ["conv", *2 * ["channels", "channels", "subtract", "relu", "add"], "multiply", "conv"],
    ),
    "the smallest channel": (
        [node("ReduceMin", "a", "o", axes=[1]), node("Mul", "a o", "b")],
        ["conv", *2 * ["channels", "channels", "subtract", "relu", "subtract"], "multiply", "conv"],
    ),
    "a quotient": (
        [node("Mul", "a a", "s"), node("Add", "s half", "more"), node("Div", "a more", "b")],
        ["conv", "multiply", "channel_affine", "inverse", "multiply", "conv"],
    ),
    "a quotient by what an activation bounds": (
        [node("Erf", "a", "e"), node("Add", "e square", "more"), node("Div", "a more", "b")],
        ["conv", "erf", "channel_affine", "inverse", "multiply", "conv"],
    ),
    "a number by a tensor": (
        [node("Exp", "a", "e"), node("Add", "e half", "more"), node("Reciprocal", "more", "b")],
        ["conv", "exp", "channel_affine", "inverse", "conv"],
    ),
    "a number by a root": (
        [node("Softplus", "a", "e"), node("Add", "e half", "more"), node("Pow", "more minus", "b")],
        ["conv", "softplus", "channel_affine", "inverse", "conv"],
    ),
    "a product of gates": (
        [
            node("Conv", "a one1", "o"),
            node("Expand", "o four", "g"),
            node("Mul", "g g", "b"),
        ],
        ["conv", "conv", "conv", "multiply", "conv"],
    ),
    "a repeated gate and another": (
        [
            node("Conv", "a one1", "o"),
            node("Expand", "o four", "g"),
            node("Mul", "o g", "b"),
        ],
        ["conv", "conv", "conv", "multiply", "conv"],
    ),
    "one channel and several": (
        [node("Conv", "a one1", "o"), node("Sub", "o a", "b")],
        ["conv", "conv", "conv", "subtract", "conv"],
    ),
    "channels of zeros": (
        [node("Pad", "a wider", "p"), node("Slice", "p one five one", "b")],
        ["conv", *["channels", "channel_affine", "concat"] * 2, "channels", "conv"],
    ),
    "more channels of a number than there are": (
        [node("Pad", "a widest number", "p"), node("Slice", "p one five one", "b")],
        ["conv", FILLED[0], *FILLED, "channels", *FILLED, "concat", "channels", "conv"],
    ),
    "single channels that are stacked": (
        [
            node("Gather", "a last", "l", axis=1),
            node("Gather", "a begin", "f", axis=1),
            node("Mul", "l square", "m"),
            node("Unsqueeze", "m one", "u"),
            node("Unsqueeze", "f one", "v1"),
            node("Squeeze", "v1 one", "s"),
            node("Unsqueeze", "s one", "v2"),
            node("Concat", "u v2 u v2", "b", axis=1),
        ],
        ["conv", "channels", "channels", "channel_affine", "concat", "concat", "concat", "conv"],
    ),
    "channels in another order": (
        [node("Gather", "a shuffled", "b", axis=1)],
        ["conv", *["channels"] * 4, *["concat"] * 3, "conv"],
    ),
    "a type like another's": ([node("CastLike", "a square", "b")], ["conv", "conv"]),
    "its fourth power": (
        [node("Pow", "a fourth", "b")],
        ["conv", "multiply", "multiply", "multiply", "conv"],
    ),
    "two channels that are weighed": (
        [
            node("Gather", "a pair", "p", axis=1),
            node("Softmax", "p", "q", axis=1),
            node("Concat", "q p", "b", axis=1),
        ],
        ["conv", *PICKED, *PICKED, "subtract", "sigmoid", "concat", "conv"],
    ),
    "what is grown and cut": (
        [node("Pad", "a ends", "p"), node("Pad", "p fewer", "b")],
        ["conv", "pad", "crop", "conv"],
    ),
}
OTHERS = {
    "square": np.float32(2),
    "nought": np.float32(0),
    "parts": np.array([1, 3]),
    "one1": np.array([0.5, -1, 2, 1], np.float32).reshape(1, 4, 1, 1, 1),
    "four": np.array([1, 4, 1, 1, 1]),
    "times": np.array([1, 4, 1, 1, 1]),
    "ends": np.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 1]),
    "fewer": np.array([0, 0, -1, -1, -1, 0, 0, -1, -1, -1]),
    "wider": np.array([0, 1, 0, 0, 0, 0, 1, 0, 0, 0]),
    "widest": np.array([0, 0, 0, 0, 0, 0, 9, 0, 0, 0]),
    "number": np.float32(0.5),
    "one": np.array([1]),
    "five": np.array([5]),
    "begin": np.array(0),
    "last": np.array(-1),
    "pair": np.array([3, 0]),
    "shuffled": np.array([2, 0, -1, 1]),
    "fourth": np.float32(4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_operator_becomes_a_layer(name: str, tmp_path: Path) -> None:
    nodes, layers = LAYERS[name]
    assert kinds(model(ended(*nodes), ARRAYS | CHANNELWISE | OTHERS), tmp_path) == layers


POSITIONS = "coordinate_transformation_mode"
FLAT = {
    "flat": np.array([-1, 4, 6, 10]),
    "thick": np.array([1, 8, 4, 6, 10]),
    "w2": np.random.default_rng(2).normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32),
    "up2": np.random.default_rng(3).normal(0, 0.3, (4, 4, 2, 2)).astype(np.float32),
    "scales2": vector(1, 1, 2, 2),
    "pads2": np.array([0, 0, 1, 1, 0, 0, 1, 0]),
    "slopes2": vector(0.1, 0.2, -0.3, 0.4).reshape(4, 1, 1),
}


def in_slices(*nodes: NodeProto) -> ModelProto:
    """Nodes from "f" to "g", whose batch are the slices of "a"."""
    flat = [node("Transpose", "a", "t", perm=[0, 2, 1, 3, 4]), node("Reshape", "t flat", "f")]
    thick = [node("Reshape", "g thick", "u"), node("Transpose", "u", "b", perm=[0, 2, 1, 3, 4])]
    return model(ended(*flat, *nodes, *thick), ARRAYS | FLAT | NUMBERS, (1, 1, 8, 6, 10), 18)


def test_layers_of_slices_are_one_slice_deep(tmp_path: Path) -> None:
    resize = node("Resize", "d none scales2", "e", mode="linear")
    resize.input[1] = ""
    layers = kinds(
        in_slices(
            node("Conv", "f w2 p", "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
            node("PRelu", "c slopes2", "r"),
            node("MaxPool", "r", "d", kernel_shape=[2, 2], strides=[2, 2]),
            resize,
            node("AveragePool", "e", "h", kernel_shape=[2, 2], strides=[2, 2]),
            node("ConvTranspose", "h up2", "i", strides=[2, 2], kernel_shape=[2, 2]),
            node("Pad", "i pads2", "j", mode="edge"),
            node("Slice", "j one2 back2 axes2", "k"),
            node("Add", "k f", "g"),
        ),
        tmp_path,
    )
    assert layers == [
        *("conv", "conv", "prelu", "pool", "upsample", "pool", "conv_transpose"),
        *("pad", "crop", "add", "conv"),
    ]


def test_a_norm_of_single_slices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="normalises each slice by itself"):
        written_down(in_slices(node("InstanceNormalization", "f p p", "g")), tmp_path)


@pytest.mark.parametrize(
    ("kind", "opset", "attributes"),
    [
        ("Upsample", 9, {}),
        ("Upsample", 9, {"mode": "nearest"}),
        ("Resize", 10, {"mode": "nearest"}),
        ("Resize", 17, {POSITIONS: "tf_half_pixel_for_nn", "nearest_mode": "floor"}),
        ("Resize", 17, {POSITIONS: "half_pixel", "nearest_mode": "round_prefer_ceil"}),
        ("Resize", 18, {POSITIONS: "asymmetric", "nearest_mode": "floor", "axes": [2, 3, 4]}),
    ],
    ids=str,
)
def test_voxels_are_repeated(
    kind: str, opset: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    factors = vector(2, 2, 2) if "axes" in attributes else vector(1, 1, 2, 2, 2)
    pool = node("MaxPool", "a", "p", kernel_shape=[2] * 3, strides=[2] * 3)
    resize = node(kind, "p scales", "b", **attributes)
    if opset > 10:
        resize.input[:] = ["p", "", "scales"]
    proto = model(ended(pool, resize), ARRAYS | {"scales": factors}, opset=opset)
    assert kinds(proto, tmp_path) == ["conv", "pool", "upsample", "conv"]


EXACT = {POSITIONS: "half_pixel", "nearest_mode": "round_prefer_ceil"}
PYTORCH = {POSITIONS: "asymmetric", "nearest_mode": "floor"}
LINEAR = {POSITIONS: "half_pixel", "mode": "linear"}
HOW = pytest.mark.parametrize(
    "attributes", [EXACT, PYTORCH, LINEAR], ids=["nearest-exact", "nearest", "linear"]
)


@HOW
def test_voxels_are_sampled_by_other_than_whole_factors(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    nodes = [
        node("Resize", "a none wide", "r", **attributes),
        node("Resize", "r none narrow", "b", **attributes),
    ]
    for one in nodes:
        one.input[1] = ""
    arrays = {"wide": vector(1, 1, 1.5, 2.5, 0.5), "narrow": vector(1, 1, 2 / 3, 0.4, 2)}
    proto = model(ended(*nodes), ARRAYS | arrays)
    assert written_down(proto, tmp_path).network.graph.patch is None
    assert "upsample" in kinds(proto, tmp_path)


@HOW
def test_voxels_are_sampled_to_a_size(attributes: dict[str, Any], tmp_path: Path) -> None:
    nodes = [
        node("Resize", "a none none wide", "r", **attributes),
        node("Resize", "r none none narrow", "b", **attributes),
    ]
    for one in nodes:
        one.input[1:3] = ["", ""]
    arrays = {"wide": np.array([1, 4, 12, 3, 25]), "narrow": np.array([1, 4, 8, 6, 10])}
    made = kinds(model(ended(*nodes), ARRAYS | arrays, (1, 1, 8, 6, 10)), tmp_path)
    assert {"conv", "conv_transpose", "upsample"} <= set(made) <= {*PADDED}


PADDED = ("conv", "conv_transpose", "upsample", "pad")


def test_a_voxel_more_or_less_is_the_border_repeated_or_cut(tmp_path: Path) -> None:
    """ResidualUNet3D of pytorch-3dunet samples 31 voxels to 32."""
    nodes = [
        node("Resize", "a none none wide", "r", **PYTORCH),
        node("Resize", "r none none narrow", "b", **PYTORCH),
    ]
    for one in nodes:
        one.input[1:3] = ["", ""]
    arrays = {"wide": np.array([1, 4, 9, 7, 11]), "narrow": np.array([1, 4, 8, 6, 10])}
    proto = model(ended(*nodes), ARRAYS | arrays, (1, 1, 8, 6, 10))
    assert kinds(proto, tmp_path) == ["conv", "pad", "crop", "conv"]


PYTORCH_FUNCTIONS: dict[str, tuple[list[NodeProto], Callable[[Any], Any]]] = {
    "softmax": ([node("Softmax", "a", "y", axis=1)], lambda a: a.softmax(1)),
    "log_softmax": ([node("LogSoftmax", "a", "y", axis=1)], lambda a: a.log_softmax(1)),
    "abs": ([node("Abs", "a", "y")], lambda a: a.abs()),
    "gelu by tanh": (
        [
            node("Pow", "a three", "cube"),
            node("Mul", "cube cubed", "bent"),
            node("Add", "a bent", "sum"),
            node("Mul", "sum slope", "line"),
            node("Tanh", "line", "curve"),
            node("Add", "curve one", "twice"),
            node("Mul", "a twice", "whole"),
            node("Mul", "whole half", "y"),
        ],
        lambda a: torch.nn.functional.gelu(a, approximate="tanh"),
    ),
}


@pytest.mark.parametrize("spread", [1, 10])
@pytest.mark.parametrize("name", PYTORCH_FUNCTIONS)
def test_layers_compute_what_pytorch_does(name: str, spread: int, tmp_path: Path) -> None:
    nodes, function = PYTORCH_FUNCTIONS[name]
    numbers = {"three": 3, "cubed": 0.044715, "slope": (2 / np.pi) ** 0.5, "one": 1, "half": 0.5}
    arrays = ARRAYS | {key: np.float32(value) for key, value in numbers.items()}
    arrays["w"] = spread * arrays["w"]
    network = written_down(model([*WIDE, *nodes], arrays), tmp_path).network
    patch = np.random.default_rng(0).normal(size=(1, 1, 8, 6, 10)).astype(np.float32)
    weight, bias = (torch.from_numpy(arrays[key]) for key in ("w", "w.bias"))
    single = torch.nn.functional.conv3d(torch.from_numpy(patch), weight, bias, padding=1)
    double = torch.nn.functional.conv3d(
        torch.from_numpy(patch).double(), weight.double(), bias.double(), padding=1
    )
    exact = function(double).numpy()
    with open_cpu_generator(network, threads=1) as generator:
        made = generator(patch)
    allowed = max(5e-6, 1.5 * float(np.abs(function(single).numpy() - exact).max()))
    assert np.abs(made - exact).max() < allowed


def test_operators_come_in_any_order(tmp_path: Path) -> None:
    proto = model(ended(node("Relu", "a", "c"), node("Tanh", "c", "b")), ARRAYS)
    meant = kinds(proto, tmp_path)
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[::-1])
    read = written_down(proto, tmp_path).network
    assert [kind_of(one.layer) for one in read.graph.nodes] == meant


def resized(sizes: str = "", scales: str = "scales", **attributes: Any) -> NodeProto:
    made = node("Resize", "a", "b", **attributes)
    made.input[:] = ["a", "", scales, sizes]
    return made


def joined(kind: str, *inputs: str, **attributes: Any) -> NodeProto:
    """An operator of which some inputs may be left out."""
    return helper.make_node(kind, inputs, ["b"], "b", **attributes)


POOL = {"kernel_shape": [2] * 3}
REFUSED: dict[str, tuple[NodeProto, str]] = {
    "a padded batch": (node("Pad", "a batch", "b"), "pads the batch or cuts channels"),
    "fewer channels": (node("Pad", "a thinner", "b"), "pads the batch or cuts channels"),
    "mirrored channels": (node("Pad", "a wider", "b", mode="edge"), "in a mode that is not"),
    "padding of some axes": (node("Pad", "a two", "b"), "does not give the factor of each axis"),
    "padding by a mode": (node("Pad", "a ends", "b", mode="wrap"), "has the mode wrap"),
    "every second voxel": (node("Slice", "a zero four two step", "b"), "slices in a way"),
    "no channel": (node("Slice", "a one one one", "b"), "leaves no channel"),
    "a split of depths": (node("Split", "a", "b r", axis=2), "splits an axis other"),
    "parts that do not fit": (node("Split", "a two", "b r", axis=1), "has parts that do not"),
    "joined depths": (node("Concat", "a a", "b", axis=2), "joins an axis other"),
    "an axis named twice": (node("Transpose", "a", "b", perm=[0, 1, 2, 3, 3]), "name each axis"),
    "a dilated window": (node("MaxPool", "a", "b", dilations=[2] * 3, **POOL), "has dilation"),
    "extents rounded up": (
        node("AveragePool", "a", "b", strides=[3] * 3, ceil_mode=1, **POOL),
        "rounds extents up",
    ),
    "windows that are far apart": (
        node("MaxPool", "a", "b", strides=[4] * 3, auto_pad="SAME_UPPER", **POOL),
        "skips voxels between its windows",
    ),
    "voxels that no tap reaches": (
        node("ConvTranspose", "a up", "b", strides=[4] * 3, auto_pad="SAME_UPPER"),
        "has a stride beyond its kernel",
    ),
    "means without uneven padding": (
        node("AveragePool", "a", "b", pads=[0, 0, 0, 1, 1, 1], **POOL),
        "averages without its uneven padding",
    ),
    "windows in the padding": (
        node("MaxPool", "a", "b", pads=[2] * 6, **POOL),
        "has windows that are entirely in the padding",
    ),
    "filtered sampling": (resized(antialias=1, mode="linear"), "filters, which is not"),
    "aligned sampling by halves": (
        resized(scales="halves", mode="linear", **{POSITIONS: "align_corners"}),
        "aligns the corners while sampling by factors of D, H and W that are not integers",
    ),
    "linear sampling without a pattern": (
        resized("uneven", "", mode="linear"),
        "repeats in no pattern of up to 16",
    ),
    "a constant of other extents": (node("Concat", "a p", "b", axis=1), "extents are not those"),
    "sampling without a pattern": (resized("uneven", ""), "repeats in no pattern of up to 16"),
    "endless voxels": (resized("endless", ""), "or more than 65536"),
    "sampled channels": (resized("doubled", ""), "samples the batch or the channels"),
    "cubic sampling": (resized(mode="cubic"), "samples in the mode cubic"),
    "a factor of one that moves voxels": (
        resized(scales="same", nearest_mode="ceil", **{POSITIONS: "tf_half_pixel_for_nn"}),
        "moves voxels without sampling",
    ),
    "unknown positions": (resized(**{POSITIONS: "tf_crop_and_resize"}), "samples in the mode"),
    "unknown rounding": (resized(nearest_mode="odd"), "samples in the mode nearest"),
    "a kept aspect": (
        resized("sizes", "", keep_aspect_ratio_policy="not_larger"),
        "keeps an aspect ratio",
    ),
    "axes that do not exist": (resized(axes=[2, 3, 7]), "refers to axes that do not exist"),
    "a single voxel": (
        resized("single", "", **{POSITIONS: "pytorch_half_pixel"}),
        "samples a single voxel",
    ),
    "a lower end that is infinite": (
        joined("Clip", "a", "infinite"),
        "makes a layer whose low must be from -1e+06 to 1e+06, not inf",
    ),
    "an upper end far below zero": (
        joined("Clip", "a", "", "far_below"),
        "makes a layer whose high must be from -1e+06 to 1e+06, not -3.4e+38",
    ),
    "a border of infinity": (
        node("Pad", "a around infinite", "b"),
        "makes a layer whose value must be from -1e+06 to 1e+06, not inf",
    ),
    "many ends": (node("Clip", "a p", "b"), "has limits that are not single numbers"),
    "the larger of a tensor and lines": (node("Max", "a p", "b"), "with numbers of 1x1x1x1x4"),
    "the larger of a tensor and a map": (node("Max", "a map", "b"), "differ from voxel to voxel"),
    "whole numbers": (node("Cast", "a", "b", to=7), "converts a tensor to integers"),
    "dropout in training": (node("Dropout", "a half yes", "b"), "is in training"),
    "a difference of one": (node("Sub", "a", "b"), "joins fewer than two tensors"),
    "a sum without a part": (joined("Sum", "a", "", "a"), "joins fewer than two tensors"),
    "a power": (node("Pow", "a p", "b"), "takes a power that is not part of a norm"),
    "a power of a half": (node("Pow", "a half", "b"), "root of a tensor that may be negative"),
    "weights of voxels": (node("Softmax", "a", "b", axis=2), "as attention does"),
    "a mean of voxels": (
        node("GlobalMaxPool", "a", "b"),
        "squeeze and excitation does; its receptive window",
    ),
    "a sum of voxels": (node("ReduceSum", "a two", "b"), "than the channels, as attention does"),
    "a mean of the batch": (node("ReduceMean", "a zero", "b"), "export the network in eval mode"),
    "matrices": (
        node("MatMul", "a a", "b"),
        "as attention does; its receptive window is the whole patch",
    ),
    "a sum over products with a constant": (
        node("Einsum", "a square5", "b", equation="ncdhw,vw->ncdhv"),
        "multiplies a tensor by a constant along some axes",
    ),
    "a sum over products": (
        node("Einsum", "a a", "b", equation="ncdhw,ncdhv->ncdhw"),
        "as attention does; its receptive window is the whole patch",
    ),
    "a norm of lines": (node("LayerNormalization", "a p", "b"), "more than the channels"),
    "a quotient of what may be zero": (node("Div", "a a", "b"), "tensor that may be zero"),
    "a norm of maps": (node("ReduceL2", "a", "b", axes=[2, 3, 4]), "as global response norm does"),
    "random numbers": (node("RandomNormalLike", "a", "b"), "draws random numbers"),
    "picked voxels": (node("GatherND", "a ends", "b"), "write it as nearest"),
    "picked planes": (node("Gather", "a one", "b", axis=2), "picks voxels by their indices"),
    "channels that do not exist": (node("Gather", "a four", "b", axis=1), "do not exist"),
    "a stack": (node("Unsqueeze", "a one", "b"), "as deep supervision stacks"),
    "a lost axis": (node("Squeeze", "a one", "b"), "axes other than a single channel"),
    "whole numbers like others": (node("CastLike", "a one", "b"), "converts a tensor to integers"),
    "a root": (node("Sqrt", "a", "b"), "is not part of a norm"),
    "compared voxels": (node("Greater", "a half", "b"), "compares voxels"),
    "chosen voxels": (node("Where", "a a a", "b"), "chooses between voxels"),
    "an operator on numbers": (node("Erf", "half", "b"), "is not supported on constants"),
    "numbers that do not fit": (node("Add", "p p3d", "b"), "does not fit its constant inputs"),
    "a constant of text": (node("Constant", "", "b", value_string="x"), "contains no number"),
    "a Slice whose steps are not axes": (
        joined("Slice", "a", "none1", "four2", "", "steps2"),
        "slices in a way",
    ),
    "a Celu that falls": (node("Celu", "a", "b", alpha=-1.0), "alpha of -1, which must be above 0"),
    "an endless slope": (node("LeakyRelu", "a", "b", alpha=np.inf), "has inf for alpha"),
    "a region of the same size": (
        resized(scales="same", mode="linear", **{POSITIONS: "tf_crop_and_resize"}),
        "at positions tf_crop_and_resize",
    ),
    "a tensor rounded to fp16": (
        node("Cast", "a", "b", to=10),
        "rounds a tensor to half precision",
    ),
    "a tensor rounded to bf16": (
        node("Cast", "a", "b", to=16),
        "rounds a tensor to half precision",
    ),
    "a tensor like one in fp16": (
        node("CastLike", "a h16", "b"),
        "rounds a tensor to half precision",
    ),
    "a tensor in eight bits": (node("Cast", "a", "b", to=17), "to integers or numbers of a few"),
    "rounding by a large number": (node("Add", "a large", "b"), "keeps no fractions"),
    "an operator without its tensor": (joined("Relu", ""), "lacks its input 1"),
    "a Slice without its ends": (joined("Slice", "a", "none1"), "lacks its input 3"),
    "axes that a tensor lacks": (node("ReduceSum", "a seven", "b"), "names the axes [7] of 5"),
    "the epsilon of a LayerNorm": (
        node("LayerNormalization", "a p", "b", axis=1, epsilon=1e-12),
        "more than the channels",
    ),
    "the epsilon of a norm": (
        node("InstanceNormalization", "a p p", "b", epsilon=0.0),
        "has an epsilon of 0, but from 1e-20 to 1 is supported",
    ),
    "numbers of several bits that overflow": (
        node("Cast", "large", "b", to=3),
        "converts numbers to a type that does not hold them",
    ),
    "a matrix times channels": (node("MatMul", "square5 a", "b"), "multiplies other axes than"),
    "division by zero": (node("Div", "a nought", "b"), "divides by zero"),
    "a slope of no number": (node("LeakyRelu", "a", "b", alpha="x"), "has no number for alpha"),
}
NUMBERS = OTHERS | {
    "batch": np.array([1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    "thinner": np.array([0, -1, 0, 0, 0, 0, 0, 0, 0, 0]),
    "uneven": np.array([1, 4, 65, 65, 65]),
    "single": np.array([1, 4, 64, 64, 1]),
    "up": np.ones((4, 4, 2, 2, 2), FLOAT),
    "infinite": np.float32(np.inf),
    "far_below": np.float32(-3.4e38),
    "around": np.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 1]),
    "endless": np.array([1, 4, 1 << 40, 64, 64]),
    "doubled": np.array([1, 8, 64, 64, 64]),
    "voxels": np.array([2, 3, 4]),
    "two": np.array([2]),
    "one2": np.array([1, 1]),
    "back2": np.array([7, 11]),
    "axes2": np.array([2, 3]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "four": np.array([4]),
    "step": np.array([2]),
    "scales": vector(1, 1, 2, 2, 2),
    "halves": vector(1, 1, 1.5, 1.5, 1.5),
    "sizes": np.array([1, 4, 128, 128, 128]),
    "p": vector(1.5, -2.5, 0.5, 3.0),
    "p3": np.float32(3),
    "map": np.linspace(0, 1, 64, dtype=FLOAT),
    "p3d": vector(1, 2, 3),
    "half": np.float32(0.5),
    "yes": np.array(True),
    "none1": np.array([0, 0]),
    "four2": np.array([1, 4]),
    "steps2": np.array([1, 3]),
    "same": vector(1, 1, 1, 1, 1),
    "large": np.float32(12582912),
    "h16": np.float16(1),
    "seven": np.array([7]),
    "square5": np.eye(64, dtype=FLOAT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_operator_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    operator, reason = REFUSED[name]
    proto = model(ended(operator), ARRAYS | NUMBERS, opset=18)
    with pytest.raises(CheckpointError) as refusal:
        written_down(proto, tmp_path)
    reported = str(refusal.value)
    assert f"Operator {operator.op_type} (node '{operator.output[0]}" in reported
    assert reason in reported
