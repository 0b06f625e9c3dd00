"""The dialect of ONNX in which importers state operators, checked by onnx.checker."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import checker, helper, numpy_helper

from cuda_cyclegan.engine.importing.operators.operator_graph import (
    STATED_OPSET,
    Attribute,
    Operator,
    OperatorGraph,
)

_NORMS = (
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
)
_LISTED = ("Squeeze", "Unsqueeze")


def check_dialect(graph: OperatorGraph) -> OperatorGraph:
    """Return a graph; raise AssertionError if it differs from ONNX in more than its dialect may."""
    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": STATED_OPSET}
    for operator in graph.operators:
        try:
            checker.check_node(_in_onnx(operator), context)
        except checker.ValidationError as error:
            raise AssertionError(f"{operator.kind} of {operator.name}: {error}") from error
    return graph


def _in_onnx(operator: Operator) -> onnx.NodeProto:
    """Return an operator with each deviation of the dialect undone."""
    inputs, attributes = list(operator.inputs), dict(operator.attributes)
    if operator.kind in _NORMS:
        inputs[1:3] = [name or "omitted" for name in inputs[1:3]]
    if operator.kind in _LISTED or operator.kind.startswith("Reduce"):
        inputs += ["axes"] if attributes.pop("axes", None) else []
    kind = "HardSwish" if operator.kind == "Swish" else operator.kind
    outputs = operator.outputs[:1] if kind in ("ReduceMax", "ReduceMin") else operator.outputs
    return helper.make_node(kind, inputs, outputs, operator.name, **dict(_plain(attributes)))


def _plain(attributes: dict[str, Attribute]) -> Iterator[tuple[str, object]]:
    for name, value in attributes.items():
        yield name, numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
