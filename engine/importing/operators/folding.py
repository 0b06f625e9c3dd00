"""Constant folding: arithmetic on shapes and weights that do not depend on the patch.

Only the operators listed here are computed, each by NumPy, and only if the result is small."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Any, TypeAlias

import numpy as np

from .operator_graph import Array, Operator, integers

_FEW = 1 << 16
"""Numbers that any result may have; a larger one must be no larger than its inputs together."""

_MOST_ALIKE = 1 << 25
"""Numbers of a result that repeats a single one, as channels of zeros do, which takes no memory."""

_Fold: TypeAlias = Callable[[Operator, Sequence[Array]], Array]

_ELEMENT_TYPES = {1: np.float32, 10: np.float32, 11: np.float32, 16: np.float32, 9: np.bool_}
_INTEGER_TYPES = frozenset([2, 3, 4, 5, 6, 7, 12, 13])
"""ONNX's numbers of types, and what they become here."""

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Pow": np.power,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Min": np.minimum,
    "Max": np.maximum,
}
_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Not": np.logical_not,
    "Reciprocal": np.reciprocal,
}


def _length(array: Array, axis: Any, keepdims: bool) -> Array:
    return np.sqrt(np.sum(array * array, axis=axis, keepdims=keepdims))


_REDUCED: Mapping[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceMin": np.min,
    "ReduceMax": np.max,
    "ReduceL2": _length,
}


def folded(operator: Operator, inputs: Sequence[Array | None]) -> Array:
    """Compute an operator on arrays; raises CheckpointError if it is not supported here."""
    fold = _FOLDS.get(operator.kind)
    if fold is None:
        raise operator.refusal("is not supported on constants")
    arrays = [array for array in inputs if array is not None]
    try:
        with np.errstate(all="ignore"):
            output = np.asarray(fold(operator, arrays))
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise operator.refusal("does not fit its constant inputs") from error
    return output.astype(np.float32, copy=False) if output.dtype.kind == "f" else output


def axes_of(operator: Operator, inputs: Sequence[Array], at: int) -> tuple[int, ...] | None:
    """Return the axes, an attribute or, in later opsets, an input; None for all."""
    if "axes" in operator.attributes:
        return integers(operator.attributes["axes"])
    return integers(inputs[at]) if len(inputs) > at else None


def new_shape(operator: Operator, shape: tuple[int, ...], asked: Sequence[int]) -> tuple[int, ...]:
    """Return the shape after Reshape: 0 keeps an extent, -1 takes the remaining one."""
    if operator.attributes.get("allowzero") and 0 in asked:
        raise operator.refusal("creates an empty tensor, which is not supported")
    kept = [shape[at] if extent == 0 else extent for at, extent in enumerate(asked)]
    if kept.count(-1) == 1:
        known = -prod(kept)
        if known and prod(shape) % known == 0:
            kept[kept.index(-1)] = prod(shape) // known
    if prod(kept) != prod(shape) or min(kept, default=1) < 0:
        raise operator.refusal(f"reshapes {list(shape)} to {list(asked)}, which does not fit")
    return tuple(kept)


def _limited(
    operator: Operator, shape: Sequence[int], inputs: Sequence[Array] = (), most: int = _FEW
) -> tuple[int, ...]:
    most = max(most, sum(held(array) for array in inputs))
    if min(shape, default=1) < 0 or prod(shape) > most:
        raise operator.refusal("creates more numbers than any generator needs")
    return tuple(int(extent) for extent in shape)


def held(array: Array) -> int:
    """Return how many numbers an array holds in memory; one that repeats them holds fewer."""
    pairs = zip(array.shape, array.strides, strict=True)
    return prod(extent for extent, stride in pairs if stride)


def _check_broadcast(operator: Operator, inputs: Sequence[Array]) -> None:
    _limited(operator, np.broadcast_shapes(*(array.shape for array in inputs)), inputs)


def _binary(operator: Operator, inputs: Sequence[Array]) -> Array:
    first, *others = inputs
    _check_broadcast(operator, inputs)
    for second in others:
        first = _BINARY[operator.kind](first, second)
    return first


def _remainder(operator: Operator, inputs: Sequence[Array]) -> Array:
    first, second = inputs
    _check_broadcast(operator, inputs)
    return (np.fmod if operator.attributes.get("fmod") else np.mod)(first, second)


def _divided(operator: Operator, inputs: Sequence[Array]) -> Array:
    first, second = inputs
    _check_broadcast(operator, inputs)
    if first.dtype.kind != "i":
        return first / second
    quotient = np.abs(first) // np.abs(second)
    return np.where((first < 0) == (second < 0), quotient, -quotient)  # towards zero


def _reduced(operator: Operator, inputs: Sequence[Array]) -> Array:
    axes = axes_of(operator, inputs, 1)
    if not axes and operator.attributes.get("noop_with_empty_axes"):
        return inputs[0]
    keeps = bool(operator.attributes.get("keepdims", 1))
    return _REDUCED[operator.kind](inputs[0], axis=axes or None, keepdims=keeps)


def _cast(operator: Operator, inputs: Sequence[Array]) -> Array:
    to = operator.attributes["to"]
    if to in _INTEGER_TYPES:
        return np.trunc(inputs[0]).astype(np.int64)
    return inputs[0].astype(_ELEMENT_TYPES[to])  # type: ignore[index]


def _cast_like(_: Operator, inputs: Sequence[Array]) -> Array:
    whole = inputs[1].dtype.kind == "i"
    return (np.trunc(inputs[0]) if whole else inputs[0]).astype(inputs[1].dtype)


def _constant(operator: Operator, _: Sequence[Array]) -> Array:
    match operator.attributes:
        case {"value": np.ndarray() as array}:
            return array
        case {"value_float": number} | {"value_floats": number}:
            return np.array(number, np.float32)
        case {"value_int": number} | {"value_ints": number}:
            return np.array(number, np.int64)
        case _:
            raise operator.refusal("contains no number")


def _filled(operator: Operator, inputs: Sequence[Array]) -> Array:
    value = np.asarray(operator.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
    shape = _limited(operator, integers(inputs[0]), most=_MOST_ALIKE)
    return np.broadcast_to(value[0], shape)


def _reshape(operator: Operator, inputs: Sequence[Array]) -> Array:
    asked = operator.attributes.get("shape", inputs[-1])
    return inputs[0].reshape(new_shape(operator, inputs[0].shape, integers(asked)))


def _expand(operator: Operator, inputs: Sequence[Array]) -> Array:
    shape = np.broadcast_shapes(inputs[0].shape, integers(inputs[1]))
    most = _MOST_ALIKE if held(inputs[0]) == 1 else _FEW
    return np.broadcast_to(inputs[0], _limited(operator, shape, inputs, most))


def _tile(operator: Operator, inputs: Sequence[Array]) -> Array:
    repeats = integers(inputs[1])
    _limited(operator, [a * b for a, b in zip(inputs[0].shape, repeats, strict=True)])
    return np.tile(inputs[0], repeats)


def _range(operator: Operator, inputs: Sequence[Array]) -> Array:
    start, stop, step = (array.reshape(()).item() for array in inputs)
    count = _limited(operator, [max(0, ceil((stop - start) / step))])[0]
    return (start + step * np.arange(count)).astype(inputs[0].dtype)


def _transpose(operator: Operator, inputs: Sequence[Array]) -> Array:
    order = operator.attributes.get("perm")
    return inputs[0].transpose(None if order is None else integers(order))


def _squeeze(operator: Operator, inputs: Sequence[Array]) -> Array:
    return np.squeeze(inputs[0], axes_of(operator, inputs, 1))


def _unsqueeze(operator: Operator, inputs: Sequence[Array]) -> Array:
    return np.expand_dims(inputs[0], axes_of(operator, inputs, 1) or ())


def _concat(operator: Operator, inputs: Sequence[Array]) -> Array:
    total = sum(array.size for array in inputs)
    _limited(operator, [total], inputs)
    return np.concatenate(inputs, integers(operator.attributes["axis"])[0])


def _gather(operator: Operator, inputs: Sequence[Array]) -> Array:
    axis = integers(operator.attributes.get("axis", 0))[0]
    size = inputs[1].size * inputs[0].size // max(1, inputs[0].shape[axis])
    _limited(operator, [size], inputs)
    return inputs[0].take(inputs[1], axis)


def _slice(operator: Operator, inputs: Sequence[Array]) -> Array:
    array = inputs[0]
    index = [slice(None)] * array.ndim
    for axis, start, stop, step in slice_places(operator, inputs, array.ndim):
        end = None if step < 0 and stop < -array.shape[axis] else stop
        index[axis] = slice(start, end, step)
    return array[tuple(index)]


def slice_places(
    operator: Operator, inputs: Sequence[Any], rank: int
) -> list[tuple[int, int, int, int]]:
    """Return axis, start, stop and step of each axis of a Slice."""
    if "starts" in operator.attributes:
        starts, stops = (integers(operator.attributes[key]) for key in ("starts", "ends"))
        axes = integers(operator.attributes.get("axes", tuple(range(len(starts)))))
        steps = (1,) * len(starts)
    else:
        starts, stops = integers(inputs[1]), integers(inputs[2])
        axes = integers(inputs[3]) if len(inputs) > 3 else tuple(range(len(starts)))
        steps = integers(inputs[4]) if len(inputs) > 4 else (1,) * len(starts)
    if not len(starts) == len(stops) == len(axes) == len(steps) or any(
        not -rank <= axis < rank for axis in axes
    ):
        raise operator.refusal("does not state where to cut each axis")
    places = zip(axes, starts, stops, steps, strict=True)
    return [(axis % rank, start, stop, step) for axis, start, stop, step in places]


def _where(operator: Operator, inputs: Sequence[Array]) -> Array:
    _check_broadcast(operator, inputs)
    return np.where(*inputs)


def shape_of(operator: Operator, shape: tuple[int, ...]) -> Array:
    """Return the result of Shape: the whole shape or, since opset 15, a part of it."""
    start, end = (operator.attributes.get(key) for key in ("start", "end"))
    if not isinstance(start, int | None) or not isinstance(end, int | None):
        raise operator.refusal("has limits that are not numbers")
    return np.array(shape[start:end], np.int64)


def _shape(operator: Operator, inputs: Sequence[Array]) -> Array:
    return shape_of(operator, inputs[0].shape)


def _product(operator: Operator, inputs: Sequence[Array]) -> Array:
    first, second = inputs
    rows = first.shape[:-1] if first.ndim > 1 else ()
    columns = second.shape[-1:] if second.ndim > 1 else ()
    if second.ndim > _MATRIX or (first.ndim > _MATRIX and second.ndim > 1):
        raise operator.refusal("multiplies more than two matrices, which is not supported")
    _limited(operator, (*rows, *columns), inputs)
    return first @ second


_MATRIX = 2


def _same(_: Operator, inputs: Sequence[Array]) -> Array:
    return inputs[0]


def _unary(operator: Operator, inputs: Sequence[Array]) -> Array:
    return _UNARY[operator.kind](inputs[0])


_FOLDS: Mapping[str, _Fold] = {
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_REDUCED, _reduced),
    "Div": _divided,
    "Mod": _remainder,
    "MatMul": _product,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Reshape": _reshape,
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Where": _where,
    "Shape": _shape,
    "Identity": _same,
    "Dropout": _same,
}

FOLDABLE = frozenset(_FOLDS)
"""Operators that are computed if they do not depend on the patch."""
