"""Patterns that exporters write for one layer: each becomes that layer and agrees with ONNX
Runtime.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from support.onnx_files import Dims, conv_arrays, model, node, tiny
from support.onnx_judge import ARRAYS, WIDE, ended, kinds, vector, written_down

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.network.layers import kind_of

LAST: Dims = ("n", "d", "h", "w", 1)
FIRST = [0, 4, 1, 2, 3]
BACK = [0, 2, 3, 4, 1]
FLOAT = np.float32
POSITIONS = "coordinate_transformation_mode"

NORM = {"eps": vector(1e-5), "two": vector(2), "one": vector(1), "half": vector(-0.5)}
GAMMA = np.linspace(0.5, 2, 4, dtype=FLOAT)
MOMENTS = [
    node("ReduceMean", "a", "mean", axes=[2, 3, 4]),
    node("Sub", "a mean", "centred"),
    node("Pow", "centred two", "squared"),
    node("ReduceMean", "squared", "variance", axes=[-1, -2, -3]),
    node("Add", "variance eps", "more"),
]
NORMS = {
    "by division": [*MOMENTS, node("Sqrt", "more", "sd"), node("Div", "centred sd", "b")],
    "by an inverse": [
        *MOMENTS,
        node("Sqrt", "more", "sd"),
        node("Div", "one sd", "inverse"),
        node("Mul", "inverse centred", "b"),
    ],
    "by a power": [
        *MOMENTS,
        node("Pow", "more half", "inverse"),
        node("Mul", "centred inverse", "b"),
    ],
}


@pytest.mark.parametrize("name", NORMS)
def test_moments_are_an_instance_norm(name: str, tmp_path: Path) -> None:
    proto = model(ended(*NORMS[name]), ARRAYS | NORM)
    assert kinds(proto, tmp_path) == ["conv", "instance_norm", "conv"]


LAYER_NORMS = {
    "written out": [
        node("ReduceMean", "a", "mean", axes=[1]),
        node("Sub", "a mean", "centred"),
        node("Pow", "centred two", "squared"),
        node("ReduceMean", "squared", "variance", axes=[1]),
        node("Add", "variance eps", "more"),
        node("Sqrt", "more", "sd"),
        node("Div", "centred sd", "b"),
    ],
    "as one operator": [
        node("Transpose", "a", "last", perm=BACK),
        node("LayerNormalization", "last gamma shift", "normal", epsilon=1e-6),
        node("Transpose", "normal", "b", perm=FIRST),
    ],
    "without a shift": [
        node("Transpose", "a", "last", perm=BACK),
        node("LayerNormalization", "last gamma", "normal"),
        node("Transpose", "normal", "b", perm=FIRST),
    ],
}


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_a_norm_of_the_channels_of_each_voxel_is_layers(name: str, tmp_path: Path) -> None:
    proto = model(ended(*LAYER_NORMS[name]), ARRAYS | NORM | {"gamma": GAMMA, "shift": GAMMA - 1})
    made = kinds(proto, tmp_path)
    assert made.count("inverse") == 1
    assert not {"instance_norm", "group_norm"} & set(made)


def test_tensorflows_norm_is_an_instance_norm_with_scale_and_shift(tmp_path: Path) -> None:
    shape = (1, 4, 1, 1, 1)
    nodes = [
        *MOMENTS,
        node("Sqrt", "more", "sd"),
        node("Reciprocal", "sd", "inverse"),
        node("Mul", "inverse gamma", "scaled"),
        node("Mul", "a scaled", "left"),
        node("Mul", "mean scaled", "right"),
        node("Sub", "beta right", "offset"),
        node("Add", "left offset", "b"),
    ]
    numbers = {"gamma": GAMMA.reshape(shape), "beta": GAMMA.reshape(shape) - 1}
    proto = model(ended(*nodes), ARRAYS | NORM | numbers)
    network = written_down(proto, tmp_path).network
    assert kinds(proto, tmp_path) == ["conv", "instance_norm", "conv"]
    assert np.array_equal(network.weights["1.instance_norm.scale"], GAMMA)
    assert np.array_equal(network.weights["1.instance_norm.shift"], GAMMA - 1)


def test_moments_of_groups_are_a_group_norm(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "a", "shape"),
        node("Reshape", "a runs", "r"),
        node("ReduceMean", "r", "mean", axes=[2, 3, 4, 5]),
        node("Sub", "r mean", "centred"),
        node("Mul", "centred centred", "squared"),
        node("ReduceMean", "squared", "variance", axes=[2, 3, 4, 5]),
        node("Add", "variance eps", "more"),
        node("Sqrt", "more", "sd"),
        node("Div", "centred sd", "normal"),
        node("Reshape", "normal shape", "back"),
        node("Mul", "back gamma", "b"),
    ]
    # D is 8: only patches of 8 voxels there have this shape.
    arrays = {"runs": np.array([0, 2, 2, 8, 6, 10]), "gamma": GAMMA.reshape(4, 1, 1, 1)}
    proto = model(ended(*nodes), ARRAYS | NORM | arrays)
    written = written_down(proto, tmp_path, (8, 6, 10))
    assert [kind_of(one.layer) for one in written.network.graph.nodes][1] == "group_norm"
    assert written.network.graph.patch == (8, 6, 10)


OF_CUBES = [
    node("Shape", "a", "shape"),
    node("Gather", "shape order", "exchanged", axis=0),
    node("Reshape", "a exchanged", "b"),  # moves voxels, unless D and H are equal
]
OF_SMALL_PATCHES = [node("Slice", "a start stop axis", "b")]  # cuts what exceeds 24 voxels


@pytest.mark.parametrize("nodes", [OF_CUBES, OF_SMALL_PATCHES])
def test_a_graph_that_other_patches_change_is_for_one_patch(
    nodes: list[NodeProto], tmp_path: Path
) -> None:
    """A cube one voxel larger does not show it."""
    arrays = {"order": np.array([0, 1, 3, 2, 4])}
    arrays |= {"start": np.array([0]), "stop": np.array([24]), "axis": np.array([2])}
    found = written_down(model(ended(*nodes), ARRAYS | arrays), tmp_path, (8, 8, 8))
    assert found.network.graph.patch == (8, 8, 8)
    assert "differ for patches other than 8x8x8" in found.reason


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_of_either_opset(opset: int, tmp_path: Path) -> None:
    numbers = GAMMA[:2] if opset < 21 else GAMMA
    norm = node("GroupNormalization", "a gamma beta", "b", num_groups=2, epsilon=0.1)
    proto = model(ended(norm), ARRAYS | {"gamma": numbers, "beta": numbers}, opset=opset)
    assert kinds(proto, tmp_path) == ["conv", "group_norm", "conv"]


def test_transposes_of_channels_last_cancel(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "first", perm=FIRST),
        node("Conv", "first w w.bias", "a", pads=[1] * 6),
        node("Transpose", "a", "last", perm=BACK),
        node("Mul", "last gamma", "scaled"),
        node("Add", "scaled beta", "shifted"),
        node("Relu", "shifted", "relu"),
        node("Pad", "relu pads", "padded", mode="reflect"),
        node("Concat", "padded padded", "twice", axis=4),
        node("Transpose", "twice", "b", perm=FIRST),
        node("Conv", "b v v.bias", "c"),
        node("Transpose", "c", "y", perm=BACK),
    ]
    arrays = conv_arrays() | conv_arrays(1, 8, 3, "v") | {"gamma": GAMMA, "beta": GAMMA - 1}
    arrays["pads"] = np.array([0, 1, 1, 1, 0, 0, 1, 1, 1, 0])
    found = kinds(model(nodes, arrays, LAST), tmp_path, channels_last=True)
    assert found == ["conv", "channel_affine", "relu", "pad", "concat", "conv"]


@pytest.mark.parametrize("product", ["a g", "g a"])
def test_a_gate_of_one_channel_multiplies_all(product: str, tmp_path: Path) -> None:
    query = [node("Conv", "a v v.bias", "q"), node("Sigmoid", "q", "g")]
    gated = node("Mul", product, "b")
    nodes = [*WIDE, *query, gated, node("Conv", "b v v.bias", "y")]
    assert kinds(model(nodes, ARRAYS), tmp_path) == ["conv", "conv", "sigmoid", "multiply", "conv"]


def test_a_gate_of_channels_last_multiplies_all(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "first", perm=FIRST),
        node("Conv", "first w w.bias", "a", pads=[1] * 6),
        node("Conv", "a v v.bias", "q"),
        node("Transpose", "a", "last", perm=BACK),
        node("Transpose", "q", "gate", perm=BACK),
        node("Mul", "gate last", "gated"),
        node("Transpose", "gated", "b", perm=FIRST),
        node("Conv", "b v v.bias", "c"),
        node("Transpose", "c", "y", perm=BACK),
    ]
    found = kinds(model(nodes, ARRAYS, LAST), tmp_path, channels_last=True)
    assert found == ["conv", "conv", "multiply", "conv"]


def test_batch_norm_is_a_scale_and_a_shift(tmp_path: Path) -> None:
    norm = node("BatchNormalization", "a g b0 m s", "b", epsilon=1e-3)
    arrays = {"g": GAMMA, "b0": -GAMMA, "m": GAMMA / 3, "s": GAMMA * 2}
    assert kinds(model(ended(norm), ARRAYS | arrays), tmp_path) == [
        "conv",
        "channel_affine",
        "conv",
    ]


@pytest.mark.parametrize(
    ("attributes", "sizes"),
    [
        ({"pads": [1, 0, 1, 0, 1, 0]}, (1, 1, 1)),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}, (2, 2, 2)),
        ({"auto_pad": "SAME_LOWER"}, (1, 1, 1)),
    ],
)
def test_uneven_padding_of_a_convolution(
    attributes: dict[str, Any], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    scales = vector(1, 1, *sizes)
    first = node("Conv", "x w w.bias", "a", **attributes)
    sample = {POSITIONS: "asymmetric", "nearest_mode": "floor"}
    nodes = [first, node("Resize", "a  scales", "b", **sample), node("Conv", "b v v.bias", "y")]
    nodes[1].input[:] = ["a", "", "scales"]
    arrays = conv_arrays(4, 1, 2) | conv_arrays(1, 4, 1, "v") | {"scales": scales}
    assert "conv" in kinds(model(nodes, arrays), tmp_path)


@pytest.mark.parametrize(
    ("attributes", "layers"),
    [
        ({"pads": [1, 1, 1, 0, 0, 0], "output_padding": [0, 0, 0]}, ["conv_transpose"]),
        ({"pads": [0, 0, 0, 1, 1, 1]}, ["conv_transpose", "crop"]),
        ({"auto_pad": "SAME_UPPER"}, ["conv_transpose", "crop"]),
        ({"auto_pad": "SAME_LOWER"}, ["conv_transpose"]),
        ({"pads": [1] * 6, "output_padding": [1] * 3}, ["conv_transpose"]),
        ({"pads": [2, 2, 2, 0, 0, 0], "output_padding": [1] * 3}, ["pad", "conv_transpose"]),
        (
            {"pads": [2, 1, 0, 0, 1, 1], "output_padding": [1, 1, 0]},
            ["pad", "conv_transpose", "crop"],
        ),
    ],
    ids=str,
)
def test_ends_of_a_transposed_convolution(
    attributes: dict[str, Any], layers: list[str], tmp_path: Path
) -> None:
    nodes = [
        node("Conv", "x w w.bias", "a", pads=[1] * 6, strides=[2] * 3),
        node("ConvTranspose", "a v", "y", strides=[2] * 3, **attributes),
    ]
    weight = np.random.default_rng(0).normal(size=(4, 1, 3, 3, 3)).astype(FLOAT)
    assert kinds(model(nodes, conv_arrays() | {"v": weight}), tmp_path) == ["conv", *layers]


@pytest.mark.parametrize(
    ("kind", "attributes", "layers"),
    [
        ("MaxPool", {"auto_pad": "SAME_UPPER"}, ["pad", "pool"]),
        ("MaxPool", {"auto_pad": "SAME_LOWER"}, ["pad", "pool"]),
        ("MaxPool", {"pads": [0, 1, 2, 2, 1, 0], "ceil_mode": 1}, ["pad", "pool"]),
        ("MaxPool", {"ceil_mode": 1}, ["pad", "pool"]),
        ("MaxPool", {"pads": [2] * 6, "ceil_mode": 1}, ["pool"]),  # one would start in the padding
        ("AveragePool", {"pads": [0, 1, 2, 1, 0, 0], "count_include_pad": 1}, ["pad", "pool"]),
    ],
    ids=str,
)
def test_uneven_ends_of_a_pooling(
    kind: str, attributes: dict[str, Any], layers: list[str], tmp_path: Path
) -> None:
    """Negative numbers, so that a border of zeros would be the largest."""
    nodes = [
        node("Sub", "a ten", "n"),
        node(kind, "n", "p", kernel_shape=[3] * 3, strides=[2] * 3, **attributes),
        node("ConvTranspose", "p up", "q", strides=[2] * 3),
        node("Slice", "q start end axes", "b"),
    ]
    arrays = ARRAYS | {
        "ten": np.float32(10),
        "up": conv_arrays(4, 4, 2, "up")["up"],
        "start": np.zeros(3, np.int64),
        "end": np.array([8, 6, 10]),
        "axes": np.array([2, 3, 4]),
    }
    found = kinds(model(ended(*nodes), arrays, dims=("n", 1, 8, 6, 10)), tmp_path)
    assert [one for one in found if one in ("pad", "pool")] == layers


@pytest.mark.parametrize(
    ("kernel", "around", "padding", "dilation", "before", "after", "layers"),
    [
        (4, 1, 2, 1, 1, 1, ["conv_transpose"]),  # antialiased_cnns
        (4, 1, 1, 1, 2, 2, ["conv_transpose"]),
        (3, 0, 0, 1, 1, 0, ["conv_transpose"]),
        (3, 0, 0, 1, 0, 1, ["conv_transpose", "crop"]),
        (2, 2, 0, 1, 4, 4, ["pad", "conv_transpose", "crop"]),
        (2, 0, 0, 3, 2, 0, ["conv_transpose", "crop"]),
    ],
)
def test_zeros_and_crops_around_a_transposed_convolution_are_its_padding(
    kernel: int,
    around: int,
    padding: int,
    dilation: int,
    before: int,
    after: int,
    layers: list[str],
    tmp_path: Path,
) -> None:
    nodes = [
        node("Conv", "x w w.bias", "a", pads=[1] * 6, strides=[2] * 3),
        node("Pad", "a around", "p"),
        node(
            "ConvTranspose",
            "p v v.bias",
            "b",
            strides=[2] * 3,
            pads=[padding] * 6,
            dilations=[dilation] * 3,
        ),
        node("Pad", "b cut", "y"),
    ]
    weight = np.random.default_rng(0).normal(size=(4, 1, kernel, kernel, kernel)).astype(FLOAT)
    arrays = conv_arrays() | {"v": weight, "v.bias": vector(0.5)}
    arrays["around"] = np.array([0, 0, *[around] * 3, 0, 0, *[around] * 3])
    arrays["cut"] = np.array([0, 0, *[-before] * 3, 0, 0, *[-after] * 3])
    assert kinds(model(nodes, arrays), tmp_path) == ["conv", *layers]


@pytest.mark.parametrize(
    ("mode", "second", "count"),
    [
        ("edge", (1, 0, 2), 1),
        ("constant", (1, 0, 2), 1),
        ("reflect", (0, 0, 2), 1),
        ("reflect", (1, 0, 2), 2),
    ],
)
def test_borders_one_after_the_other_are_one(
    mode: str, second: tuple[int, int, int], count: int, tmp_path: Path
) -> None:
    ends = np.array([1, 1, 0, 2, 1, 0]), np.array([*second, *second])
    nodes = [
        node("Pad", "a first", "p", mode=mode),
        node("Pad", "p second", "q", mode=mode),
        node("Pad", "q cut", "b"),
    ]
    both = sum(ends)
    arrays = {
        name: np.array([0, 0, *each[:3], 0, 0, *each[3:]])
        for name, each in zip(("first", "second", "cut"), (*ends, -both), strict=True)
    }
    assert kinds(model(ended(*nodes), ARRAYS | arrays), tmp_path).count("pad") == count


@pytest.mark.parametrize("kernel", [2, 4])
@pytest.mark.parametrize(
    ("side", "layers"), [("SAME_LOWER", ["pad", "conv"]), ("SAME_UPPER", ["conv", "crop"])]
)
def test_ends_of_a_transposed_convolution_of_stride_one(
    side: str, layers: list[str], kernel: int, tmp_path: Path
) -> None:
    transposed = node("ConvTranspose", "a v", "y", auto_pad=side)
    arrays = conv_arrays() | {"v": conv_arrays(4, 1, kernel, "v")["v"]}
    nodes = [node("Conv", "x w w.bias", "a", pads=[1] * 6), transposed]
    assert kinds(model(nodes, arrays), tmp_path) == ["conv", *layers]


@pytest.mark.parametrize(
    ("pads", "dilations", "groups", "layers"),
    [
        ([1, 0, 2], [1, 2, 1], 2, ["conv", "conv"]),
        ([0, 2, 2], [1, 1, 2], 1, ["conv", "conv"]),
        ([1, 0, 0], [1, 1, 1], 4, ["conv", "conv"]),
        ([3, 0, 0], [1, 1, 1], 1, ["conv_transpose", "conv"]),  # cuts more than it adds
        ([0, 0, 0], [1, 33, 1], 1, ["conv_transpose", "conv"]),  # adds more than a padding may
    ],
)
def test_a_transposed_convolution_of_stride_one_is_a_plain_one(
    pads: list[int], dilations: list[int], groups: int, layers: list[str], tmp_path: Path
) -> None:
    kernel = (2, 3, 3)
    reach = [step * (taps - 1) for taps, step in zip(kernel, dilations, strict=True)]
    ends = [2 * pad - more for pad, more in zip(pads, reach, strict=True)]
    nodes = [
        node("ConvTranspose", "a u", "c", pads=[*pads] * 2, dilations=dilations, group=groups),
        node("Pad", "c ends", "b"),
    ]
    weight = np.random.default_rng(0).normal(size=(4, 4 // groups, *kernel)).astype(FLOAT)
    arrays = ARRAYS | {"u": weight, "ends": np.array([0, 0, *[0] * 3, 0, 0, *ends])}
    found = kinds(model(ended(*nodes), arrays), tmp_path)
    assert [kind for kind in found[1:] if kind not in ("crop", "pad")] == layers


@pytest.mark.parametrize(
    "attributes",
    [
        {
            "mode": "nearest",
            POSITIONS: "asymmetric",
            "nearest_mode": "floor",
        },
        {"mode": "nearest", POSITIONS: "half_pixel"},
        {"mode": "nearest", POSITIONS: "pytorch_half_pixel"},
        {"mode": "linear", POSITIONS: "half_pixel"},
        {"mode": "linear", POSITIONS: "align_corners"},
    ],
    ids=str,
)
def test_positions_of_sampling(attributes: dict[str, Any], tmp_path: Path) -> None:
    resize = node("Resize", "p", "b", **attributes)
    resize.input[:] = ["p", "", "scales"]
    pool = node("MaxPool", "a", "p", kernel_shape=[2] * 3, strides=[2] * 3)
    arrays = ARRAYS | {"scales": vector(1, 1, 2, 2, 2)}
    found = kinds(model(ended(pool, resize), arrays), tmp_path)
    assert found == ["conv", "pool", "upsample", "conv"]


def test_shape_arithmetic_folds_once_the_patch_is_known(tmp_path: Path) -> None:
    nodes = [
        node("MaxPool", "a", "p", kernel_shape=[2] * 3, strides=[2] * 3),
        node("Shape", "a", "shape"),
        node("Gather", "shape places", "extents", axis=0),
        node("Cast", "extents", "sizes", to=7),
        node("Shape", "p", "small"),
        node("Slice", "small zero two", "kept"),
        node("Concat", "kept sizes", "whole", axis=0),
        node("Resize", "p", "b", mode="nearest"),
    ]
    nodes[-1].input[:] = ["p", "", "", "whole"]
    arrays = {"places": np.array([2, 3, 4]), "zero": np.array([0]), "two": np.array([2])}
    assert kinds(model(ended(*nodes), ARRAYS | arrays), tmp_path) == [
        "conv",
        "pool",
        "upsample",
        "conv",
    ]


def test_softsign_as_pytorch_writes_it(tmp_path: Path) -> None:
    """x / (1 + |x|), whose divisor is never below 1."""
    nodes = [node("Abs", "a", "p"), node("Add", "p one", "q"), node("Div", "a q", "b")]
    assert "inverse" in kinds(model(ended(*nodes), ARRAYS | {"one": vector(1)}), tmp_path)


REFUSED: dict[str, tuple[list[NodeProto], str]] = {
    "an operator": (
        [node("Softsign", "a", "b")],
        "Operator Softsign (node 'b') is not supported",
    ),
    "a branch": (
        [node("If", "a", "b")],
        "Operator If (node 'b') is a branch or a loop, as scripted functions leave it in ONNX",
    ),
    "division": (
        [node("Div", "a a", "b")],
        "Operator Div (node 'b') divides by a tensor that may be zero",
    ),
    "sampling": (
        [node("Resize", "a", "b", mode="cubic")],
        "Operator Resize (node 'b') does not give the factor",
    ),
    "a mean of planes": (
        [node("ReduceMean", "a", "m", axes=[2]), node("Add", "a m", "b")],
        "Operator ReduceMean (node 'm') takes a mean over the axes [2] of 5, which no norm uses",
    ),
    "squeeze and excitation": (
        [
            node("ReduceMean", "a", "m", axes=[2, 3, 4]),
            node("Sigmoid", "m", "s"),
            node("Mul", "a s", "b"),
        ],
        "Operator Sigmoid (node 's') works on a mean, as squeeze and excitation does",
    ),
    "a sum of other channels": (
        [node("Concat", "a a", "t", axis=1), node("Add", "t a", "b")],
        "Operator Add (node 'b') does not fit: it joins 8 and 4 channels voxel by voxel",
    ),
    "a batch of one as more": (
        [node("Expand", "x whole", "b")],
        "Operator Expand (node 'b') repeats axes other than the channels",
    ),
    "weights of channels made of the patch": (
        [node("GlobalAveragePool", "a", "m"), node("Mul", "a m", "b")],
        "Operator GlobalAveragePool (node 'm') reduces the whole patch to one number, as squeeze",
    ),
    "a root that is too small": (
        [
            node("Mul", "a a", "s"),
            node("Add", "s least", "t"),
            node("Sqrt", "t", "r"),
            node("Div", "a r", "b"),
        ],
        "Operator Div (node 'b') divides by the root of a tensor that may be as low as 1e-12",
    ),
    "a view that no norm reads": (
        [node("Reshape", "a line", "r"), node("Relu", "r", "b")],
        "Operator Reshape (node 'r') makes a tensor of 1x4x480 that an operator Relu reads; other",
    ),
    "a part of a norm": (
        [
            node("ReduceMean", "a", "m", axes=[2, 3, 4]),
            node("Sub", "a m", "c"),
            node("Relu", "c", "b"),
        ],
        "Operator Relu (node 'b') works on a part of a norm that is not written as (x - mean)",
    ),
    "training": (
        [node("BatchNormalization", "a gamma gamma gamma gamma", "b", training_mode=1)],
        "normalises by the batch; export the network in eval mode",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_missing_layer_is_refused_with_operator_and_node(name: str, tmp_path: Path) -> None:
    nodes, message = REFUSED[name]
    with pytest.raises(CheckpointError) as refusal:
        written_down(
            model(
                ended(*nodes),
                ARRAYS
                | {"gamma": GAMMA, "whole": np.array([2, 1, 1, 1, 1])}
                | {"least": vector(1e-12), "line": np.array([1, 4, 480])},
                (1, 1, 8, 6, 10),
            ),
            tmp_path,
        )
    assert message in str(refusal.value)
    assert str(refusal.value).count(". ") == 0


def test_a_network_in_double_precision_is_read_as_one_in_single(tmp_path: Path) -> None:
    double = tiny()
    for one in double.graph.initializer:
        numbers = numpy_helper.to_array(one).astype(np.float64)
        one.CopyFrom(numpy_helper.from_array(numbers, one.name))
    for value in (*double.graph.input, *double.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    found, meant = (written_down(proto, tmp_path).network for proto in (double, tiny()))
    assert found.graph == meant.graph
    assert all(np.array_equal(found.weights[key], it) for key, it in meant.weights.items())


def shuffled(view: list[int], order: list[int], made: list[int], channels: int) -> Any:
    """A patch of 8 x 6 x 10 whose channels and voxels are moved, between two convolutions."""
    enter = node("Conv", "x w w.bias", "a", pads=[1] * 6)
    nodes = [
        enter,
        node("Reshape", "a view", "r", allowzero=1),
        node("Transpose", "r", "t", perm=order),
        node("Reshape", "t made", "m", allowzero=1),
    ]
    return nodes, {"view": np.array(view), "made": np.array(made)} | conv_arrays(channels)


@pytest.mark.parametrize(
    ("order", "factor"),
    [([0, 1, 5, 2, 6, 3, 7, 4], [1, 2, 3]), ([0, 1, 5, 4, 6, 2, 7, 3], [3, 1, 2])],
)
def test_subpixel_shuffling_is_a_transposed_convolution(
    order: list[int], factor: list[int], tmp_path: Path
) -> None:
    extents = [8 * factor[0], 6 * factor[1], 10 * factor[2]]
    nodes, arrays = shuffled([1, 2, 1, 2, 3, 8, 6, 10], order, [1, 2, *extents], 12)
    nodes.append(node("AveragePool", "m", "s", kernel_shape=factor, strides=factor))
    nodes.append(node("Conv", "s v v.bias", "y"))
    proto = model(nodes, arrays | conv_arrays(1, 2, 1, "v"), (1, 1, 8, 6, 10))
    assert kinds(proto, tmp_path) == ["conv", "conv_transpose", "pool", "conv"]


@pytest.mark.parametrize("order", [[0, 1, 3, 5, 7, 2, 4, 6], [0, 1, 7, 3, 5, 2, 4, 6]])
def test_cells_that_become_channels_are_a_convolution(order: list[int], tmp_path: Path) -> None:
    view, made = [1, 2, 8, 1, 2, 3, 2, 5], [1, 30, 8, 2, 2]
    nodes, arrays = shuffled(view, order, made, 2)
    nodes.append(node("Conv", "m v v.bias", "n"))
    nodes.append(node("Resize", "n  factors", "y", mode="nearest", nearest_mode="floor"))
    nodes[-1].input[1:] = ["", "factors"]
    nodes[-1].attribute.extend([helper.make_attribute(POSITIONS, "asymmetric")])
    arrays |= conv_arrays(1, 30, 1, "v") | {"factors": np.array([1, 1, 1, 3, 5], FLOAT)}
    assert kinds(model(nodes, arrays, (1, 1, 8, 6, 10)), tmp_path) == [
        "conv",
        "conv",
        "conv",
        "upsample",
    ]


@pytest.mark.parametrize(
    ("view", "order", "made"),
    [
        ([1, 2, 1, 2, 3, 8, 6, 10], [0, 1, 2, 5, 3, 6, 4, 7], [1, 2, 8, 12, 30]),
        ([1, 2, 1, 2, 3, 8, 6, 10], [0, 1, 5, 2, 6, 3, 7, 4], [1, 2, 16, 6, 30]),
        ([1, 12, 480], [0, 2, 1], [1, 12, 8, 6, 10]),
        ([1, 12, 8, 60], [0, 2, 3, 1], [1, 12, 8, 6, 10]),
    ],
)
def test_other_movements_of_voxels_are_refused(
    view: list[int], order: list[int], made: list[int], tmp_path: Path
) -> None:
    nodes, arrays = shuffled(view, order, made, 12)
    proto = model([*nodes, node("Relu", "m", "y")], arrays, (1, 1, 8, 6, 10))
    with pytest.raises(CheckpointError, match=r"Operator Reshape .* moves voxels in a way"):
        written_down(proto, tmp_path)
