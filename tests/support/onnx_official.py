"""ONNX's own cases of its operators, of the onnx package's loader."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

NEWEST_OPSET = 26
"""The newest that the program reads; newer cases are taken as of this one."""


@dataclass(frozen=True)
class OfficialCase:
    """An operator with its inputs.

    name: of ONNX. operator: type. nodes: the operator, or what ONNX defines it as. inputs: by name.
    output: name. opset: that defines it.
    """

    name: str
    operator: str
    nodes: tuple[NodeProto, ...] = field(repr=False)
    inputs: Mapping[str, Any] = field(repr=False)
    output: str
    opset: int

    @property
    def is_single(self) -> bool:
        """Whether the case is the operator itself."""
        return len(self.nodes) == 1

    def index(self, name: str) -> int:
        """The index of an input; -1 if the nodes do not read it."""
        names = [one for node in self.nodes for one in node.input]
        return names.index(name) if name in names else -1


@cache
def official_cases(module: str = "") -> tuple[OfficialCase, ...]:
    """All cases, or those of one module of ONNX, such as averagepool, in much less time."""
    from onnx.backend.test.case import node
    from onnx.backend.test.case.base import Base
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if module:
            named = vars(import_module(f"{node.__name__}.{module}"))
            found = node._NodeTestCases
        else:
            found, named = load_model_tests(kind="node"), {}
    types = {one.name: one.model.graph.node[0].op_type for one in found}
    wanted = {key for key, one in named.items() if isinstance(one, type) and issubclass(one, Base)}
    cases = []
    for one in found:
        graph = one.model.graph
        operator = types.get(one.name.partition("_expanded")[0], types[one.name])
        if module and operator not in wanted:
            continue
        opsets = {it.domain: it.version for it in one.model.opset_import}
        values = map(_array, one.data_sets[0][0]) if one.data_sets else ()
        case = OfficialCase(
            one.name.removeprefix("test_"),
            operator,
            tuple(graph.node),
            dict(zip((value.name for value in graph.input), values, strict=False)),
            graph.output[0].name,
            min(NEWEST_OPSET, opsets.get("", NEWEST_OPSET)),
        )
        cases += [case, *_without_optional_inputs(case)]
    return tuple(cases)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _without_optional_inputs(case: OfficialCase) -> Iterator[OfficialCase]:
    """The case without each of its optional inputs; the others keep their places."""
    [node, *others] = case.nodes
    if others or node.domain or not defs.has(node.op_type, case.opset):
        return
    known = defs.get_schema(node.op_type, case.opset).inputs
    for at, (name, formal) in enumerate(zip(node.input, known, strict=False)):
        if at and name and formal.option == defs.OpSchema.FormalParameterOption.Optional:
            fewer = copied(node)
            fewer.input[at] = ""
            left = {key: value for key, value in case.inputs.items() if key != name}
            without = f"{case.name} without {formal.name}"
            yield replace(case, name=without, nodes=(fewer,), inputs=left)


def copied(node: NodeProto) -> NodeProto:
    """A copy of a node."""
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def graph_model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[Any, ...]],
    output: str,
    arrays: Mapping[str, Array],
    opset: int,
) -> ModelProto:
    """A model of nodes; inputs: extents by name, of single precision."""
    single = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "generator",
        [helper.make_tensor_value_info(name, single, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(output, single, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    domains = sorted({node.domain for node in nodes if node.domain})
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(one, 1) for one in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 19 else 10)


def in_reference(model: ModelProto, inputs: Mapping[str, Array]) -> Array | None:
    """The output in ONNX's reference; None if it cannot compute it."""
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            [made] = ReferenceEvaluator(model).run(None, dict(inputs))
    except Exception:  # its errors, and those of its operators, have no common class
        return None
    return made


_CRASHING = frozenset(("DFT", "STFT"))
"""Operators of which invalid inputs end ONNX Runtime's process."""


def in_onnx_runtime(model: ModelProto, inputs: Mapping[str, Array]) -> Array | None:
    """The output in ONNX Runtime; None if it cannot compute it."""
    import onnxruntime

    if not _CRASHING.isdisjoint(node.op_type for node in model.graph.node):
        return None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(content, options, providers=providers)
        [made] = session.run(None, dict(inputs))
    except Exception:  # its errors have no common class
        return None
    return made


def shape_of(model: ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the output; None if nothing computes it, or it is no tensor of numbers."""
    given = {name: np.full(shape, 0.7, np.float32) for name, shape in inputs.items()}
    made = in_reference(model, given)
    if made is None:
        made = in_onnx_runtime(model, given)
    is_tensor = isinstance(made, np.ndarray) and made.dtype.kind == "f"
    return made.shape if is_tensor else None


def official_modules() -> list[str]:
    """Names of ONNX's modules of cases, such as averagepool."""
    from onnx.backend.test.case import node

    return sorted(one.name for one in iter_modules(node.__path__))
