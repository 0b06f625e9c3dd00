"""Activations and arithmetic on tensors and numbers, as layers.

A sum, a difference, a product, a quotient or a power may be a part of a norm, which `norm_ops`
recognises first.
"""

from collections.abc import Mapping
from math import sqrt

import numpy as np

from ...network.layers import (
    Add,
    Clip,
    Elu,
    Erf,
    Exp,
    Layer,
    LeakyRelu,
    Multiply,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
    Tanh,
)
from .channel_ops import absolute
from .graph_builder import (
    Above,
    Builder,
    GraphTensor,
    GraphValue,
    Rule,
    check_alike,
    misplaced,
)
from .norm_ops import added, divided, inverse, multiplied, raised, root, subtracted
from .operator_graph import HALVES, Array, Operator, single
from .roots import inverted, kept_above, rooted

_SIMPLE_ACTIVATIONS: Mapping[str, Layer] = {
    "Erf": Erf(),
    "Exp": Exp(),
    "Relu": Relu(),
    "Sigmoid": Sigmoid(),
    "Softplus": Softplus(),
    "Tanh": Tanh(),
}

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
_GELU_CUBE = 0.044715


def _activate(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert an activation that is a single layer."""
    match operator.kind:
        case "LeakyRelu":
            layer: Layer = LeakyRelu(_rounded(operator.number("alpha", 0.01)))
        case "Elu":
            layer = Elu(_rounded(operator.number("alpha", 1.0)))
        case kind:
            layer = _SIMPLE_ACTIVATIONS[kind]
    return builder.add(operator, layer, builder.tensor(operator))


def _rounded(value: float) -> float:
    """Return a float32 as its shortest decimal: 0.01, not 0.009999999776."""
    return float(str(np.float32(value)))


def _prelu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert PRelu with one slope, or one per channel."""
    source, slopes = builder.tensor(operator), builder.weight(operator, 1)
    if (one := single(slopes)) is not None:
        return builder.add(operator, LeakyRelu(_rounded(one)), source)
    slope = builder.keep("slope", builder.per_channel(operator, slopes, source))
    return builder.add(operator, PRelu(source.channels, slope), source)


def _gelu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Gelu: x times the normal distribution function of x, or its tanh approximation."""
    source = builder.tensor(operator)
    if operator.text("approximate", "none") == "tanh":
        square = builder.add(operator, Multiply(), source, source)
        grown = builder.uniform(operator, square, _GELU_CUBE * sqrt(2 / np.pi), sqrt(2 / np.pi))
        bent = builder.add(operator, Tanh(), builder.add(operator, Multiply(), grown, source))
    else:
        bent = builder.add(operator, Erf(), builder.uniform(operator, source, sqrt(0.5), 0.0))
    share = builder.uniform(operator, bent, 0.5, 0.5)
    return builder.add(operator, Multiply(), source, share)


def _hard_sigmoid(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert HardSigmoid: a line clipped to [0, 1]."""
    slope, middle = operator.number("alpha", 0.2), operator.number("beta", 0.5)
    line = builder.uniform(operator, builder.tensor(operator), slope, middle)
    return builder.add(operator, Clip(0.0, 1.0), line)


def _hard_swish(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert HardSwish: x times the hard sigmoid that rises from -3 to 3."""
    source = builder.tensor(operator)
    line = builder.uniform(operator, source, 1 / 6, 0.5)
    return builder.add(operator, Multiply(), source, builder.add(operator, Clip(0.0, 1.0), line))


def _mish(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Mish: x tanh(softplus(x))."""
    source = builder.tensor(operator)
    soft = builder.add(operator, Softplus(), source)
    return builder.add(operator, Multiply(), source, builder.add(operator, Tanh(), soft))


def _swish(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Swish: x sigmoid(alpha x)."""
    source = builder.tensor(operator)
    scaled = builder.uniform(operator, source, operator.number("alpha", 1.0), 0.0)
    return builder.add(operator, Multiply(), source, builder.add(operator, Sigmoid(), scaled))


def _scaled_elu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Selu: an Elu times gamma."""
    alpha, gamma = operator.number("alpha", _SELU_ALPHA), operator.number("gamma", _SELU_GAMMA)
    output = builder.add(operator, Elu(_rounded(alpha)), builder.tensor(operator))
    return builder.uniform(operator, output, gamma, 0.0)


def _continuous_elu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Celu: alpha times the Elu of x / alpha."""
    alpha = operator.number("alpha", 1.0)
    if alpha <= 0:
        raise operator.refusal(f"has an alpha of {alpha:g}, which must be above 0")
    narrow = builder.uniform(operator, builder.tensor(operator), 1 / alpha, 0.0)
    return builder.uniform(operator, builder.add(operator, Elu(), narrow), alpha, 0.0)


def _clip(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Clip, whose bounds were attributes before opset 11."""
    ends: list[float | None] = []
    for at, name, sign in ((1, "min", -1), (2, "max", 1)):
        array, attribute = builder.array(operator, at), operator.attributes.get(name)
        end = single(array) if array is not None else attribute
        if not isinstance(end, int | float | None) or (array is not None and end is None):
            raise operator.refusal("has limits that are not single numbers")
        ends.append(_rounded(end) if end is not None and sign * end < _OPEN else None)
    source = builder.tensor(operator)
    if ends == [0.0, None]:
        return builder.add(operator, Relu(), source)
    if ends == [None, None]:
        return source
    output = builder.add(operator, Clip(*ends), source)
    if ends[0] is not None and ends[1] is None:
        kept_above(builder, source, output, ends[0])
    return output


_OPEN = 3e38
"""An upper bound from this on, or a lower one from its negative on, is none in float32."""


def _bound(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Max and Min of tensors, and of numbers per channel."""
    values = [builder.value(operator, at) for at in range(len(operator.inputs))]
    tensors = [value for value in values if isinstance(value, GraphTensor)]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(tensors) + len(arrays) < len(values):
        raise misplaced(builder, operator)
    output = tensors[0]
    for tensor in tensors[1:]:
        output = _larger(builder, operator, output, tensor)
    for array in arrays:
        output = _bounded(builder, operator, output, array)
    return output


def _bounded(
    builder: Builder, operator: Operator, source: GraphTensor, array: Array
) -> GraphTensor:
    """Add the larger of a tensor and numbers, or for Min the smaller: b + relu(a - b)."""
    ends = builder.per_channel(operator, array, source)
    is_max = operator.kind == "Max"
    if (ends == ends[0]).all():
        end = _rounded(float(ends[0]))
        layer = Clip(end, None) if is_max else Clip(None, end)
        layer = Relu() if layer == Clip(0.0, None) else layer
        output = builder.add(operator, layer, source)
        if is_max:
            kept_above(builder, source, output, end)
        return output
    sign = np.full_like(ends, 1 if is_max else -1)
    above = builder.affine(operator, source, sign, -sign * ends)
    return builder.affine(operator, builder.add(operator, Relu(), above), sign, ends)


def _larger(
    builder: Builder, operator: Operator, first: GraphTensor, second: GraphTensor
) -> GraphTensor:
    """Add the larger of two tensors, a + relu(b - a), or for Min the smaller, a - relu(a - b)."""
    is_max = operator.kind == "Max"
    pair = (second, first) if is_max else (first, second)
    above = builder.add(operator, Relu(), _both(builder, operator, Subtract(), *pair))
    return _both(builder, operator, Add() if is_max else Subtract(), first, above)


def _pass_on(builder: Builder, operator: Operator) -> GraphValue:
    """Return the input of Identity, of a floating-point cast, and of Dropout outside training."""
    if operator.kind == "Dropout":
        training = builder.array(operator, 2)
        if training is not None and training.any():
            raise operator.refusal("is in training; export the network in eval mode")
    value = builder.value(operator, 0)
    if value is None:
        raise operator.refusal("lacks its input 1")
    to = operator.attributes.get("to") if operator.kind == "Cast" else _SINGLE
    is_like_half = operator.kind == "CastLike" and operator.inputs[1] in builder.halves
    if (to in HALVES or is_like_half) and not builder.is_half:
        raise operator.refusal(
            "rounds a tensor to half precision, in which no convolution of the file computes; that "
            "is not supported, export the network in single precision"
        )
    like = builder.value(operator, 1) if operator.kind == "CastLike" else None
    is_whole = isinstance(like, np.ndarray) and like.dtype != np.float32
    if to not in (_SINGLE, _DOUBLE, *HALVES) or is_whole:
        raise operator.refusal(
            "converts a tensor to integers or numbers of a few bits, which is not supported"
        )
    return value


_SINGLE, _DOUBLE = 1, 11
"""ONNX's numbers of float32 and float64."""


def _join(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Add, Sum, Sub, Mul and Div."""
    values = [builder.value(operator, at) for at in range(len(operator.inputs))]
    inputs = [value for value in values if value is not None]
    if len(inputs) < len(values) or (len(inputs) < 2 and operator.kind != "Sum"):
        raise operator.refusal("joins fewer than two tensors")
    joined = inputs[0]
    for value in inputs[1:]:
        joined = _joined(builder, operator, joined, value)
    return joined


def _joined(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue:
    if (part := _IN_NORMS[operator.kind](builder, operator, first, second)) is not None:
        return part
    match operator.kind, first, second:
        case "Add" | "Sum", _, np.ndarray():
            return _affine(builder, operator, first, 1.0, second)
        case "Add" | "Sum", np.ndarray(), _:
            return _affine(builder, operator, second, 1.0, first)
        case "Add" | "Sum", _, _:
            return _both(builder, operator, Add(), first, second)
        case "Sub", _, np.ndarray():
            return _affine(builder, operator, first, 1.0, -second)
        case "Sub", np.ndarray(), _:
            return _affine(builder, operator, second, -1.0, first)
        case "Sub", _, _:
            return _both(builder, operator, Subtract(), first, second)
        case "Mul", _, np.ndarray():
            return _affine(builder, operator, first, second, 0.0)
        case "Mul", np.ndarray(), _:
            return _affine(builder, operator, second, first, 0.0)
        case "Mul", _, _:
            return _both(builder, operator, Multiply(), first, second)
        case "Div", _, np.ndarray() if second.all():
            return _affine(builder, operator, first, 1 / second, 0.0)
        case "Div", np.ndarray(), GraphTensor():
            return _affine(builder, operator, inverted(builder, operator, second), first, 0.0)
        case "Div", GraphTensor(), GraphTensor():
            is_gate = first.channels == second.channels
            by = builder.gates.get(second.node, second) if is_gate else second
            by = inverted(builder, operator, by, first.node)
            return _both(builder, operator, Multiply(), first, by)
        case "Div", _, np.ndarray():
            raise operator.refusal("divides by zero")
        case _:
            raise misplaced(builder, operator)


_IN_NORMS = {
    **dict.fromkeys(("Add", "Sum"), added),
    "Sub": subtracted,
    "Mul": multiplied,
    "Div": divided,
}
"""Functions that recognise a part of a norm, by operator."""


def _affine(
    builder: Builder,
    operator: Operator,
    source: GraphValue,
    scale: "np.ndarray | float",
    shift: "np.ndarray | float",
) -> GraphValue:
    if not isinstance(source, GraphTensor):
        raise misplaced(builder, operator)
    factor, summand = (
        builder.per_channel(operator, np.asarray(one, np.float32), source) for one in (scale, shift)
    )
    if (most := float(np.abs(summand).max())) >= _NO_FRACTIONS:
        raise operator.refusal(
            f"adds {most:g}, next to which single precision keeps no fractions, as code that "
            "rounds does; it is not supported"
        )
    return builder.affine(operator, source, factor, summand)


_NO_FRACTIONS = 1 << 22
"""Number from which on single precision keeps halves at most."""


def _both(
    builder: Builder, operator: Operator, layer: Layer, first: GraphValue, second: GraphValue
) -> GraphTensor:
    if not isinstance(first, GraphTensor) or not isinstance(second, GraphTensor):
        raise misplaced(builder, operator)
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
    """Return both factors; a repeated single channel is replaced by the channel itself."""
    if first.channels == second.channels:
        if gate := builder.gates.get(second.node):
            return first, gate
        if gate := builder.gates.get(first.node):
            return gate, second
    return first, second


def _power(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Pow by a small whole number, and by 0.5, -0.5 and -1 of what is above zero."""
    value, exponent = builder.value(operator, 0), builder.array(operator, 1)
    by = None if exponent is None else single(exponent)
    if value is not None and not isinstance(value, np.ndarray):
        if (found := raised(value, by)) is not None:
            return found
        if by in _POWERS and isinstance(value, GraphTensor):
            output = value
            for _ in range(int(by) - 1):
                output = builder.add(operator, Multiply(), output, value)
            return output
        if by in (0.5, -0.5) and isinstance(value, GraphTensor):
            root_of = rooted(builder, operator, value)
            return root_of if by == 0.5 else inverted(builder, operator, root_of)
        if by == -1 and isinstance(value, GraphTensor):
            return inverted(builder, operator, value)
    raise operator.refusal("takes a power that is not part of a norm, which is not supported")


_POWERS = (2, 3, 4)


def _root_or_inverse(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Sqrt and Reciprocal, as parts of a norm or of tensors above zero."""
    value = builder.value(operator, 0)
    if isinstance(value, GraphTensor) and operator.kind == "Sqrt":
        return rooted(builder, operator, value)
    if isinstance(value, GraphTensor) and operator.kind == "Reciprocal":
        return inverted(builder, operator, value)
    found = None
    if value is not None:
        found = root(value) if operator.kind == "Sqrt" else inverse(value)
    if found is None:
        raise operator.refusal("is not part of a norm, which is not supported")
    return found


def _above(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Greater than a number, as in PyTorch's softplus."""
    limit = single(builder.weight(operator, 1))
    if limit is None or limit < SOFTPLUS_IS_LINEAR:
        raise operator.refusal("compares voxels, which is not supported")
    return Above(builder.tensor(operator), limit)


def _chosen(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Where in PyTorch's softplus, whose linear part is exact in float32 anyway."""
    where, first, second = (builder.value(operator, at) for at in range(3))
    if (
        isinstance(where, Above)
        and isinstance(first, GraphTensor)
        and isinstance(second, GraphTensor)
    ):
        makers = [node for node in builder.nodes if node.name == second.node]
        if first == where.of and [(one.layer, one.inputs) for one in makers] == [
            (Softplus(), (first.node,))
        ]:
            return second
    raise operator.refusal("chooses between voxels, which is not supported")


SOFTPLUS_IS_LINEAR = 17.0
"""Argument above which softplus equals its argument in float32."""


def _absolute(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Abs."""
    return absolute(builder, operator, builder.tensor(operator))


def _negate(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Neg."""
    return _affine(builder, operator, builder.tensor(operator), -1.0, 0.0)


ELEMENTWISE_RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*_SIMPLE_ACTIVATIONS, "LeakyRelu", "Elu"), _activate),
    "PRelu": _prelu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Mish": _mish,
    "Swish": _swish,
    "Selu": _scaled_elu,
    "Celu": _continuous_elu,
    "Clip": _clip,
    **dict.fromkeys(("Max", "Min"), _bound),
    **dict.fromkeys(("Add", "Sum", "Sub", "Mul", "Div"), _join),
    "Pow": _power,
    **dict.fromkeys(("Sqrt", "Reciprocal"), _root_or_inverse),
    "Neg": _negate,
    "Abs": _absolute,
    "Greater": _above,
    "Where": _chosen,
    **dict.fromkeys(("Identity", "Cast", "CastLike", "Dropout"), _pass_on),
}
"""Rules of the operators of activations and arithmetic."""
