"""ONNX's own test of each operator, lifted to three dimensions and put between two convolutions.

The cases are those of the onnx package's loader. Their tensor becomes one of five axes, computed
from a patch by a convolution; their other inputs become constants or tensors; a convolution leads
from their output to the network's.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
NEWEST_OPSET = 26
_MOST_EXTENTS = (6, 12, 9)
_MOST_NUMBERS = 2048
_LAST = 1 << 40


@dataclass(frozen=True)
class NodeCase:
    """An operator of a network.

    name: of ONNX's case, and how it is lifted. operator: type of its node. attributes: of the node.
    network: from "patch" to "translated". middle: the part between the convolutions. patch: extents
    of the network's patch. enter, leave: weights of the convolutions.
    """

    name: str
    operator: str
    attributes: Mapping[str, Any] = field(repr=False)
    network: ModelProto = field(repr=False)
    middle: ModelProto = field(repr=False)
    patch: tuple[int, int, int]
    enter: Mapping[str, tuple[Array, Array]] = field(repr=False)
    leave: tuple[Array, Array] = field(repr=False)

    def input_patch(self) -> Array:
        """A patch to compute."""
        numbers = np.random.default_rng(3).uniform(-1, 1, (1, 1, *self.patch))
        return numbers.astype(np.float32)

    def expected(self) -> Array | None:
        """The network's output in double precision, by ONNX's reference; None if it has none."""
        from onnx.reference import ReferenceEvaluator

        patch = self.input_patch().astype(np.float64)
        entered = {name: _convolved(patch, *one) for name, one in self.enter.items()}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                [made] = ReferenceEvaluator(self.middle).run(None, entered)
        except Exception:  # noqa: BLE001 - the reference lacks some operators, each in its own way
            return None
        made = np.asarray(made)
        return _convolved(made, *self.leave) if made.ndim == len(patch.shape) else None


def _convolved(values: Array, weight: Array, bias: Array) -> Array:
    """A convolution by a kernel of one voxel."""
    made = np.einsum("oi,nidhw->nodhw", weight[:, :, 0, 0, 0].astype(np.float64), values)
    return made + bias.astype(np.float64).reshape(1, -1, 1, 1, 1)


@dataclass(frozen=True)
class _Official:
    """A case of ONNX: its nodes, the values of its inputs by name, and the name of its output."""

    name: str
    operator: str
    nodes: tuple[NodeProto, ...]
    inputs: Mapping[str, Any]
    output: str
    opset: int


@dataclass
class _Lifted:
    """A case of ONNX in five axes.

    shape: of the tensor. tensors: names of the inputs that are tensors, and whether they are above
    zero. constants: the other inputs.
    """

    nodes: list[NodeProto]
    shape: tuple[int, ...]
    tensors: dict[str, bool]
    constants: dict[str, Array]


def official_modules() -> list[str]:
    """Names of the modules that hold ONNX's cases, such as averagepool."""
    from pkgutil import iter_modules

    from onnx.backend.test.case import node

    return sorted(one.name for one in iter_modules(node.__path__) if one.name[0] != "_")


def node_cases(modules: Iterable[str] | None = None) -> Iterator[NodeCase]:
    """Each case of ONNX that can be lifted, in each way; modules: only those of these modules."""
    seen: set[bytes] = set()
    for official in _official_cases(None if modules is None else tuple(modules)):
        for way, lifted in _lifts(official):
            case = _case(f"{official.name} {way}", official, lifted)
            if case is None:
                continue
            key = case.network.SerializeToString(deterministic=True)
            if key not in seen:
                seen.add(key)
                yield case


@cache
def _official_cases(modules: tuple[str, ...] | None) -> tuple[_Official, ...]:
    from onnx.backend.test.case import node

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if modules is None:
            from onnx.backend.test.loader import load_model_tests

            found = load_model_tests(kind="node")
        else:
            before = len(node._NodeTestCases)
            for module in modules:
                import_module(f"{node.__name__}.{module}")
            found = node._NodeTestCases[before:]
    known: dict[str, str] = {}
    cases = []
    for one in found:
        graph, name = one.model.graph, one.name.removeprefix("test_")
        plain = name.partition("_expanded")[0]
        if "_expanded" not in name:
            known[name] = graph.node[0].op_type
        values = one.data_sets[0][0] if one.data_sets else []
        case = _Official(
            name,
            known.get(plain, graph.node[0].op_type),
            tuple(graph.node),
            dict(zip((value.name for value in graph.input), map(_array, values), strict=False)),
            graph.output[0].name,
            next((i.version for i in one.model.opset_import if i.domain in ("", "ai.onnx")), 0),
        )
        cases += [case, *_without_optional_inputs(case)]
    return tuple(cases)


def _array(value: Any) -> Any:
    """An input as an array, if it is a tensor of a type that NumPy has."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _without_optional_inputs(case: _Official) -> Iterator[_Official]:
    """The case with each optional input left out, the others in their places."""
    [node, *others] = case.nodes
    if others or node.domain or not defs.has(node.op_type):
        return
    known = defs.get_schema(node.op_type, case.opset).inputs
    for at, (name, formal) in enumerate(zip(node.input, known, strict=False)):
        if at and name and formal.option == defs.OpSchema.FormalParameterOption.Optional:
            fewer = NodeProto()
            fewer.CopyFrom(node)
            fewer.input[at] = ""
            left = {key: value for key, value in case.inputs.items() if key != name}
            yield replace(
                case, name=f"{case.name} without {formal.name}", nodes=(fewer,), inputs=left
            )


def _lifts(case: _Official) -> Iterator[tuple[str, _Lifted]]:
    """Each way to lift a case, by name."""
    arrays = {name: _floats(value) for name, value in case.inputs.items()}
    if any(value is None for value in arrays.values()):
        return  # sequences, texts and optional values
    plain = {name: array for name, array in arrays.items() if array is not None}
    is_plain = len(case.nodes) == 1
    if is_plain and case.operator in _ARITHMETIC and (folded := _folded(case, plain)):
        yield "of constants", folded
    if case.operator in _OF_ANY_TYPE:
        plain = {
            name: array.astype(np.float32) if at == 0 else array
            for at, (name, array) in enumerate(plain.items())
        }
    is_new = [name for name, array in plain.items() if array.dtype == np.float32]
    if not is_new or is_new[0] != next(iter(plain)):
        return
    first = plain[is_new[0]]
    if first.size == 0:
        return
    is_spatial = case.operator in _SPATIAL and first.ndim in (3, 4, 5)
    if is_spatial:
        for name, lifted in _along_three_axes(case, plain):
            yield name, lifted
        return
    for place, (before, after) in _places(first.ndim).items():
        for kinds, roles in _roles(case, plain):
            lifted = _placed(case, plain, before, after, roles)
            if not lifted:
                continue
            if place == _CHANNELS_LAST:
                lifted = _channels_last(case, lifted)
            lifted = _ended(case, lifted)
            name = f"{place}, {kinds}" if kinds else place
            yield name, lifted
            if case.operator in _ABOVE_ZERO:
                above = dict.fromkeys(lifted.tensors, True)
                yield f"{name}, above zero", replace(lifted, tensors=above)


def _floats(value: Any) -> Array | None:
    """An input as this program reads it: numbers of single precision, whole ones, truth values."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" or value.size == 0:
        is_empty = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"
        return value if is_empty and value.dtype in (np.float32, np.int64) else None
    if value.dtype.kind == "f":
        return value.astype(np.float32)
    return value.astype(np.int64) if value.dtype.kind in "iu" else value


def _folded(case: _Official, plain: dict[str, Array]) -> _Lifted | None:
    """An operator on constants, whose results are added to the channels of a tensor."""
    cast = helper.make_node("Cast", [case.output], ["numbers"], to=TensorProto.FLOAT)
    opset = min(NEWEST_OPSET, case.opset) or NEWEST_OPSET
    result = _shape_of(_model([*case.nodes, cast], {}, "numbers", plain, opset), {})
    count = 0 if result is None else int(np.prod(result))
    if not 0 < count <= _MOST_NUMBERS:
        return None
    nodes = [
        *case.nodes,
        cast,
        helper.make_node("Reshape", ["numbers", "per_channel"], ["vector"]),
        helper.make_node("Add", ["tensor", "vector"], ["out"]),
    ]
    shape = (1, count, 2, 3, 4)
    constants = {**plain, "per_channel": np.array([1, count, 1, 1, 1])}
    return _Lifted(nodes, shape, {"tensor": False}, constants)


_CHANNELS_LAST = "of channels last"


def _places(rank: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Axes before and after those of a case, by the name of its place."""
    if rank > 5:
        return {}
    others = (1, 3, 4, 2, 5)
    last = others[: 5 - rank], ()
    if rank == 0:
        return {"of voxels": last}
    places = {"of batches": ((), others[rank - 5 :] if rank < 5 else ())}
    if rank < 5:
        places["of channels"] = (1,), (4, 3, 2, 5)[: 4 - rank]
    if rank < 4:
        places["of voxels"] = last
    return places | {_CHANNELS_LAST: last}


def _channels_last(case: _Official, lifted: _Lifted) -> _Lifted:
    """A case whose tensor has its channels last, between two transpositions."""
    [*others, channels] = lifted.shape[1:]
    nodes = []
    for name in lifted.tensors:
        nodes.append(helper.make_node("Transpose", [f"{name}.first"], [name], perm=[0, 2, 3, 4, 1]))
    made = case.output
    if case.operator in ("Cast", "CastLike"):
        nodes_after = [helper.make_node("Cast", [made], ["single"], to=TensorProto.FLOAT)]
        made = "single"
    else:
        nodes_after = []
    back = helper.make_node("Transpose", [made], ["out"], perm=[0, 4, 1, 2, 3])
    tensors = {f"{name}.first": above for name, above in lifted.tensors.items()}
    shape = (1, channels, *others)
    return _Lifted([*nodes, *lifted.nodes, *nodes_after, back], shape, tensors, lifted.constants)


def _ended(case: _Official, lifted: _Lifted) -> _Lifted:
    """A case whose output has five axes in order and single precision."""
    nodes, made = list(lifted.nodes), lifted.nodes[-1].output[0]
    if made == "out":
        return lifted
    [node] = case.nodes[:1]
    attributes = {one.name: helper.get_attribute_value(one) for one in lifted.nodes[-1].attribute}
    constants = dict(lifted.constants)
    if case.operator == "Transpose" and len(nodes) == 1:
        perm = attributes.get("perm", list(range(len(lifted.shape)))[::-1])
        back = np.argsort(perm).tolist()
        nodes.append(helper.make_node("Relu", [made], ["moved"]))
        nodes.append(helper.make_node("Transpose", ["moved"], ["out"], perm=back))
    elif case.operator in ("Cast", "CastLike"):
        nodes.append(helper.make_node("Cast", [made], ["out"], to=TensorProto.FLOAT))
    elif attributes.get("keepdims") == 0 and len(nodes) == 1:
        axes = attributes.get("axes")
        if axes is None and len(node.input) > 1 and node.input[1]:
            axes = constants[node.input[1]].tolist()
        if axes is None and "axis" in attributes:
            axes = [attributes["axis"]]
        if axes:
            constants["kept"] = np.array([axis % 5 for axis in axes])
            nodes.append(helper.make_node("Unsqueeze", [made, "kept"], ["out"]))
    return replace(lifted, nodes=nodes, constants=constants)


def _roles(case: _Official, plain: dict[str, Array]) -> Iterator[tuple[str, dict[str, str]]]:
    """What becomes of each input besides the first: by name of the way, a role for each."""
    first, *others = plain
    joined = [name for name in others if plain[name].dtype == np.float32]
    if case.operator not in _JOINING or not joined:
        yield "", {first: "tensor"}
        return
    if all(_broadcasts(plain[name].shape, plain[first].shape) for name in joined):
        yield "with tensors", dict.fromkeys((first, *joined), "tensor")
    yield "with numbers", {first: "tensor"} | dict.fromkeys(joined, "number")
    yield "with numbers per channel", {first: "tensor"} | dict.fromkeys(joined, "channels")
    yield "with constants", {first: "tensor"}
    if len(joined) == 1:
        yield "after a number", {first: "number", joined[0]: "tensor"}
        yield "after numbers per channel", {first: "channels", joined[0]: "tensor"}


def _broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return shape == whole


def _placed(
    case: _Official,
    plain: dict[str, Array],
    before: tuple[int, ...],
    after: tuple[int, ...],
    roles: dict[str, str],
) -> _Lifted | None:
    """A case whose axes stand between others."""
    first = next(iter(plain))
    rank = plain[first].ndim
    shape = (*before, *plain[first].shape, *after)
    if len(shape) > 5:
        return None
    shape = (1, *shape[1:])
    constants = {}
    for name, array in plain.items():
        at = _index(case, name)
        match roles.get(name, "constant"):
            case "tensor":
                continue
            case "number":
                constants[name] = array.reshape(-1)[:1].reshape(())
            case "channels":
                constants[name] = np.resize(array, (shape[1], 1, 1, 1))
            case _:
                constants[name] = _moved(case, at, array, rank, before, after)
    nodes = []
    for node in case.nodes:
        moved = NodeProto()
        moved.CopyFrom(node)
        if len(case.nodes) == 1:
            _move_attributes(case.operator, moved, rank, before, after)
            if case.operator in _AXES_LEFT_OUT and not _named_axes(case, moved):
                _state_leading_axes(case, constants, rank, before, after)
        nodes.append(moved)
    tensors = dict.fromkeys((name for name, role in roles.items() if role == "tensor"), False)
    return _Lifted(nodes, shape, tensors, constants)


def _moved(
    case: _Official,
    at: int,
    array: Array,
    rank: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> Array:
    """A constant input that states axes, extents or numbers of voxels, of the lifted tensor."""
    meaning = _MEANINGS.get(case.operator, {}).get(at)
    if meaning == "axes":
        return _axes(array, rank, before, after)
    if meaning == "extents" and len(case.nodes) == 1:
        return np.concatenate([np.array((1, *before[1:]), int), array, np.array(after, int)])
    if meaning == "repeats":
        ones = np.ones(len(before), int), np.ones(len(after), int)
        return np.concatenate([ones[0], array, ones[1]])
    if meaning == "pads" and "axes" not in _names_of(case):
        half = len(array) // 2
        zeros = np.zeros(len(before), int), np.zeros(len(after), int)
        ends = [[zeros[0], part, zeros[1]] for part in (array[:half], array[half:])]
        return np.concatenate([*ends[0], *ends[1]])
    if array.dtype == np.float32 and array.ndim and after:
        return array.reshape(array.shape + (1,) * len(after))
    return array


def _names_of(case: _Official) -> list[str]:
    return [name for node in case.nodes for name in node.input]


def _index(case: _Official, name: str) -> int:
    """The index of an input; -1 if the nodes do not read it."""
    names = _names_of(case)
    return names.index(name) if name in names else -1


def _axes(axes: Array, rank: int, before: tuple[int, ...], after: tuple[int, ...]) -> Array:
    return np.where(axes < 0, axes - len(after), axes + len(before)).astype(np.int64)


def _named_axes(case: _Official, node: NodeProto) -> bool:
    return len(node.input) > 3 and bool(node.input[3])


def _state_leading_axes(
    case: _Official,
    constants: dict[str, Array],
    rank: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> None:
    """Cut nothing of the axes before those of a Slice that names none."""
    names = list(case.nodes[0].input)
    count = len(before)
    for at, whole in ((1, 0), (2, _LAST), (4, 1)):
        if at < len(names) and names[at]:
            array = constants[names[at]]
            constants[names[at]] = np.concatenate([np.full(count, whole), array])


def _move_attributes(
    operator: str, node: NodeProto, rank: int, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        match attribute.name:
            case "axis" | "batch_axis" | "time_axis":
                attribute.i = int(_axes(np.array(value), rank, before, after))
            case "axes":
                attribute.ints[:] = _axes(np.array(value), rank, before, after).tolist()
            case "perm":
                count = len(before)
                whole = [*range(count), *(count + one for one in value)]
                attribute.ints[:] = [*whole, *range(len(whole), len(whole) + len(after))]
            case _:
                pass


_AXES_LEFT_OUT = ("Slice",)
_MEANINGS: Mapping[str, Mapping[int, str]] = {
    **dict.fromkeys(
        (
            *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"),
            *("ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
            *("Squeeze", "Unsqueeze", "CumSum", "CumProd"),
        ),
        {1: "axes"},
    ),
    "Slice": {3: "axes"},
    "Pad": {1: "pads", 3: "axes"},
    "Reshape": {1: "extents"},
    "Expand": {1: "extents"},
    "Tile": {1: "repeats"},
}
_JOINING = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "PRelu", "Where"),
        *("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual", "Mod", "Concat"),
    )
)
_ABOVE_ZERO = frozenset(
    (
        *("Sqrt", "Log", "Reciprocal", "Div", "Pow", "ReduceL1", "ReduceL2", "ReduceLogSum"),
        *("Acosh", "Asinh", "LpNormalization", "ReduceProd"),
    )
)
_OF_ANY_TYPE = ("Pad", "MaxPool", "Transpose", "Identity", "Reshape", "Flatten")
"""Operators of which ONNX has cases of whole numbers that hold for any."""
_ARITHMETIC = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Sum", "Mean", "Neg", "Abs"),
        *("Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Exp", "Log", "MatMul", "Clip"),
        *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Not"),
        *("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMin", "ReduceMax", "ReduceL1"),
        *("ReduceL2", "ReduceSumSquare", "Cast", "CastLike", "Constant", "ConstantOfShape"),
        *("Reshape", "Flatten", "Expand", "Tile", "Range", "Transpose", "Squeeze", "Unsqueeze"),
        *("Concat", "Split", "Gather", "Slice", "Where", "Shape", "Size", "Identity", "Dropout"),
    )
)
"""Operators that exporters leave on shapes and weights."""
_SPATIAL = frozenset(
    (
        *("Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool", "LRN", "Resize", "Upsample"),
        *("GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "InstanceNormalization"),
        *("GroupNormalization", "DepthToSpace", "SpaceToDepth", "MeanVarianceNormalization"),
    )
)


def _along_three_axes(case: _Official, plain: dict[str, Array]) -> Iterator[tuple[str, _Lifted]]:
    """A case that reads around voxels, whose last axis is repeated until there are three."""
    first, *others = plain
    source = plain[first]
    count = source.ndim - 2
    extents = _three(source.shape[2:], count)
    if case.operator not in _SIZED:
        strides = [
            helper.get_attribute_value(a) for a in case.nodes[0].attribute if a.name == "strides"
        ]
        step = _three(strides[0], count) if strides else (1, 1, 1)
        small = [min(a, b) for a, b in zip(extents, _MOST_EXTENTS, strict=True)]
        extents = tuple(-(-a // b) * b for a, b in zip(small, step, strict=True))
    constants = {}
    for name in others:
        array, at = plain[name], _index(case, name)
        if case.operator in ("Conv", "ConvTranspose") and at == 1:
            array = _cubed(array, count)
        elif case.operator in ("Resize", "Upsample"):
            array = _sampling(array, source.ndim, count)
        constants[name] = array
    nodes = []
    for node in case.nodes:
        moved = NodeProto()
        moved.CopyFrom(node)
        for attribute in moved.attribute:
            value = helper.get_attribute_value(attribute)
            if attribute.name == "axes":
                places = [axis % source.ndim for axis in value]
                places += [*range(source.ndim, 5)] if source.ndim - 1 in places else []
                attribute.ints[:] = places
            elif attribute.name == "pads":
                half = len(value) // 2
                attribute.ints[:] = [*_three(value[:half], half), *_three(value[half:], half)]
            elif attribute.name in _PER_AXIS:
                attribute.ints[:] = _three(value, len(value))
        nodes.append(moved)
    shape = (1, source.shape[1], *extents)
    yield "in 3-D", _Lifted(nodes, shape, {first: False}, constants)


_SIZED = ("Resize", "Upsample", "ConvTranspose")
_PER_AXIS = ("kernel_shape", "strides", "dilations", "output_padding", "output_shape")


def _three(values: Sequence[int], count: int) -> tuple[int, ...]:
    return (*values, *[values[-1]] * (3 - count))


def _cubed(weight: Array, count: int) -> Array:
    for _ in range(3 - count):
        more = np.linspace(0.5, 1.5, weight.shape[-1], dtype=np.float32)
        weight = (weight[..., None] * more).astype(np.float32)
    return weight


def _sampling(array: Array, rank: int, count: int) -> Array:
    """Scales, sizes or regions of a Resize."""
    missing = 3 - count
    if array.size == 2 * rank:
        half = array.size // 2
        parts = [array[:half], array[half:]]
        return np.concatenate([one for p in parts for one in (p, np.repeat(p[-1:], missing))])
    return np.concatenate([array, np.repeat(array[-1:], missing)]) if array.size else array


def _case(name: str, official: _Official, lifted: _Lifted) -> NodeCase | None:
    """The network around a lifted operator; None if its output is no tensor of voxels."""
    output = lifted.nodes[-1].output[0] if lifted.nodes[-1].output[0] == "out" else official.output
    opset = min(NEWEST_OPSET, official.opset) or NEWEST_OPSET
    random = np.random.default_rng(7)
    channels, patch = lifted.shape[1], lifted.shape[2:]
    enter: dict[str, tuple[Array, Array]] = {}
    nodes: list[NodeProto] = []
    arrays = dict(lifted.constants)
    middle: list[NodeProto] = []
    for tensor, is_above in lifted.tensors.items():
        source = f"{tensor}.conv"
        enter[source] = _weights(random, channels, 1)
        if is_above:
            middle.append(helper.make_node("Mul", [source, source], [f"{tensor}.squared"]))
            middle.append(helper.make_node("Add", [f"{tensor}.squared", "a.half"], [tensor]))
            arrays["a.half"] = np.array(0.5, np.float32)
        else:
            middle.append(helper.make_node("Identity", [source], [tensor]))
    middle += lifted.nodes
    inputs = {source: (1, channels, *patch) for source in enter}
    shape = _shape_of(_model(middle, inputs, output, arrays, opset), inputs)
    if shape is None or len(shape) != 5 or shape[0] != 1 or 0 in shape:
        return None
    middle += _restored(output, shape[2:], patch, arrays, opset)
    leave = _weights(random, 1, shape[1])
    for key, (weight, bias) in enter.items():
        arrays |= {f"{key}.w": weight, f"{key}.b": bias}
        nodes.append(helper.make_node("Conv", ["patch", f"{key}.w", f"{key}.b"], [key]))
    whole = arrays | {"leave.w": leave[0], "leave.b": leave[1]}
    last = helper.make_node("Conv", ["restored", "leave.w", "leave.b"], ["translated"])
    [node] = official.nodes[:1]
    dims = {"patch": ("n", 1, "d", "h", "w")}
    used = {name for one in (*nodes, *middle, last) for name in one.input}
    whole = {key: array for key, array in whole.items() if key in used}
    return NodeCase(
        name,
        official.operator,
        {one.name: helper.get_attribute_value(one) for one in node.attribute},
        _model([*nodes, *middle, last], dims, "translated", whole, opset),
        _model(middle, inputs, "restored", arrays, opset),
        patch,
        enter,
        leave,
    )


def _weights(random: Any, out: int, into: int) -> tuple[Array, Array]:
    weight = random.normal(size=(out, into, 1, 1, 1)) / np.sqrt(into)
    return weight.astype(np.float32), (0.3 * random.normal(size=out)).astype(np.float32)


def _model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[Any, ...]],
    output: str,
    arrays: Mapping[str, Array],
    opset: int,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "generator",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    version = 8 if opset < 19 else 10
    opsets = [helper.make_opsetid("", opset)]
    opsets += [
        helper.make_opsetid(domain, 1) for domain in sorted({n.domain for n in nodes if n.domain})
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=version)


def _shape_of(middle: ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the output in ONNX's reference, or in ONNX Runtime if that has none."""
    zeros = {name: np.full(shape, 0.7, np.float32) for name, shape in inputs.items()}
    is_safe = _CRASHING.isdisjoint(node.op_type for node in middle.graph.node)
    for run in (_in_reference, *([_in_onnx_runtime] if is_safe else [])):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                made = run(middle, zeros)
        except Exception:  # noqa: BLE001 - what one cannot compute, the other may
            continue
        is_tensor = isinstance(made, np.ndarray) and made.dtype.kind == "f"
        return made.shape if is_tensor else None
    return None


_CRASHING = frozenset(("DFT", "STFT"))
"""Operators of which invalid inputs end ONNX Runtime's process."""


def _in_onnx_runtime(model: ModelProto, inputs: Mapping[str, Array]) -> Array:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    [made] = session.run(None, dict(inputs))
    return made


def _in_reference(model: ModelProto, inputs: Mapping[str, Array]) -> Array:
    from onnx.reference import ReferenceEvaluator

    [made] = ReferenceEvaluator(model).run(None, dict(inputs))
    return made


def in_onnx_runtime(case: NodeCase) -> Array | None:
    """The network's output in ONNX Runtime; None if it cannot compute it."""
    try:
        return _in_onnx_runtime(case.network, {"patch": case.input_patch()})
    except Exception:  # noqa: BLE001 - its errors have no common class
        return None


def _restored(
    output: str,
    extents: tuple[int, ...],
    patch: tuple[int, ...],
    arrays: dict[str, Array],
    opset: int,
) -> Iterator[NodeProto]:
    """Sample, grow and cut an output to the extents of the patch."""
    factors = [max(1, round(p / e)) for p, e in zip(patch, extents, strict=True)]
    value = output
    if factors != [1, 1, 1]:
        yield _repeated(value, "sampled", factors, arrays, opset)
        value = "sampled"
    differences = [p - e * f for p, e, f in zip(patch, extents, factors, strict=True)]
    if any(one > 0 for one in differences):
        ends = [0] * 7 + [max(0, one) for one in differences]
        yield _with_numbers("Pad", value, "grown", {"pads": ends}, arrays, opset >= 11, mode="edge")
        value = "grown"
    if any(one < 0 for one in differences):
        stops = [one if one < 0 else 1 << 20 for one in differences]
        numbers = {"starts": [0, 0, 0], "ends": stops, "axes": [2, 3, 4]}
        yield _with_numbers("Slice", value, "cut", numbers, arrays, opset >= 10)
        value = "cut"
    yield helper.make_node("Identity", [value], ["restored"])


def _with_numbers(
    kind: str,
    source: str,
    made: str,
    numbers: dict[str, list[int]],
    arrays: dict[str, Array],
    as_inputs: bool,
    **attributes: Any,
) -> NodeProto:
    if not as_inputs:
        return helper.make_node(kind, [source], [made], **attributes, **numbers)
    names = [f"{made}.{key}" for key in numbers]
    arrays |= {
        name: np.array(one, np.int64) for name, one in zip(names, numbers.values(), strict=True)
    }
    return helper.make_node(kind, [source, *names], [made], **attributes)


def _repeated(
    source: str, made: str, factors: list[int], arrays: dict[str, Array], opset: int
) -> NodeProto:
    scales = np.array([1, 1, *factors], np.float32)
    if opset < 9:
        return helper.make_node("Upsample", [source], [made], scales=scales.tolist())
    arrays[f"{made}.scales"] = scales
    if opset < 11:
        kind = "Upsample" if opset == 9 else "Resize"
        return helper.make_node(kind, [source, f"{made}.scales"], [made])
    positions = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return helper.make_node("Resize", [source, "", f"{made}.scales"], [made], **positions)


def supported(operator: str, opset: int) -> bool:
    """Whether an operator exists in an opset."""
    return defs.has(operator, opset)
