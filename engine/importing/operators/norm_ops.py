"""Norms as layers, whole or as the smaller operators of which exporters write them.

A mean, a centred tensor and a variance are not layers; they are remembered until a division or a
product completes a norm.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...network.layers import ChannelAffine, FloatArray, GroupNorm, InstanceNorm
from .channel_ops import reduced_channels
from .folding import axes_of
from .graph_builder import (
    AS_SLICES,
    CHANNELS,
    WHOLE_PATCH,
    Builder,
    Centred,
    GraphTensor,
    GraphValue,
    Mean,
    Normal,
    PerChannel,
    ReshapedView,
    Rule,
    Spread,
)
from .operator_graph import Operator, single

_USUAL_EPSILON = 1e-5
_LEAST_EPSILON = 1e-20
"""Epsilon that a model file may have."""


def _batch_norm(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert BatchNormalization with stored statistics to a scale and shift per channel."""
    source = builder.tensor(operator)
    is_training = operator.attributes.get("training_mode") or (
        builder.opset < _TRAINING_MODE and any(operator.outputs[1:])
    )
    if is_training or source.axes[CHANNELS] != CHANNELS:
        raise operator.refusal("normalises by the batch; export the network in eval mode")
    stored = (builder.weight(operator, at, (source.channels,)) for at in (3, 4))
    gamma, beta, mean, variance = (
        array.astype(np.float64)
        for array in (*builder.scale_and_shift(operator, source.channels), *stored)
    )
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + operator.number("epsilon", _USUAL_EPSILON))
        shift = beta - mean * scale
    names = builder.keep("scale", scale), builder.keep("shift", shift)
    return builder.add(operator, ChannelAffine(source.channels, *names), source)


_TRAINING_MODE = 14
"""Opset since which an attribute states what further outputs of a BatchNormalization stated."""


def _instance_norm(builder: Builder, operator: Operator) -> GraphTensor | ReshapedView:
    """Convert InstanceNormalization; on a view of groups as channels it is a group norm."""
    value = builder.value(operator, 0)
    epsilon = operator.number("epsilon", _USUAL_EPSILON)
    if isinstance(value, ReshapedView):
        groups = _groups_seen(operator, value)
        scale, shift = builder.scale_and_shift(operator, groups)
        runs = value.of.channels // groups
        both = np.repeat(scale, runs), np.repeat(shift, runs)
        output = _normalised(builder, operator, Mean(value, groups), epsilon)
        return _viewed_alike(builder.affine(operator, _tensor_of(output), *both), value)
    source = builder.tensor(operator)
    if source.axes == AS_SLICES:
        raise operator.refusal(
            "normalises each slice by itself, which no layer does; that would need a norm of slices"
        )
    if source.axes[CHANNELS] != CHANNELS:
        raise operator.refusal("normalises an axis other than the channels")
    scale, shift = builder.scale_and_shift(operator, source.channels)
    output = _normalised(builder, operator, Mean(source, source.channels), epsilon)
    return builder.affine(operator, _tensor_of(output), scale, shift)


def _group_norm(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert GroupNormalization: scale per group before opset 21, per channel since."""
    source = builder.tensor(operator, in_order=True)
    groups = operator.integer("num_groups", 0)
    if groups < 1 or source.channels % groups:
        raise operator.refusal("has a number of groups that does not divide its channels")
    is_per_group = builder.opset < 21
    both = builder.scale_and_shift(operator, groups if is_per_group else source.channels)
    scale, shift = (np.repeat(one, source.channels // len(one)) for one in both)
    epsilon = operator.number("epsilon", _USUAL_EPSILON)
    output = _normalised(builder, operator, Mean(source, groups), epsilon)
    return builder.affine(operator, _tensor_of(output), scale, shift)


def _normalised(
    builder: Builder, operator: Operator, mean: Mean, epsilon: float
) -> GraphTensor | ReshapedView:
    """Add a norm layer: (x - mean) / sqrt(variance + epsilon) per group."""
    source = _tensor_of(mean.of)
    channels, groups = source.channels, mean.groups
    epsilon = float(np.float32(epsilon))
    if not _LEAST_EPSILON <= epsilon <= 1:
        raise operator.refusal(
            f"has an epsilon of {epsilon:g}, but from {_LEAST_EPSILON:g} to 1 is supported"
        )
    layer = (
        InstanceNorm(channels, epsilon=epsilon)
        if groups == channels
        else GroupNorm(channels, groups, epsilon=epsilon)
    )
    return _viewed_alike(builder.add(operator, layer, source), mean.of)


def _reduce_mean(builder: Builder, operator: Operator) -> GraphValue:
    """Convert ReduceMean to the mean of groups or, of a squared centred tensor, the variance."""
    value = builder.value(operator, 0)
    axes = axes_of(operator, builder.array(operator, 1))
    if isinstance(value, Centred) and value.squared:
        if _mean_of(operator, value.mean.of, axes).groups == value.mean.groups:
            return Spread(value.mean)
    elif isinstance(value, GraphTensor | ReshapedView):
        if isinstance(value, GraphTensor) and (
            found := reduced_channels(builder, operator, value, "ReduceMean")
        ):
            return found
        return _mean_of(operator, value, axes)
    raise operator.refusal("takes a mean that is not part of a norm, which is not supported")


def _mean_of(
    operator: Operator, value: GraphTensor | ReshapedView, axes: tuple[int, ...] | None
) -> Mean:
    rank = len(value.shape)
    taken = {axis % rank for axis in axes or range(rank)}
    if isinstance(value, GraphTensor) and 0 in taken:
        raise operator.refusal(
            "takes statistics of the batch, as batch norms do in training; export the network in "
            "eval mode, with norms that keep their statistics"
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
    elif taken == {at for at, axis in enumerate(value.axes) if axis >= CHANNELS}:
        return Mean(value, 1)
    raise operator.refusal(
        f"takes a mean over the axes {sorted(taken)} of {rank}, which no norm uses, and is not "
        "supported"
    )


def _groups_seen(operator: Operator, view: ReshapedView) -> int:
    """Return the number of groups of channels of a view [N, groups, ...]."""
    whole = view.of
    if len(view.shape) < 3 or view.shape[0] != whole.batch or whole.channels % view.shape[1]:
        raise operator.refusal("normalises a shape that does not represent groups of channels")
    return view.shape[1]


def added(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Return a sum that is a part of a norm, or completes it; None for any other sum.

    The parts are a variance plus epsilon, and the two of TensorFlow's form.
    """
    if isinstance(first, np.ndarray):
        first, second = second, first
    if isinstance(second, np.ndarray):
        amount = single(second)
        match first:
            case Spread(form="variance", epsilon=0.0) if amount is not None:
                return replace(first, epsilon=amount)
            case _:
                return None
    for one, other in ((first, second), (second, first)):
        match one, other:
            case Normal(spread, "tensor"), Normal(same, "shift", shift) if spread == same:
                output = _normalised(builder, operator, spread.mean, spread.epsilon)
                return _with(builder, operator, output, spread.factor, shift)
            case _:
                pass
    return None


def subtracted(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Return a difference that is a part of a norm, or completes it; None for any other one.

    The parts are a tensor minus its mean, and two of TensorFlow's form.
    """
    match first, second:
        case GraphTensor() | ReshapedView(), Mean(of=of) if of == first:
            return Centred(second)
        case np.ndarray(), Normal(spread, "mean"):
            values = builder.per_channel(operator, first, _tensor_of(spread.mean.of))
            return Normal(spread, "shift", PerChannel(values))
        case Normal(spread, "tensor"), Normal(other, "mean") if spread == other:
            output = _normalised(builder, operator, spread.mean, spread.epsilon)
            return _with(builder, operator, output, spread.factor, None)
        case _:
            return None


def multiplied(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Return a product that is a part of a norm, or completes it; None for any other product.

    The parts are the square of a centred tensor, and those of TensorFlow's form.
    """
    is_constant = isinstance(first, np.ndarray) or isinstance(second, np.ndarray)
    if not is_constant and first == second and (found := raised(first, 2)):
        return found
    for one, other in ((first, second), (second, first)):
        if found := _finished(builder, operator, one, other, "inverse"):
            return found
        if found := _scaled(builder, operator, one, other):
            return found
    return None


def divided(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Return a quotient that completes a norm, or inverts a deviation; None for any other one."""
    if found := _finished(builder, operator, first, second, "deviation"):
        return found
    return inverse(second) if isinstance(first, np.ndarray) and single(first) == 1 else None


def raised(value: GraphValue, exponent: float | None) -> GraphValue | None:
    """Return a power that is a part of a norm; None for any other power."""
    match value, exponent:
        case Centred(squared=False), 2:
            return replace(value, squared=True)
        case Spread(), 0.5:
            return root(value)
        case Spread(), -0.5:
            deviation = root(value)
            return None if deviation is None else inverse(deviation)
        case _:
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


def _finished(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue, form: str
) -> GraphTensor | ReshapedView | None:
    """Complete a norm: a division by a deviation or a product with its inverse; otherwise None."""
    match first, second:
        case Centred(mean, False), Spread(of, epsilon=epsilon, factor=factor) if (
            second.form == form and mean == of
        ):
            output = _normalised(builder, operator, mean, epsilon)
            return output if factor is None else _with(builder, operator, output, factor, None)
        case _:
            return None


def _scaled(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue
) -> GraphValue | None:
    """Return a product as a part of TensorFlow's form of a norm; None for any other product."""
    match first, second:
        case Spread(form="inverse", factor=None), np.ndarray():
            source = _tensor_of(first.mean.of)
            if isinstance(first.mean.of, ReshapedView) or first.mean.groups != source.channels:
                return None
            return replace(first, factor=PerChannel(builder.per_channel(operator, second, source)))
        case GraphTensor(), Spread(form="inverse", mean=Mean(of=of)) if of == first:
            return Normal(second, "tensor")
        case Mean(), Spread(form="inverse", mean=mean) if mean == first:
            return Normal(second, "mean")
        case _:
            return None


def _with(
    builder: Builder,
    operator: Operator,
    value: GraphTensor | ReshapedView,
    scale: PerChannel | None,
    shift: PerChannel | None,
) -> GraphTensor | ReshapedView:
    tensor = _tensor_of(value)

    def numbers(vector: PerChannel | None, usual: float) -> FloatArray:
        return np.full(tensor.channels, usual, np.float32) if vector is None else vector.values

    output = builder.affine(operator, tensor, numbers(scale, 1), numbers(shift, 0))
    return _viewed_alike(output, value)


def _tensor_of(value: GraphTensor | ReshapedView) -> GraphTensor:
    """Return the tensor of a view."""
    return value.of if isinstance(value, ReshapedView) else value


def _viewed_alike(
    tensor: GraphTensor, value: GraphTensor | ReshapedView
) -> GraphTensor | ReshapedView:
    """Return a tensor under the view of another one of the same shape."""
    return ReshapedView(tensor, value.shape) if isinstance(value, ReshapedView) else tensor


NORM_RULES: Mapping[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "ReduceMean": _reduce_mean,
}
"""Rules of the operators of norms."""
