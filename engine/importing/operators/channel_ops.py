"""Operators on channels: sums, LayerNorm, Softmax, and single channels without an axis for them."""

from collections.abc import Mapping

import numpy as np

from ...network.layers import (
    Add,
    Concat,
    Conv3d,
    Inverse,
    Multiply,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
)
from .folding import axes_of, reduced_axes
from .graph_builder import CHANNELS, WHOLE_PATCH, Builder, Divisor, GraphTensor, Rule, misplaced
from .operator_graph import Operator
from .roots import LEAST_ROOT, rooted

_MOST_CHANNELS = 64
_EXTREMES = "ReduceMax", "ReduceMin"
_FREE_AXIS = 13
"""Opset since which Softmax takes one axis alone, and not all from it on."""


def _weighed_sum(
    builder: Builder, operator: Operator, source: GraphTensor, weight: float, amount: float = 0.0
) -> GraphTensor:
    """Add the sum of all channels times a number, plus an amount, as one channel."""
    count = source.channels
    one = builder.keep("weight", np.full((1, count, 1, 1, 1), weight, np.float32))
    bias = builder.keep("bias", np.array([amount], np.float32)) if amount else None
    return builder.add(operator, Conv3d(count, 1, _VOXEL, one, bias), source)


def _extreme(
    builder: Builder, operator: Operator, source: GraphTensor, *, is_max: bool
) -> GraphTensor:
    """Add the largest of all channels, of two halves a and b a + relu(b - a), or the smallest, of
    these a - relu(a - b).
    """
    while source.channels > 1:
        half = source.channels // 2
        rest = source.channels - half
        first = builder.channels(operator, source, 0, rest)
        second = builder.channels(operator, source, half, rest)
        pair = (second, first) if is_max else (first, second)
        above = builder.add(operator, Relu(), builder.add(operator, Subtract(), *pair))
        source = builder.add(operator, Add() if is_max else Subtract(), first, above)
    return source


_VOXEL = (1, 1, 1)


def absolute(builder: Builder, operator: Operator, source: GraphTensor) -> GraphTensor:
    """Add the sum of the rectified x and -x."""
    other = builder.add(operator, Relu(), builder.uniform(operator, source, -1.0, 0.0))
    return builder.add(operator, Add(), builder.add(operator, Relu(), source), other)


def _of_each(builder: Builder, operator: Operator, source: GraphTensor, how: str) -> GraphTensor:
    """Add what a reduction sums: the numbers, their amounts or their squares."""
    match how:
        case "ReduceL1":
            return absolute(builder, operator, source)
        case "ReduceL2" | "ReduceSumSquare":
            return builder.add(operator, Multiply(), source, source)
        case _:
            return source


def reduced_channels(
    builder: Builder, operator: Operator, source: GraphTensor, how: str
) -> GraphTensor | None:
    """Convert a reduction over the channels of each voxel, or of nothing; None for other axes."""
    axes = reduced_axes(operator, builder.array(operator, 1))
    if axes == ():
        alone = "ReduceL1" if how == "ReduceL2" else how
        return _of_each(builder, operator, source, alone)
    if axes is None or _named(operator, source, axes) != [CHANNELS]:
        return None
    output = _of_each(builder, operator, source, how)
    if how in _EXTREMES:
        output = _extreme(builder, operator, output, is_max=how == "ReduceMax")
    else:
        weight = 1 / source.channels if how == "ReduceMean" else 1.0
        output = _weighed_sum(builder, operator, output, weight)
    if how == "ReduceL1":
        builder.divisors[output.node] = Divisor(output, 0.0, norm_of=source.node)
    elif how == "ReduceL2":
        output = rooted(builder, operator, output, norm_of=source.node)
    return output if operator.integer("keepdims", 1) else _without_channels(output)


def _named(operator: Operator, source: GraphTensor, axes: tuple[int, ...]) -> list[int]:
    """Return the meanings of axes of a tensor; raises CheckpointError for others than it has."""
    if any(not -len(source.axes) <= axis < len(source.axes) for axis in axes):
        raise operator.refusal(f"names the axes {list(axes)} of {len(source.axes)}")
    return [source.axes[axis] for axis in axes]


def _reduce(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert sums, norms, maxima and minima, which are supported over channels only."""
    output = reduced_channels(builder, operator, builder.tensor(operator), operator.kind)
    if output is None:
        is_sum = operator.kind in ("ReduceSum", *_EXTREMES)
        known = "attention" if is_sum else "global response norm"
        raise operator.refusal(
            f"reduces other axes than the channels, as {known} does; {WHOLE_PATCH}"
        )
    return output


def _multiply_matrices(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert MatMul of the last axis, the channels, by a constant: a convolution of one voxel."""
    source, matrix = builder.value(operator, 0), builder.value(operator, 1)
    if isinstance(source, GraphTensor) and isinstance(matrix, np.ndarray):
        if source.axes[-1] == CHANNELS and matrix.ndim == 2:
            inward, outward = matrix.shape
            kernel = builder.keep("weight", matrix.T.reshape(outward, inward, *_VOXEL))
            return builder.add(operator, Conv3d(inward, outward, _VOXEL, kernel), source)
    elif not isinstance(source, np.ndarray) and not isinstance(matrix, np.ndarray):
        raise operator.refusal(ATTENTION)
    elif not isinstance(source, np.ndarray | GraphTensor):
        raise misplaced(builder, operator)
    raise operator.refusal("multiplies other axes than the channels, which is not supported")


ATTENTION = f"multiplies matrices computed from the patch, as attention does; {WHOLE_PATCH}"
"""Reason for rejecting products of two tensors."""


def _layer_norm(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert LayerNormalization of the channels of each voxel."""
    source = builder.tensor(operator)
    axis = operator.integer("axis", -1)
    if source.axes[axis:] != (CHANNELS,):
        raise operator.refusal(f"normalises more than the channels of a voxel; {WHOLE_PATCH}")
    count = source.channels
    epsilon = operator.number("epsilon", 1e-5)
    if not np.float32(_LEAST_EPSILON) <= np.float32(epsilon) <= 1:
        raise operator.refusal(
            f"has an epsilon of {epsilon:g}, but from {_LEAST_EPSILON:g} to 1 is supported"
        )
    taken = (np.eye(count) - 1 / count).astype(np.float32).reshape(count, count, 1, 1, 1)
    weight = builder.keep("weight", taken)
    centred = builder.add(operator, Conv3d(count, count, _VOXEL, weight), source)
    square = builder.add(operator, Multiply(), centred, centred)
    variance = _weighed_sum(builder, operator, square, 1 / count, epsilon)
    inverse = builder.add(operator, Inverse(0.99 * epsilon, root=True), variance)
    output = builder.add(operator, Multiply(), centred, inverse)
    scale, shift = builder.scale_and_shift(operator, count)
    return builder.affine(operator, output, scale, shift)


_LEAST_EPSILON = LEAST_ROOT


def _softmax(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Softmax over channels: the sigmoid of x less the log-sum-exp of all others."""
    source = _source(builder, operator)
    if source.channels == 1:
        return builder.uniform(operator, source, 0.0, 1.0)
    above = builder.add(operator, Subtract(), source, _others(builder, operator, source))
    return builder.add(operator, Sigmoid(), above)


def _log_softmax(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert LogSoftmax over channels."""
    source = _source(builder, operator)
    if source.channels == 1:
        return builder.uniform(operator, source, 0.0, 0.0)
    below = builder.add(operator, Subtract(), _others(builder, operator, source), source)
    return builder.uniform(operator, builder.add(operator, Softplus(), below), -1.0, 0.0)


def _source(builder: Builder, operator: Operator) -> GraphTensor:
    source = builder.tensor(operator)
    is_free = builder.opset >= _FREE_AXIS
    axis = operator.integer("axis", -1 if is_free else 1)
    is_last = axis in (-1, len(source.axes) - 1)
    if source.axes[axis] != CHANNELS or not (is_free or is_last):
        raise operator.refusal(
            "weighs voxels against each other, as attention does, so its receptive window is the "
            "whole patch; such a generator cannot be applied patch by patch"
        )
    if source.channels > _MOST_CHANNELS:
        raise operator.refusal(
            f"takes {source.channels} channels, but at most {_MOST_CHANNELS} are allowed"
        )
    return source


def _others(builder: Builder, operator: Operator, source: GraphTensor) -> GraphTensor:
    """Return the log of the sum of exp over all other channels, for each channel.

    log(exp a + exp b) = a + softplus(b - a), for one rotation of the channels after another.
    """
    count = source.channels
    output: GraphTensor | None = None
    for first in range(1, count):
        rotated = builder.add(
            operator,
            Concat(),
            builder.channels(operator, source, first, count - first),
            builder.channels(operator, source, 0, first),
        )
        if output is None:
            output = rotated
        else:
            above = builder.add(operator, Subtract(), rotated, output)
            output = builder.add(operator, Add(), output, builder.add(operator, Softplus(), above))
    return output or source


def _gather(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Gather of channels; of a single one, the axis goes."""
    source, indices = builder.tensor(operator), builder.array(operator, 1)
    axis = operator.integer("axis", 0)
    if indices is None or indices.ndim > 1 or source.axes[axis] != CHANNELS:
        raise operator.refusal("picks voxels by their indices, which is not supported")
    wanted = [int(at) for at in indices.reshape(-1)]
    if not wanted or len(wanted) > _MOST_CHANNELS:
        raise operator.refusal(f"picks {len(wanted)} channels, which is not supported")
    if any(not -source.channels <= at < source.channels for at in wanted):
        raise operator.refusal("picks channels that do not exist")
    first, *others = (builder.channels(operator, source, at % source.channels, 1) for at in wanted)
    for other in others:
        first = builder.add(operator, Concat(), first, other)
    return _without_channels(first) if indices.ndim == 0 else first


def _squeeze(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Squeeze of a single channel."""
    source = builder.tensor(operator)
    axes = _axes(builder, operator)
    if axes is None or len(axes) != 1 or source.axes[axes[0]] != CHANNELS or source.channels != 1:
        raise operator.refusal("removes axes other than a single channel, which no layer does")
    return _without_channels(source)


def _unsqueeze(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Unsqueeze of a tensor without an axis for channels."""
    source = builder.tensor(operator)
    axes = _axes(builder, operator)
    if CHANNELS in source.axes or axes is None or len(axes) != 1:
        raise operator.refusal(
            "stacks tensors along a new axis, as deep supervision stacks its outputs; export the "
            "network in eval mode, with one output"
        )
    order = list(source.axes)
    order.insert(axes[0] % (len(order) + 1), CHANNELS)
    return _with_axes(source, tuple(order))


def _axes(builder: Builder, operator: Operator) -> tuple[int, ...] | None:
    return axes_of(operator, builder.array(operator, 1))


def _without_channels(source: GraphTensor) -> GraphTensor:
    return _with_axes(source, tuple(axis for axis in source.axes if axis != CHANNELS))


def _with_axes(source: GraphTensor, axes: tuple[int, ...]) -> GraphTensor:
    return GraphTensor(source.node, source.batch, source.channels, source.extents, axes)


CHANNEL_RULES: Mapping[str, Rule] = {
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNormalization": _layer_norm,
    "MatMul": _multiply_matrices,
    **dict.fromkeys(("ReduceSum", *_EXTREMES, "ReduceL1", "ReduceL2", "ReduceSumSquare"), _reduce),
    "Gather": _gather,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
"""Rules of the operators on channels."""
