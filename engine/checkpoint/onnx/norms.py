"""Normalisation: ONNX's own operators, and the patterns of smaller ones that exporters write.

A mean, what is left without it and a variance are no layers; they are remembered until a division
or a product makes a norm of them.
"""

from dataclasses import replace

import numpy as np

from ...network.layers import ChannelAffine, FloatArray, GroupNorm, InstanceNorm
from .builder import Builder, seen_alike, tensor_of
from .file import Operator
from .folding import axes_of, integers, number
from .tensors import Array
from .values import (
    CHANNELS,
    Centred,
    GraphTensor,
    GraphValue,
    Mean,
    Normal,
    PerChannel,
    ReshapedView,
    Spread,
)

_USUAL = 1e-5


def batch_norm(builder: Builder, operator: Operator) -> GraphTensor:
    """BatchNormalization by stored statistics: a scale and a shift of each channel."""
    source = builder.tensor(operator)
    if operator.attributes.get("training_mode") or source.axes[CHANNELS] != CHANNELS:
        raise operator.refusal("normalises by the batch; export the network in eval mode")
    shape = (source.channels,)
    gamma, beta, mean, variance = (
        builder.weight(operator, at, shape).astype(np.float64) for at in range(1, 5)
    )
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + number(operator, "epsilon", _USUAL))
        shift = beta - mean * scale
    names = builder.keep("scale", scale), builder.keep("shift", shift)
    return builder.add(operator, ChannelAffine(source.channels, *names), source)


def instance_norm(builder: Builder, operator: Operator) -> GraphTensor | ReshapedView:
    """InstanceNormalization; of a tensor whose groups are seen as channels, a group norm."""
    value = builder.value(operator, 0)
    epsilon = number(operator, "epsilon", _USUAL)
    if isinstance(value, ReshapedView):
        groups = _groups_seen(operator, value)
        scale, shift = (builder.weight(operator, at, (groups,)) for at in (1, 2))
        runs = value.of.channels // groups
        both = np.repeat(scale, runs), np.repeat(shift, runs)
        made = normalised(builder, operator, Mean(value, groups), epsilon)
        return seen_alike(builder.affine(operator, tensor_of(made), *both), value)
    source = builder.tensor(operator)
    if source.axes[CHANNELS] != CHANNELS:
        raise operator.refusal("normalises another axis than the channels")
    shape = (source.channels,)
    scale, shift = (builder.weight(operator, at, shape) for at in (1, 2))
    made = normalised(builder, operator, Mean(source, source.channels), epsilon)
    return builder.affine(operator, tensor_of(made), scale, shift)


def group_norm(builder: Builder, operator: Operator) -> GraphTensor:
    """GroupNormalization, whose scale was of each group before opset 21, and is of each channel."""
    source = builder.tensor(operator, in_order=True)
    [groups] = integers(operator.attributes.get("num_groups", 0))
    if groups < 1 or source.channels % groups:
        raise operator.refusal("has groups that its channels do not make")
    scale, shift = (builder.weight(operator, at) for at in (1, 2))
    if builder.opset < 21:
        scale, shift = (np.repeat(one, source.channels // groups) for one in (scale, shift))
    if scale.shape != (source.channels,) or shift.shape != scale.shape:
        raise operator.refusal("has a scale or a bias of another shape")
    epsilon = number(operator, "epsilon", _USUAL)
    made = normalised(builder, operator, Mean(source, groups), epsilon)
    return builder.affine(operator, tensor_of(made), scale, shift)


def normalised(
    builder: Builder, operator: Operator, mean: Mean, epsilon: float
) -> GraphTensor | ReshapedView:
    """(x - mean) / sqrt(variance + epsilon) of each group."""
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
    return seen_alike(builder.add(operator, layer, source), mean.of)


def reduce_mean(builder: Builder, operator: Operator) -> GraphValue:
    """ReduceMean: the mean of each group, or of what is left without it squared, its variance."""
    value = builder.value(operator, 0)
    named = builder.array(operator, 1)
    axes = axes_of(operator, [] if named is None else [named], 0)
    if isinstance(value, Centred) and value.squared:
        if _mean_of(operator, value.mean.of, axes).groups == value.mean.groups:
            return Spread(value.mean)
    elif isinstance(value, GraphTensor | ReshapedView):
        return _mean_of(operator, value, axes)
    raise operator.refusal("takes a mean that is no part of a norm, which is not supported")


def _mean_of(
    operator: Operator, value: GraphTensor | ReshapedView, axes: tuple[int, ...] | None
) -> Mean:
    rank = len(value.shape)
    taken = {axis % rank for axis in axes or ()}
    if not operator.attributes.get("keepdims", 1):
        raise operator.refusal("takes a mean without keeping its axes, which is not supported")
    if isinstance(value, ReshapedView):
        groups = _groups_seen(operator, value)
        if taken == set(range(2, rank)):
            return Mean(value, groups)
    elif taken == {at for at, axis in enumerate(value.axes) if axis > CHANNELS}:
        return Mean(value, value.channels)
    raise operator.refusal("takes a mean over other axes than a norm does, which is not supported")


def _groups_seen(operator: Operator, view: ReshapedView) -> int:
    """Groups of channels that a view [N, groups, ...] shows."""
    whole = view.of
    if len(view.shape) < 3 or view.shape[0] != whole.batch or whole.channels % view.shape[1]:
        raise operator.refusal("normalises a shape that is not one of groups of channels")
    return view.shape[1]


def subtracted(first: GraphValue, second: GraphValue) -> GraphValue | None:
    """Parts of norms that a difference makes; None if it makes none."""
    match first, second:
        case GraphTensor() | ReshapedView(), Mean(of=of) if of == first:
            return Centred(second)
        case _:
            return None


def squared(value: GraphValue) -> GraphValue | None:
    """The square of what is left without a mean; None of anything else."""
    if isinstance(value, Centred) and not value.squared:
        return replace(value, squared=True)
    return None


def spread_over(value: GraphValue, amount: float) -> GraphValue | None:
    """A variance and what is added to it; None if it is none."""
    if isinstance(value, Spread) and value.form == "variance" and not value.epsilon:
        return replace(value, epsilon=amount)
    return None


def root(value: GraphValue) -> GraphValue | None:
    """The root of a variance with its epsilon."""
    if isinstance(value, Spread) and value.form == "variance" and value.epsilon:
        return replace(value, form="deviation")
    return None


def inverse(value: GraphValue) -> GraphValue | None:
    """The inverse of a deviation."""
    if isinstance(value, Spread) and value.form == "deviation":
        return replace(value, form="inverse")
    return None


def finished(
    builder: Builder, operator: Operator, first: GraphValue, second: GraphValue, form: str
) -> GraphTensor | ReshapedView | None:
    """The norm that a division by a deviation makes, or a product with its inverse."""
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
    """Parts of TensorFlow's norm that a product makes."""
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
    """What is left of a shift without the mean."""
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
    """The norm that a sum of TensorFlow's parts makes."""
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
    return seen_alike(made, value)


def single(array: Array) -> float | None:
    """The one number of an array; None of several."""
    return float(array.reshape(-1)[0]) if array.size == 1 else None
