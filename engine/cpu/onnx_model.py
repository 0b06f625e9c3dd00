"""Convert a network to an ONNX model, for the CPU runtime and for `model export-onnx`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ..network.graph import INPUT, Network
from ..network.layers import FloatArray, Triple
from .onnx_operators import Converter

OPSET = 18
"""Oldest operator set with all that the graph needs; every ONNX Runtime since 1.14 runs it."""

_IR_VERSION = 8
_LARGE = 1 << 16
"""Bytes from which an array is worth keeping outside of a model, which is copied several times."""

WeightArrays: TypeAlias = dict[str, FloatArray]


def to_onnx(
    network: Network,
    *,
    exact_norms: bool = False,
    by_columns: bool = False,
    by_phases: bool = False,
    patch: Triple | None = None,
    outside: WeightArrays | None = None,
) -> ModelProto:
    """Return a float32 ONNX model with one input and one output, [N, C, D, H, W], of open extents.

    By default a layer is the operator that a reader of the file expects. exact_norms: norms are
    sums of short runs, see `Converter`. by_columns: convolutions of few inputs or outputs are two,
    which is several times faster on a CPU. by_phases: transposed convolutions to fewer channels
    than a vector has are usual ones, which OpenVINO computes up to nine times faster; to more, they
    take 0.5 to 4 times as long as its own operator, mostly 1.1 to 2. patch: the only extents
    (D, H, W) of the input, which allow fewer operators. outside: receives the large arrays, which
    the model then only names; without it they are in the model.
    """
    graph = network.graph
    shapes = graph.shapes(patch) if patch else {}
    known = {name: shape.extents for name, shape in shapes.items()}
    channels = graph.channels()
    converter = Converter(
        network.weights,
        channels,
        known,
        exact_norms=exact_norms,
        by_columns=by_columns,
        by_phases=by_phases,
    )
    operators = [made for node in graph.nodes for made in converter.operators(node)]
    return model_of(
        "generator",
        operators,
        [_value(INPUT, channels[INPUT])],
        _value(graph.output, channels[graph.output]),
        [_initializer(key, array, outside) for key, array in converter.constants.items()],
    )


def model_of(
    name: str,
    operators: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    output: ValueInfoProto,
    constants: Sequence[TensorProto],
) -> ModelProto:
    """Return a model of these operators."""
    return helper.make_model(
        helper.make_graph(operators, name, inputs, [output], constants),
        producer_name="cuda-cyclegan",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _initializer(
    name: str, array: "np.ndarray[Any, Any]", outside: WeightArrays | None
) -> TensorProto:
    """Return an array as a part of a model, or only its name and shape if it is kept outside."""
    if outside is None or array.nbytes < _LARGE or array.dtype != np.float32:
        return numpy_helper.from_array(array, name)
    outside[name] = array
    tensor = TensorProto(
        name=name,
        data_type=TensorProto.FLOAT,
        dims=array.shape,
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value="memory")
    return tensor


def _value(name: str, channels: int) -> ValueInfoProto:
    axes = ["batch", channels, "depth", "height", "width"]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, axes)
