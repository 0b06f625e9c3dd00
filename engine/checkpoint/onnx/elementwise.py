"""Operators on one number at a time, as layers; sums and products may be parts of a norm."""

from collections.abc import Callable, Mapping

import numpy as np

from ...network.layers import Add, Clip, Layer, Multiply, Relu, Softplus, Subtract
from .activations import rounded
from .builder import Builder
from .file import Operator
from .norms import (
    finished,
    inverse,
    root,
    scaled,
    shifted,
    single,
    spread_over,
    squared,
    subtracted,
    summed,
)
from .sampling import check_alike
from .values import Above, GraphTensor, GraphValue


def clip(builder: Builder, operator: Operator) -> GraphTensor:
    """Clip, whose ends were attributes before opset 11."""
    ends: list[float | None] = []
    for at, name in ((1, "min"), (2, "max")):
        array, attribute = builder.array(operator, at), operator.attributes.get(name)
        end = single(array) if array is not None else attribute
        if not isinstance(end, int | float | None) or (array is not None and end is None):
            raise operator.refusal("has ends that are no single numbers")
        ends.append(rounded(end) if end is not None and abs(end) < _OPEN else None)
    source = builder.tensor(operator)
    if ends == [0.0, None]:
        return builder.add(operator, Relu(), source)
    return builder.add(operator, Clip(*ends), source) if ends != [None, None] else source


_OPEN = 3e38
"""Ends that no float32 reaches."""


def bound(builder: Builder, operator: Operator) -> GraphTensor:
    """Max and Min of a tensor and a number."""
    values = [builder.value(operator, at) for at in range(len(operator.inputs))]
    tensors = [value for value in values if isinstance(value, GraphTensor)]
    ends = [single(value) for value in values if isinstance(value, np.ndarray)]
    if len(tensors) != 1 or len(ends) != 1 or ends[0] is None:
        raise operator.refusal("compares tensors, which is not supported")
    end = rounded(ends[0])
    layer = Clip(end, None) if operator.kind == "Max" else Clip(None, end)
    return builder.add(operator, Relu() if layer == Clip(0.0, None) else layer, tensors[0])


def pass_on(builder: Builder, operator: Operator) -> GraphValue:
    """Identity, Cast between floating-point types, and Dropout, which acts in training alone."""
    if operator.kind == "Dropout":
        training = builder.array(operator, 2)
        if training is not None and training.any():
            raise operator.refusal("is in training; export the network in eval mode")
    if operator.kind == "Cast" and operator.attributes.get("to") not in _FLOATING:
        raise operator.refusal("makes whole numbers of a tensor, which is not supported")
    value = builder.value(operator, 0)
    if value is None:
        raise operator.refusal("reads nothing")
    return value


_FLOATING = (1, 10, 11, 16)


def join(builder: Builder, operator: Operator) -> GraphValue:
    """Add, Sum, Sub, Mul and Div."""
    values = [builder.value(operator, at) for at in range(len(operator.inputs))]
    inputs = [value for value in values if value is not None]
    if len(inputs) < 2:
        raise operator.refusal("joins fewer than two tensors")
    made = inputs[0]
    for value in inputs[1:]:
        made = _JOINS[operator.kind](builder, operator, made, value)
    return made


def _add(builder: Builder, operator: Operator, first: GraphValue, second: GraphValue) -> GraphValue:
    if isinstance(first, np.ndarray):
        first, second = second, first
    if isinstance(second, np.ndarray):
        amount = single(second)
        if amount is not None and (found := spread_over(first, amount)):
            return found
        return _affine(builder, operator, first, 1.0, second)
    for one, other in ((first, second), (second, first)):
        if found := summed(builder, operator, one, other):
            return found
    return _both(builder, operator, Add(), first, second)


def _subtract(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue:
    found = subtracted(first, second) or shifted(builder, operator, first, second)
    if found is not None:
        return found
    if isinstance(second, np.ndarray):
        return _affine(builder, operator, first, 1.0, -second)
    if isinstance(first, np.ndarray):
        return _affine(builder, operator, second, -1.0, first)
    return _both(builder, operator, Subtract(), first, second)


def _multiply(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue:
    if _is_plain(first) and _is_plain(second) and first == second:
        found = squared(first)
        if found is not None:
            return found
    for one, other in ((first, second), (second, first)):
        found = finished(builder, operator, one, other, "inverse")
        if found or (found := scaled(builder, operator, one, other)):
            return found
    if isinstance(first, np.ndarray):
        first, second = second, first
    if isinstance(second, np.ndarray):
        return _affine(builder, operator, first, second, 0.0)
    return _both(builder, operator, Multiply(), first, second)


def _is_plain(value: GraphValue) -> bool:
    return not isinstance(value, np.ndarray)


def _divide(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue:
    if found := finished(builder, operator, first, second, "deviation"):
        return found
    if isinstance(first, np.ndarray) and single(first) == 1 and (found := inverse(second)):
        return found
    if isinstance(second, np.ndarray) and second.all():
        return _affine(builder, operator, first, 1 / second, 0.0)
    raise operator.refusal("divides by a tensor, which is not supported")


_JOINS: Mapping[str, Callable[[Builder, Operator, GraphValue, GraphValue], GraphValue]] = {
    "Add": _add,
    "Sum": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
}


def _affine(
    builder: Builder,
    operator: Operator,
    source: GraphValue,
    scale: "np.ndarray | float",
    shift: "np.ndarray | float",
) -> GraphValue:
    if not isinstance(source, GraphTensor):
        raise operator.refusal("does what is not supported with intermediate values")
    both = (
        builder.per_channel(operator, np.asarray(one, np.float32), source) for one in (scale, shift)
    )
    return builder.affine(operator, source, *both)


def _both(
    builder: Builder, operator: Operator, layer: Layer, first: GraphValue, second: GraphValue
) -> GraphTensor:
    if not isinstance(first, GraphTensor) or not isinstance(second, GraphTensor):
        raise operator.refusal("does what is not supported with intermediate values")
    check_alike(operator, first, second)
    if isinstance(layer, Multiply):
        first, second = _gated(builder, first, second)
    elif 1 in (first.channels, second.channels):
        channels = max(first.channels, second.channels)
        first, second = (builder.repeated(operator, one, channels) for one in (first, second))
    return builder.add(operator, layer, first, second)


def _gated(
    builder: Builder, first: GraphTensor, second: GraphTensor
) -> tuple[GraphTensor, GraphTensor]:
    """Both factors; one channel multiplies all of the other's without being repeated for it."""
    if first.channels == second.channels:
        if gate := builder.gates.get(second.node):
            return first, gate
        if gate := builder.gates.get(first.node):
            return gate, second
    return first, second


def power(builder: Builder, operator: Operator) -> GraphValue:
    """Pow by 2; by 0.5 and -0.5 where that is a part of a norm."""
    value, exponent = builder.value(operator, 0), builder.array(operator, 1)
    by = None if exponent is None else single(exponent)
    found: GraphValue | None = None
    if value is not None and not isinstance(value, np.ndarray):
        if by == 2:
            found = squared(value)
            if found is None and isinstance(value, GraphTensor):
                found = builder.add(operator, Multiply(), value, value)
        elif by in (0.5, -0.5) and (deviation := root(value)):
            found = deviation if by == 0.5 else inverse(deviation)
    if found is None:
        raise operator.refusal("takes a power that is no part of a norm, which is not supported")
    return found


def part_of_norm(builder: Builder, operator: Operator) -> GraphValue:
    """Sqrt and Reciprocal."""
    value = builder.value(operator, 0)
    found = None
    if value is not None:
        found = root(value) if operator.kind == "Sqrt" else inverse(value)
    if found is None:
        raise operator.refusal("is no part of a norm, which is not supported")
    return found


def above(builder: Builder, operator: Operator) -> GraphValue:
    """Greater than a number, as PyTorch's softplus asks."""
    limit = single(builder.weight(operator, 1))
    if limit is None or limit < _STRAIGHT:
        raise operator.refusal("compares voxels, which is not supported")
    return Above(builder.tensor(operator), limit)


def chosen(builder: Builder, operator: Operator) -> GraphValue:
    """Where: a softplus that is taken for straight where it is, to the last bit of float32."""
    where, first, second = (builder.value(operator, at) for at in range(3))
    if (
        isinstance(where, Above)
        and isinstance(first, GraphTensor)
        and isinstance(second, GraphTensor)
    ):
        made = [node for node in builder.nodes if node.name == second.node]
        if first == where.of and [(one.layer, one.inputs) for one in made] == [
            (Softplus(), (first.node,))
        ]:
            return second
    raise operator.refusal("chooses between voxels, which is not supported")


_STRAIGHT = 17.0
"""From here on softplus is its argument in float32."""


def negate(builder: Builder, operator: Operator) -> GraphValue:
    """Neg."""
    return _affine(builder, operator, builder.tensor(operator), -1.0, 0.0)
