"""Constant folding: arithmetic on shapes and weights that do not depend on the patch.

Only the operators listed here are computed, each by NumPy, and only if the result is small."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Any, TypeAlias

import numpy as np

from .operator_graph import Array, ConstantInputs, Operator, integers

_FEW = 1 << 16
"""Numbers that any result may have; a larger one must be no larger than its inputs together."""

_MOST_ALIKE = 1 << 25
"""Numbers of a result that repeats a single one, as channels of zeros do, which takes no memory."""

_Fold: TypeAlias = Callable[[Operator, ConstantInputs], Array]

_FLOATS = {1: np.float32, 10: np.float16, 11: np.float32}
_WHOLE = dict(
    zip(
        (2, 3, 4, 5, 6, 7, 12, 13),
        (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64, np.uint32, np.uint64),
        strict=True,
    )
)
_BOOLEAN, _BFLOAT16 = 9, 16
"""ONNX's numbers of types that a cast computes."""

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
    "Xor": np.logical_xor,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "Sum": np.add,
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
    "Sign": np.sign,
    "Round": np.rint,
    "Exp": np.exp,
    "Log": np.log,
    "Tanh": np.tanh,
    "Relu": lambda array: np.maximum(array, 0),
    "Sigmoid": lambda array: 0.5 + 0.5 * np.tanh(0.5 * array),
    "Softplus": lambda array: np.logaddexp(array, 0),
}


def _distance(array: Array, axis: Any, keepdims: bool) -> Array:
    return np.sum(np.abs(array), axis=axis, keepdims=keepdims)


def _squares(array: Array, axis: Any, keepdims: bool) -> Array:
    return np.sum(array * array, axis=axis, keepdims=keepdims)


def _length(array: Array, axis: Any, keepdims: bool) -> Array:
    return np.sqrt(_squares(array, axis, keepdims))


_REDUCED: Mapping[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceMin": np.min,
    "ReduceMax": np.max,
    "ReduceL1": _distance,
    "ReduceL2": _length,
    "ReduceSumSquare": _squares,
}


def folded(operator: Operator, arrays: Sequence[Array | None]) -> Array:
    """Compute one of FOLDABLE on arrays; raises CheckpointError if they do not fit it."""
    try:
        with np.errstate(all="ignore"):
            output = np.asarray(_FOLDS[operator.kind](operator, ConstantInputs(operator, arrays)))
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise operator.refusal("does not fit its constant inputs") from error
    return output.astype(np.float32, copy=False) if output.dtype.kind == "f" else output


def axes_of(operator: Operator, named: Array | None) -> tuple[int, ...] | None:
    """Return the axes, an attribute or, in later opsets, an input; None for all.

    named: the input; None if it is left out.
    """
    if "axes" in operator.attributes:
        return integers(operator.attributes["axes"])
    return None if named is None else integers(named)


def reduced_axes(operator: Operator, named: Array | None) -> tuple[int, ...] | None:
    """Return the axes that a reduction takes together; None for all, none for each number alone."""
    keeps_all = bool(operator.attributes.get("noop_with_empty_axes"))
    return axes_of(operator, named) or (() if keeps_all else None)


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
    operator: Operator, shape: Sequence[int], arrays: Sequence[Array] = (), most: int = _FEW
) -> tuple[int, ...]:
    most = max(most, sum(held(array) for array in arrays))
    if min(shape, default=1) < 0 or prod(shape) > most:
        raise operator.refusal("creates more numbers than any generator needs")
    return tuple(int(extent) for extent in shape)


def held(array: Array) -> int:
    """Return how many numbers an array holds in memory; one that repeats them holds fewer."""
    pairs = zip(array.shape, array.strides, strict=True)
    return prod(extent for extent, stride in pairs if stride)


def _broadcast(operator: Operator, inputs: ConstantInputs) -> list[Array]:
    """Return all inputs, which together make no larger array than they may."""
    arrays = inputs.all()
    _limited(operator, np.broadcast_shapes(*(array.shape for array in arrays)), arrays)
    return arrays


def _binary(operator: Operator, inputs: ConstantInputs) -> Array:
    first, *others = _broadcast(operator, inputs)
    for second in others:
        first = _BINARY[operator.kind](first, second)
    return first


def _remainder(operator: Operator, inputs: ConstantInputs) -> Array:
    first, second = _broadcast(operator, inputs)
    return (np.fmod if operator.attributes.get("fmod") else np.mod)(first, second)


def _divided(operator: Operator, inputs: ConstantInputs) -> Array:
    first, second = _broadcast(operator, inputs)
    if first.dtype.kind != "i":
        return first / second
    quotient = np.abs(first) // np.abs(second)
    return np.where((first < 0) == (second < 0), quotient, -quotient)  # towards zero


def _reduced(operator: Operator, inputs: ConstantInputs) -> Array:
    axes = reduced_axes(operator, inputs.optional(1))
    keeps = bool(operator.attributes.get("keepdims", 1))
    return _REDUCED[operator.kind](inputs[0], axis=axes, keepdims=keeps)


def _cast(operator: Operator, inputs: ConstantInputs) -> Array:
    to, array = operator.integer("to", 0), inputs[0]
    if to == _BOOLEAN:
        return array.astype(np.bool_)
    if to == _BFLOAT16:
        return _bfloat16(array.astype(np.float32))
    if to in _FLOATS:
        return array.astype(_FLOATS[to])
    if to not in _WHOLE:
        raise operator.refusal("converts numbers to a type that is not supported")
    whole = np.trunc(array).astype(np.int64)
    if (whole.astype(_WHOLE[to]) != whole).any():
        raise operator.refusal("converts numbers to a type that does not hold them")
    return whole


def _bfloat16(array: Array) -> Array:
    """Round to the upper half of each number's bits, ties to even."""
    bits = array.view(np.uint32)
    upper = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return np.where(np.isnan(array), array, upper.view(np.float32))


def _cast_like(_: Operator, inputs: ConstantInputs) -> Array:
    whole = inputs[1].dtype.kind == "i"
    return (np.trunc(inputs[0]) if whole else inputs[0]).astype(inputs[1].dtype)


def _constant(operator: Operator, _: ConstantInputs) -> Array:
    match operator.attributes:
        case {"value": np.ndarray() as array}:
            return array
        case {"value_float": number} | {"value_floats": number}:
            return np.array(number, np.float32)
        case {"value_int": number} | {"value_ints": number}:
            return np.array(number, np.int64)
        case _:
            raise operator.refusal("contains no number")


def _filled(operator: Operator, inputs: ConstantInputs) -> Array:
    value = np.asarray(operator.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
    shape = _limited(operator, integers(inputs[0]), most=_MOST_ALIKE)
    return np.broadcast_to(value[0], shape)


def _reshape(operator: Operator, inputs: ConstantInputs) -> Array:
    asked = operator.attributes.get("shape", inputs.optional(1))
    return inputs[0].reshape(new_shape(operator, inputs[0].shape, integers(asked)))


def _flatten(operator: Operator, inputs: ConstantInputs) -> Array:
    axis, shape = operator.integer("axis", 1), inputs[0].shape
    return inputs[0].reshape(prod(shape[:axis]), prod(shape[axis:]))


def _clip(operator: Operator, inputs: ConstantInputs) -> Array:
    low, high = (
        operator.attributes.get(name, inputs.optional(at)) for at, name in ((1, "min"), (2, "max"))
    )
    array = inputs[0] if low is None else np.maximum(inputs[0], low)
    return array if high is None else np.minimum(array, high)


def _expand(operator: Operator, inputs: ConstantInputs) -> Array:
    shape = np.broadcast_shapes(inputs[0].shape, integers(inputs[1]))
    most = _MOST_ALIKE if held(inputs[0]) == 1 else _FEW
    return np.broadcast_to(inputs[0], _limited(operator, shape, inputs.all(), most))


def _tile(operator: Operator, inputs: ConstantInputs) -> Array:
    repeats = integers(inputs[1])
    _limited(operator, [a * b for a, b in zip(inputs[0].shape, repeats, strict=True)])
    return np.tile(inputs[0], repeats)


def _range(operator: Operator, inputs: ConstantInputs) -> Array:
    start, stop, step = (array.reshape(()).item() for array in inputs.all())
    count = _limited(operator, [max(0, ceil((stop - start) / step))])[0]
    return (start + step * np.arange(count)).astype(inputs[0].dtype)


def _transpose(operator: Operator, inputs: ConstantInputs) -> Array:
    order = operator.attributes.get("perm")
    return inputs[0].transpose(None if order is None else integers(order))


def _squeeze(operator: Operator, inputs: ConstantInputs) -> Array:
    return np.squeeze(inputs[0], axes_of(operator, inputs.optional(1)))


def _unsqueeze(operator: Operator, inputs: ConstantInputs) -> Array:
    return np.expand_dims(inputs[0], axes_of(operator, inputs.optional(1)) or ())


def _concat(operator: Operator, inputs: ConstantInputs) -> Array:
    arrays = inputs.all()
    _limited(operator, [sum(array.size for array in arrays)], arrays)
    return np.concatenate(arrays, integers(operator.attributes["axis"])[0])


def _gather(operator: Operator, inputs: ConstantInputs) -> Array:
    axis = integers(operator.attributes.get("axis", 0))[0]
    size = inputs[1].size * inputs[0].size // max(1, inputs[0].shape[axis])
    _limited(operator, [size], inputs.all())
    return inputs[0].take(inputs[1], axis)


def _slice(operator: Operator, inputs: ConstantInputs) -> Array:
    array = inputs[0]
    index = [slice(None)] * array.ndim
    for axis, start, stop, step in slice_places(operator, inputs, array.ndim):
        end = None if step < 0 and stop < -array.shape[axis] else stop
        index[axis] = slice(start, end, step)
    return array[tuple(index)]


def slice_places(
    operator: Operator, inputs: ConstantInputs, rank: int
) -> list[tuple[int, int, int, int]]:
    """Return axis, start, stop and step of each axis of a Slice; its first input is not read."""
    axes, steps = inputs.optional(3), inputs.optional(4)
    if "starts" in operator.attributes:
        starts, stops = (operator.integers(key, ()) for key in ("starts", "ends"))
        axes = operator.attributes.get("axes")
    else:
        starts, stops = integers(inputs[1]), integers(inputs[2])
    each = tuple(range(len(starts))) if axes is None else integers(axes)
    strides = (1,) * len(starts) if steps is None else integers(steps)
    places = [axis % rank for axis in each if -rank <= axis < rank]
    if not len(starts) == len(stops) == len(each) == len(strides) == len(set(places)):
        raise operator.refusal("does not state where to cut each axis")
    return [*zip(places, starts, stops, strides, strict=True)]


def _where(operator: Operator, inputs: ConstantInputs) -> Array:
    condition, first, second = _broadcast(operator, inputs)
    return np.where(condition, first, second)


def shape_of(operator: Operator, shape: tuple[int, ...]) -> Array:
    """Return the result of Shape: the whole shape or, since opset 15, a part of it."""
    start, end = (operator.attributes.get(key) for key in ("start", "end"))
    if not isinstance(start, int | None) or not isinstance(end, int | None):
        raise operator.refusal("has limits that are not numbers")
    return np.array(shape[start:end], np.int64)


def _shape(operator: Operator, inputs: ConstantInputs) -> Array:
    return shape_of(operator, inputs[0].shape)


def _size(_: Operator, inputs: ConstantInputs) -> Array:
    return np.array(inputs[0].size, np.int64)


def _product(operator: Operator, inputs: ConstantInputs) -> Array:
    first, second = inputs[0], inputs[1]
    rows = first.shape[:-1] if first.ndim > 1 else ()
    columns = second.shape[-1:] if second.ndim > 1 else ()
    if second.ndim > _MATRIX or (first.ndim > _MATRIX and second.ndim > 1):
        raise operator.refusal("multiplies more than two matrices, which is not supported")
    _limited(operator, (*rows, *columns), inputs.all())
    return first @ second


_MATRIX = 2


def _same(_: Operator, inputs: ConstantInputs) -> Array:
    return inputs[0]


def _unary(operator: Operator, inputs: ConstantInputs) -> Array:
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
    "Flatten": _flatten,
    "Clip": _clip,
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
    "Size": _size,
    "Identity": _same,
    "Dropout": _same,
}

FOLDABLE = frozenset(_FOLDS)
"""Operators that are computed if they do not depend on the patch."""
