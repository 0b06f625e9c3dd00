"""Operators on single numbers, activations and norms, as layers.

Exporters write norms as patterns of smaller operators. A mean, a centred tensor and a variance are
not layers; they are remembered until a division or a product completes a norm.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt

import numpy as np

from ...network.layers import (
    Add,
    ChannelAffine,
    Clip,
    Elu,
    Erf,
    FloatArray,
    GroupNorm,
    InstanceNorm,
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
from .folding import axes_of, integers, number_attribute
from .graph_builder import (
    CHANNELS,
    WHOLE_PATCH,
    Above,
    Builder,
    Centred,
    GraphTensor,
    GraphValue,
    Mean,
    Normal,
    PerChannel,
    ReshapedView,
    Spread,
    misplaced,
    tensor_of,
    text_attribute,
    viewed_alike,
)
from .operator_graph import Array, Operator
from .spatial_ops import check_alike

_USUAL_EPSILON = 1e-5


def batch_norm(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert BatchNormalization with stored statistics to a scale and shift per channel."""
    source = builder.tensor(operator)
    if operator.attributes.get("training_mode") or source.axes[CHANNELS] != CHANNELS:
        raise operator.refusal("normalises by the batch; export the network in eval mode")
    shape = (source.channels,)
    gamma, beta, mean, variance = (
        builder.weight(operator, at, shape).astype(np.float64) for at in range(1, 5)
    )
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + number_attribute(operator, "epsilon", _USUAL_EPSILON))
        shift = beta - mean * scale
    names = builder.keep("scale", scale), builder.keep("shift", shift)
    return builder.add(operator, ChannelAffine(source.channels, *names), source)


def instance_norm(builder: Builder, operator: Operator) -> GraphTensor | ReshapedView:
    """Convert InstanceNormalization; on a view of groups as channels it is a group norm."""
    value = builder.value(operator, 0)
    epsilon = number_attribute(operator, "epsilon", _USUAL_EPSILON)
    if isinstance(value, ReshapedView):
        groups = _groups_seen(operator, value)
        scale, shift = (builder.weight(operator, at, (groups,)) for at in (1, 2))
        runs = value.of.channels // groups
        both = np.repeat(scale, runs), np.repeat(shift, runs)
        made = normalised(builder, operator, Mean(value, groups), epsilon)
        return viewed_alike(builder.affine(operator, tensor_of(made), *both), value)
    source = builder.tensor(operator)
    if source.axes[CHANNELS] != CHANNELS:
        raise operator.refusal("normalises an axis other than the channels")
    shape = (source.channels,)
    scale, shift = (builder.weight(operator, at, shape) for at in (1, 2))
    made = normalised(builder, operator, Mean(source, source.channels), epsilon)
    return builder.affine(operator, tensor_of(made), scale, shift)


def group_norm(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert GroupNormalization: scale per group before opset 21, per channel since."""
    source = builder.tensor(operator, in_order=True)
    [groups] = integers(operator.attributes.get("num_groups", 0))
    if groups < 1 or source.channels % groups:
        raise operator.refusal("has a number of groups that does not divide its channels")
    scale, shift = (builder.weight(operator, at) for at in (1, 2))
    if builder.opset < 21:
        scale, shift = (np.repeat(one, source.channels // groups) for one in (scale, shift))
    if scale.shape != (source.channels,) or shift.shape != scale.shape:
        raise operator.refusal("has a scale or a bias of another shape")
    epsilon = number_attribute(operator, "epsilon", _USUAL_EPSILON)
    made = normalised(builder, operator, Mean(source, groups), epsilon)
    return builder.affine(operator, tensor_of(made), scale, shift)


def normalised(
    builder: Builder, operator: Operator, mean: Mean, epsilon: float
) -> GraphTensor | ReshapedView:
    """Add a norm layer: (x - mean) / sqrt(variance + epsilon) per group."""
    source = tensor_of(mean.of)
    channels, groups = source.channels, mean.groups
    if not 0 < epsilon <= 1:
        raise operator.refusal(f"has an epsilon of {epsilon:g}")
    epsilon = float(np.float32(epsilon))
    layer = (
        InstanceNorm(channels, epsilon=epsilon)
        if groups == channels
        else GroupNorm(channels, groups, epsilon=epsilon)
    )
    return viewed_alike(builder.add(operator, layer, source), mean.of)


def reduce_mean(builder: Builder, operator: Operator) -> GraphValue:
    """Convert ReduceMean to the mean of groups or, of a squared centred tensor, the variance."""
    value = builder.value(operator, 0)
    named = builder.array(operator, 1)
    axes = axes_of(operator, [] if named is None else [named], 0)
    if isinstance(value, Centred) and value.squared:
        if _mean_of(operator, value.mean.of, axes).groups == value.mean.groups:
            return Spread(value.mean)
    elif isinstance(value, GraphTensor | ReshapedView):
        return _mean_of(operator, value, axes)
    raise operator.refusal("takes a mean that is not part of a norm, which is not supported")


def _mean_of(
    operator: Operator, value: GraphTensor | ReshapedView, axes: tuple[int, ...] | None
) -> Mean:
    rank = len(value.shape)
    taken = {axis % rank for axis in axes or ()}
    if isinstance(value, GraphTensor) and 0 in taken:
        raise operator.refusal(
            "takes statistics of the batch, as batch norms do in training; export the network in "
            "eval mode, with norms that keep their statistics"
        )
    if isinstance(value, GraphTensor) and {value.axes[at] for at in taken} == {CHANNELS}:
        raise operator.refusal(
            "takes a mean over the channels of each voxel, as LayerNorm does, which is not "
            "supported; train the generator with instance or group norm"
        )
    if not operator.attributes.get("keepdims", 1):
        raise operator.refusal(
            f"takes a mean without keeping its axes, as squeeze and excitation does; {WHOLE_PATCH}"
        )
    if isinstance(value, ReshapedView):
        groups = _groups_seen(operator, value)
        if taken == set(range(2, rank)):
            return Mean(value, groups)
    elif taken == {at for at, axis in enumerate(value.axes) if axis > CHANNELS}:
        return Mean(value, value.channels)
    raise operator.refusal("takes a mean over axes that no norm uses, which is not supported")


def _groups_seen(operator: Operator, view: ReshapedView) -> int:
    """Return the number of groups of channels of a view [N, groups, ...]."""
    whole = view.of
    if len(view.shape) < 3 or view.shape[0] != whole.batch or whole.channels % view.shape[1]:
        raise operator.refusal("normalises a shape that does not represent groups of channels")
    return view.shape[1]


def subtracted(first: GraphValue, second: GraphValue) -> GraphValue | None:
    """Return a tensor minus its mean as a part of a norm; None for any other difference."""
    match first, second:
        case GraphTensor() | ReshapedView(), Mean(of=of) if of == first:
            return Centred(second)
        case _:
            return None


def squared(value: GraphValue) -> GraphValue | None:
    """Return the square of a centred tensor; None for any other value."""
    if isinstance(value, Centred) and not value.squared:
        return replace(value, squared=True)
    return None


def spread_over(value: GraphValue, amount: float) -> GraphValue | None:
    """Return a variance with epsilon added; None for any other value."""
    if isinstance(value, Spread) and value.form == "variance" and not value.epsilon:
        return replace(value, epsilon=amount)
    return None


def root(value: GraphValue) -> GraphValue | None:
    """Return the deviation: the root of a variance with epsilon; None for any other value."""
    if isinstance(value, Spread) and value.form == "variance" and value.epsilon:
        return replace(value, form="deviation")
    return None


def inverse(value: GraphValue) -> GraphValue | None:
    """Return the inverse of a deviation; None for any other value."""
    if isinstance(value, Spread) and value.form == "deviation":
        return replace(value, form="inverse")
    return None


def finished(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue, form: str
) -> GraphTensor | ReshapedView | None:
    """Complete a norm: a division by a deviation or a product with its inverse; otherwise None."""
    match first, second:
        case Centred(mean, False), Spread(of, epsilon=epsilon, factor=factor) if (
            second.form == form and mean == of
        ):
            made = normalised(builder, operator, mean, epsilon)
            return made if factor is None else _with(builder, operator, made, factor, None)
        case _:
            return None


def scaled(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Return a product as a part of TensorFlow's form of a norm; None for any other product."""
    match first, second:
        case Spread(form="inverse", factor=None), np.ndarray():
            source = tensor_of(first.mean.of)
            if isinstance(first.mean.of, ReshapedView) or first.mean.groups != source.channels:
                return None
            return replace(first, factor=PerChannel(builder.per_channel(operator, second, source)))
        case GraphTensor(), Spread(form="inverse", mean=Mean(of=of)) if of == first:
            return Normal(second, "tensor")
        case Mean(), Spread(form="inverse", mean=mean) if mean == first:
            return Normal(second, "mean")
        case _:
            return None


def shifted(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Return a difference as a part of TensorFlow's form of a norm, or the norm; otherwise None."""
    match first, second:
        case np.ndarray(), Normal(spread, "mean"):
            values = builder.per_channel(operator, first, tensor_of(spread.mean.of))
            return Normal(spread, "shift", PerChannel(values))
        case Normal(spread, "tensor"), Normal(other, "mean") if spread == other:
            made = normalised(builder, operator, spread.mean, spread.epsilon)
            return _with(builder, operator, made, spread.factor, None)
        case _:
            return None


def summed(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Complete a norm from the sum of TensorFlow's two parts; None for any other sum."""
    match first, second:
        case Normal(spread, "tensor"), Normal(other, "shift", shift) if spread == other:
            made = normalised(builder, operator, spread.mean, spread.epsilon)
            return _with(builder, operator, made, spread.factor, shift)
        case _:
            return None


def _with(
    builder: Builder,
    operator: Operator,
    value: GraphTensor | ReshapedView,
    scale: PerChannel | None,
    shift: PerChannel | None,
) -> GraphTensor | ReshapedView:
    tensor = tensor_of(value)

    def numbers(vector: PerChannel | None, usual: float) -> FloatArray:
        return np.full(tensor.channels, usual, np.float32) if vector is None else vector.values

    made = builder.affine(operator, tensor, numbers(scale, 1), numbers(shift, 0))
    return viewed_alike(made, value)


def single(array: Array) -> float | None:
    """Return the only number of an array; None if it has several."""
    return float(array.reshape(-1)[0]) if array.size == 1 else None


_SIMPLE_ACTIVATIONS: Mapping[str, Layer] = {
    "Erf": Erf(),
    "Relu": Relu(),
    "Sigmoid": Sigmoid(),
    "Softplus": Softplus(),
    "Tanh": Tanh(),
}

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
_GELU_CUBE = 0.044715


def activate(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert an activation that is a single layer."""
    match operator.kind:
        case "LeakyRelu":
            layer: Layer = LeakyRelu(rounded(number_attribute(operator, "alpha", 0.01)))
        case "Elu":
            layer = Elu(rounded(number_attribute(operator, "alpha", 1.0)))
        case kind:
            layer = _SIMPLE_ACTIVATIONS[kind]
    return builder.add(operator, layer, builder.tensor(operator))


def rounded(value: float) -> float:
    """Return a float32 as its shortest decimal: 0.01, not 0.009999999776."""
    return float(str(np.float32(value)))


def prelu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert PRelu with one slope, or one per channel."""
    source, slopes = builder.tensor(operator), builder.weight(operator, 1)
    if (one := single(slopes)) is not None:
        return builder.add(operator, LeakyRelu(rounded(one)), source)
    slope = builder.keep("slope", builder.per_channel(operator, slopes, source))
    return builder.add(operator, PRelu(source.channels, slope), source)


def gelu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Gelu: x times the normal distribution function of x, or its tanh approximation."""
    source = builder.tensor(operator)
    if text_attribute(operator, "approximate", "none") == "tanh":
        square = builder.add(operator, Multiply(), source, source)
        grown = builder.uniform(operator, square, _GELU_CUBE * sqrt(2 / np.pi), sqrt(2 / np.pi))
        bent = builder.add(operator, Tanh(), builder.add(operator, Multiply(), grown, source))
    else:
        bent = builder.add(operator, Erf(), builder.uniform(operator, source, sqrt(0.5), 0.0))
    share = builder.uniform(operator, bent, 0.5, 0.5)
    return builder.add(operator, Multiply(), source, share)


def hard_sigmoid(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert HardSigmoid: a line clipped to [0, 1]."""
    slope, middle = (
        number_attribute(operator, "alpha", 0.2),
        number_attribute(operator, "beta", 0.5),
    )
    line = builder.uniform(operator, builder.tensor(operator), slope, middle)
    return builder.add(operator, Clip(0.0, 1.0), line)


def hard_swish(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert HardSwish: x times the hard sigmoid that rises from -3 to 3."""
    source = builder.tensor(operator)
    line = builder.uniform(operator, source, 1 / 6, 0.5)
    return builder.add(operator, Multiply(), source, builder.add(operator, Clip(0.0, 1.0), line))


def mish(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Mish: x tanh(softplus(x))."""
    source = builder.tensor(operator)
    soft = builder.add(operator, Softplus(), source)
    return builder.add(operator, Multiply(), source, builder.add(operator, Tanh(), soft))


def swish(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Swish: x sigmoid(alpha x)."""
    source = builder.tensor(operator)
    scaled = builder.uniform(operator, source, number_attribute(operator, "alpha", 1.0), 0.0)
    return builder.add(operator, Multiply(), source, builder.add(operator, Sigmoid(), scaled))


def scaled_elu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Selu: an Elu times gamma."""
    alpha, gamma = (
        number_attribute(operator, "alpha", _SELU_ALPHA),
        number_attribute(operator, "gamma", _SELU_GAMMA),
    )
    made = builder.add(operator, Elu(rounded(alpha)), builder.tensor(operator))
    return builder.uniform(operator, made, gamma, 0.0)


def continuous_elu(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Celu: alpha times the Elu of x / alpha."""
    alpha = number_attribute(operator, "alpha", 1.0)
    narrow = builder.uniform(operator, builder.tensor(operator), 1 / alpha, 0.0)
    return builder.uniform(operator, builder.add(operator, Elu(), narrow), alpha, 0.0)


ACTIVATIONS: Mapping[str, Callable[[Builder, Operator], GraphTensor]] = {
    **dict.fromkeys((*_SIMPLE_ACTIVATIONS, "LeakyRelu", "Elu"), activate),
    "PRelu": prelu,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Mish": mish,
    "Swish": swish,
    "Selu": scaled_elu,
    "Celu": continuous_elu,
}
"""Rules for ONNX's activation operators."""


def clip(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Clip, whose bounds were attributes before opset 11."""
    ends: list[float | None] = []
    for at, name in ((1, "min"), (2, "max")):
        array, attribute = builder.array(operator, at), operator.attributes.get(name)
        end = single(array) if array is not None else attribute
        if not isinstance(end, int | float | None) or (array is not None and end is None):
            raise operator.refusal("has limits that are not single numbers")
        ends.append(rounded(end) if end is not None and abs(end) < _OPEN else None)
    source = builder.tensor(operator)
    if ends == [0.0, None]:
        return builder.add(operator, Relu(), source)
    return builder.add(operator, Clip(*ends), source) if ends != [None, None] else source


_OPEN = 3e38
"""Bounds beyond this exceed float32 and count as open."""


def bound(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Max and Min of a tensor and a number."""
    values = [builder.value(operator, at) for at in range(len(operator.inputs))]
    tensors = [value for value in values if isinstance(value, GraphTensor)]
    ends = [single(value) for value in values if isinstance(value, np.ndarray)]
    if len(tensors) != 1 or len(ends) != 1 or ends[0] is None:
        raise operator.refusal("compares tensors, which is not supported")
    end = rounded(ends[0])
    layer = Clip(end, None) if operator.kind == "Max" else Clip(None, end)
    return builder.add(operator, Relu() if layer == Clip(0.0, None) else layer, tensors[0])


def pass_on(builder: Builder, operator: Operator) -> GraphValue:
    """Return the input of Identity, of a floating-point cast, and of Dropout outside training."""
    if operator.kind == "Dropout":
        training = builder.array(operator, 2)
        if training is not None and training.any():
            raise operator.refusal("is in training; export the network in eval mode")
    like = builder.value(operator, 1) if operator.kind == "CastLike" else None
    if (operator.kind == "Cast" and operator.attributes.get("to") not in _FLOATING) or (
        isinstance(like, np.ndarray) and like.dtype != np.float32
    ):
        raise operator.refusal("converts a tensor to integers, which is not supported")
    value = builder.value(operator, 0)
    if value is None:
        raise operator.refusal("reads nothing")
    return value


_FLOATING = (1, 10, 11, 16)


def join(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Add, Sum, Sub, Mul and Div."""
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
        raise misplaced(operator, source)
    both = (
        builder.per_channel(operator, np.asarray(one, np.float32), source) for one in (scale, shift)
    )
    return builder.affine(operator, source, *both)


def _both(
    builder: Builder, operator: Operator, layer: Layer, first: GraphValue, second: GraphValue
) -> GraphTensor:
    if not isinstance(first, GraphTensor) or not isinstance(second, GraphTensor):
        raise misplaced(operator, first, second)
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


def power(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Pow by a small whole number, and by 0.5 and -0.5 as a part of a norm."""
    value, exponent = builder.value(operator, 0), builder.array(operator, 1)
    by = None if exponent is None else single(exponent)
    found: GraphValue | None = None
    if value is not None and not isinstance(value, np.ndarray):
        if by == 2:
            found = squared(value)
        if found is None and by in _POWERS and isinstance(value, GraphTensor):
            found = value
            for _ in range(int(by) - 1):
                found = builder.add(operator, Multiply(), found, value)
        elif by in (0.5, -0.5) and (deviation := root(value)):
            found = deviation if by == 0.5 else inverse(deviation)
    if found is None:
        raise operator.refusal("takes a power that is not part of a norm, which is not supported")
    return found


_POWERS = (2, 3, 4)


def part_of_norm(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Sqrt and Reciprocal, which are supported as parts of a norm only."""
    value = builder.value(operator, 0)
    found = None
    if value is not None:
        found = root(value) if operator.kind == "Sqrt" else inverse(value)
    if found is None:
        raise operator.refusal("is not part of a norm, which is not supported")
    return found


def above(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Greater than a number, as in PyTorch's softplus."""
    limit = single(builder.weight(operator, 1))
    if limit is None or limit < _STRAIGHT:
        raise operator.refusal("compares voxels, which is not supported")
    return Above(builder.tensor(operator), limit)


def chosen(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Where in PyTorch's softplus, whose linear part is exact in float32 anyway."""
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
"""Argument above which softplus equals its argument in float32."""


def absolute(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Abs: the sum of the rectified x and -x."""
    source = builder.tensor(operator)
    other = builder.add(operator, Relu(), builder.uniform(operator, source, -1.0, 0.0))
    return builder.add(operator, Add(), builder.add(operator, Relu(), source), other)


def negate(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Neg."""
    return _affine(builder, operator, builder.tensor(operator), -1.0, 0.0)
