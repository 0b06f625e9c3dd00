"""ONNX's cases lifted to five axes: their tensor between others, or along three axes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper
from support.onnx_official import Array, OfficialCase, copied, graph_model, shape_of


@dataclass(frozen=True)
class Lifted:
    """A case in five axes.

    way: how it was lifted. shape: of its tensors. tensors: names of the inputs that are tensors,
    and whether they are above zero. constants: the other inputs. output: name of the output.
    """

    way: str
    nodes: tuple[NodeProto, ...]
    shape: tuple[int, ...]
    tensors: Mapping[str, bool]
    constants: Mapping[str, Array]
    output: str


@dataclass(frozen=True)
class _Place:
    """Extents of the axes before and after those of a case."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    def axes(self, axes: Any) -> list[int]:
        """Axes of the case among all."""
        named = np.atleast_1d(axes)
        moved = np.where(named < 0, named - len(self.after), named + len(self.before))
        return [int(axis) for axis in moved]

    def between(self, numbers: Sequence[int], other: int) -> Array:
        """Numbers of each axis, with another one for the axes around."""
        others = [[other] * len(one) for one in (self.before, self.after)]
        return np.array([*others[0], *numbers, *others[1]], np.int64)


_MOST_NUMBERS = 2048
_MOST_EXTENTS = (6, 12, 9)
_TO_THE_END = 1 << 40

_REDUCING = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
)
_MEANINGS: Mapping[str, Mapping[int, str]] = {
    **{key: {1: "axes"} for key in (*_REDUCING, "Squeeze", "Unsqueeze", "CumSum", "CumProd")},
    "Slice": {3: "axes"},
    "Pad": {1: "pads", 3: "axes"},
    "Reshape": {1: "extents"},
    "Expand": {1: "extents"},
    "Tile": {1: "repeats"},
}
"""Inputs that count axes or voxels, by operator and index."""

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
"""Operators whose tensors are tried both ways, of any sign and above zero."""

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
_SIZED = ("Resize", "Upsample", "ConvTranspose")
"""Operators whose numbers fit the extents of their case alone."""
_PER_AXIS = ("kernel_shape", "strides", "dilations", "output_padding", "output_shape")
_CHANNELS_LAST = "of channels last"


def lifts(case: OfficialCase) -> Iterator[Lifted]:
    """Each way to lift a case."""
    read = {name: _as_read(value) for name, value in case.inputs.items()}
    plain = {name: array for name, array in read.items() if array is not None}
    if len(plain) < len(read):
        return  # sequences, texts and optional values
    if case.is_single and case.operator in _ARITHMETIC and (folded := _folded(case, plain)):
        yield folded
    if not plain:
        return
    first = next(iter(plain))
    if case.operator in _OF_ANY_TYPE:
        plain[first] = plain[first].astype(np.float32)
    if plain[first].dtype != np.float32 or plain[first].size == 0:
        return
    if case.operator in _SPATIAL and plain[first].ndim in (3, 4, 5):
        yield _along_three_axes(case, plain)
        return
    for place in _places(plain[first].ndim):
        for way, roles in _roles(case, plain):
            lifted = _ended(case, _placed(case, plain, place, roles))
            if place.name == _CHANNELS_LAST:
                lifted = _channels_last(lifted)
            name = f"{place.name}, {way}" if way else place.name
            yield replace(lifted, way=name)
            if case.operator in _ABOVE_ZERO:
                above = dict.fromkeys(lifted.tensors, True)
                yield replace(lifted, way=f"{name}, above zero", tensors=above)


def _as_read(value: Any) -> Array | None:
    """An input as this program reads it: numbers of single precision, whole ones, truth values."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        return None
    kinds = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
    return value.astype(kinds[value.dtype.kind])


def _folded(case: OfficialCase, plain: Mapping[str, Array]) -> Lifted | None:
    """An operator on constants, whose results are added to the channels of a tensor."""
    cast = helper.make_node("Cast", [case.output], ["lifted.numbers"], to=TensorProto.FLOAT)
    nodes = [*case.nodes, cast]
    made = shape_of(graph_model(nodes, {}, "lifted.numbers", plain, case.opset), {})
    count = 0 if made is None else int(np.prod(made))
    if not 0 < count <= _MOST_NUMBERS:
        return None
    nodes.append(
        helper.make_node("Reshape", ["lifted.numbers", "lifted.per_channel"], ["lifted.vector"])
    )
    nodes.append(helper.make_node("Add", ["tensor", "lifted.vector"], ["lifted.sum"]))
    constants = {**plain, "lifted.per_channel": np.array([1, count, 1, 1, 1])}
    shape = (1, count, 2, 3, 4)
    return Lifted("of constants", tuple(nodes), shape, {"tensor": False}, constants, "lifted.sum")


def _places(rank: int) -> Iterator[_Place]:
    """Places of a case's axes among five."""
    others = (1, 3, 4, 2, 5)
    if 0 < rank <= 5:
        yield _Place("of batches", (), others[rank:])
    if 0 < rank < 5:
        yield _Place("of channels", (1,), (4, 3, 2, 5)[: 4 - rank])
    if rank < 4:
        yield _Place("of voxels", others[: 5 - rank], ())
    if 0 < rank <= 5:
        yield _Place(_CHANNELS_LAST, others[: 5 - rank], ())


def _roles(case: OfficialCase, plain: Mapping[str, Array]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield roles of the inputs besides the first: the way's name, and a role for each."""
    first, *others = plain
    joined = [name for name in others if plain[name].dtype == np.float32]
    if case.operator not in _JOINING or not joined:
        yield "", {first: "tensor"}
        return
    if all(plain[name].shape == plain[first].shape for name in joined):
        yield "with tensors", dict.fromkeys((first, *joined), "tensor")
    yield "with numbers", {first: "tensor"} | dict.fromkeys(joined, "number")
    yield "with numbers per channel", {first: "tensor"} | dict.fromkeys(joined, "channels")
    yield "with constants", {first: "tensor"}
    if len(joined) == 1:
        yield "after a number", {first: "number", joined[0]: "tensor"}
        yield "after numbers per channel", {first: "channels", joined[0]: "tensor"}


def _placed(
    case: OfficialCase, plain: Mapping[str, Array], place: _Place, roles: Mapping[str, str]
) -> Lifted:
    """A case whose axes stand at a place."""
    first = next(iter(plain))
    shape = (1, *(*place.before, *plain[first].shape, *place.after)[1:])
    constants = {}
    for name, array in plain.items():
        match roles.get(name, "constant"):
            case "tensor":
                pass
            case "number":
                constants[name] = array.reshape(-1)[:1].reshape(())
            case "channels":
                constants[name] = np.resize(array, (shape[1], 1, 1, 1))
            case _:
                constants[name] = _moved(case, name, array, place)
    nodes = [copied(node) for node in case.nodes]
    if case.is_single:
        for attribute in nodes[0].attribute:
            _move_attribute(attribute, place)
        if case.operator == "Slice" and not any(nodes[0].input[3:4]):
            _state_leading_axes(nodes[0], constants, place)
    tensors = {name: False for name, role in roles.items() if role == "tensor"}
    return Lifted("", tuple(nodes), shape, tensors, constants, case.output)


def _moved(case: OfficialCase, name: str, array: Array, place: _Place) -> Array:
    """A constant input that counts axes, extents or voxels, of the lifted tensor."""
    match _MEANINGS.get(case.operator, {}).get(case.index(name)):
        case "axes":
            return np.array(place.axes(array), np.int64)
        case "extents" if case.is_single:
            return np.array([*(1, *place.before[1:])[: len(place.before)], *array, *place.after])
        case "repeats":
            return place.between(array, 1)
        case "pads" if not any(case.nodes[0].input[3:4]):
            half = len(array) // 2
            return np.concatenate([place.between(one, 0) for one in (array[:half], array[half:])])
        case _:
            is_map = array.dtype == np.float32 and array.ndim
            return array.reshape(array.shape + (1,) * len(place.after)) if is_map else array


def _move_attribute(attribute: AttributeProto, place: _Place) -> None:
    value = helper.get_attribute_value(attribute)
    match attribute.name:
        case "axis" | "batch_axis" | "time_axis":
            [attribute.i] = place.axes(value)
        case "axes":
            attribute.ints[:] = place.axes(value)
        case "perm":
            first = len(place.before)
            moved = [*range(first), *(first + one for one in value)]
            attribute.ints[:] = [*moved, *range(len(moved), len(moved) + len(place.after))]
        case _:
            pass


def _state_leading_axes(node: NodeProto, constants: dict[str, Array], place: _Place) -> None:
    """Cut nothing of the axes before those of a Slice that names none."""
    for at, whole in ((1, 0), (2, _TO_THE_END), (4, 1)):
        if any(node.input[at : at + 1]):
            name = node.input[at]
            before = np.full(len(place.before), whole)
            constants[name] = np.concatenate([before, constants[name]])


def _ended(case: OfficialCase, lifted: Lifted) -> Lifted:
    """A case whose output has five axes in order and single precision."""
    node, made, constants = lifted.nodes[-1], lifted.output, dict(lifted.constants)
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    ending: list[NodeProto] = []
    if case.operator in ("Cast", "CastLike"):
        ending = [helper.make_node("Cast", [made], ["lifted.end"], to=TensorProto.FLOAT)]
    elif case.is_single and case.operator == "Transpose":
        back = np.argsort(attributes.get("perm", range(len(lifted.shape))[::-1])).tolist()
        ending = [helper.make_node("Relu", [made], ["lifted.moved"])]
        ending.append(helper.make_node("Transpose", ["lifted.moved"], ["lifted.end"], perm=back))
    elif case.is_single and attributes.get("keepdims") == 0:
        named = attributes.get("axes", [attributes["axis"]] if "axis" in attributes else [])
        if any(node.input[1:2]):
            named = constants[node.input[1]]
        constants["lifted.kept"] = np.array(
            [int(axis) % len(lifted.shape) for axis in named], np.int64
        )
        ending = (
            [helper.make_node("Unsqueeze", [made, "lifted.kept"], ["lifted.end"])]
            if len(named)
            else []
        )
    if not ending:
        return lifted
    nodes = (*lifted.nodes, *ending)
    return replace(lifted, nodes=nodes, constants=constants, output="lifted.end")


def _channels_last(lifted: Lifted) -> Lifted:
    """A case whose tensors have their channels last, between transpositions."""
    [*others, channels] = lifted.shape[1:]
    there = [
        helper.make_node("Transpose", [f"{name}.first"], [name], perm=[0, 2, 3, 4, 1])
        for name in lifted.tensors
    ]
    back = helper.make_node("Transpose", [lifted.output], ["lifted.back"], perm=[0, 4, 1, 2, 3])
    return replace(
        lifted,
        nodes=(*there, *lifted.nodes, back),
        shape=(1, channels, *others),
        tensors={f"{name}.first": above for name, above in lifted.tensors.items()},
        output="lifted.back",
    )


def _along_three_axes(case: OfficialCase, plain: Mapping[str, Array]) -> Lifted:
    """A case that reads around voxels, whose last axis is repeated until there are three."""
    first, *others = plain
    rank = plain[first].ndim
    [node] = nodes = [copied(one) for one in case.nodes][:1]
    extents = _three(plain[first].shape[2:])
    if case.operator not in _SIZED:
        strides = [one.ints for one in node.attribute if one.name == "strides"]
        steps = _three(strides[0]) if strides else (1, 1, 1)
        small = [min(pair) for pair in zip(extents, _MOST_EXTENTS, strict=True)]
        extents = tuple(-(-a // b) * b for a, b in zip(small, steps, strict=True))
    constants = {}
    for name in others:
        array = plain[name]
        if case.operator in ("Conv", "ConvTranspose") and case.index(name) == 1:
            array = _cubed(array)
        elif case.operator in ("Resize", "Upsample") and array.size:
            halves = np.split(array, 2) if array.size == 2 * rank else [array]
            array = np.concatenate([np.append(one, [one[-1]] * (5 - rank)) for one in halves])
            array = array.astype(plain[name].dtype)
        constants[name] = array
    for attribute in node.attribute:
        match attribute.name:
            case "axes":
                places = [axis % rank for axis in attribute.ints]
                attribute.ints[:] = places + [*range(rank, 5)] * (rank - 1 in places)
            case "pads":
                ends = np.split(np.array(attribute.ints), 2)
                attribute.ints[:] = [one for end in ends for one in _three(end)]
            case name if name in _PER_AXIS:
                attribute.ints[:] = _three(attribute.ints)
            case _:
                pass
    nodes += case.nodes[1:]
    shape = (1, plain[first].shape[1], *extents)
    return Lifted("in 3-D", tuple(nodes), shape, {first: False}, constants, case.output)


def _three(values: Sequence[Any]) -> tuple[Any, ...]:
    return (*values, *[values[-1]] * (3 - len(values)))


def _cubed(weight: Array) -> Array:
    """A weight along three axes."""
    while weight.ndim < 5:
        more = np.linspace(0.5, 1.5, weight.shape[-1], dtype=np.float32)
        weight = weight[..., None] * more
    return weight.astype(np.float32)
