"""Operators that pick, join or move channels and voxels, as layers, views and axis orders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

import numpy as np

from ...network.graph import times
from ...network.layers import Concat, Conv3d, ConvTranspose3d, FloatArray, multiplied, triple
from .folding import new_shape, slice_places
from .graph_builder import (
    AS_SLICES,
    CHANNELS,
    IN_ORDER,
    SLICES_FIRST,
    Builder,
    GraphTensor,
    GraphValue,
    MovedView,
    ReshapedView,
    Rule,
    check_alike,
    misplaced,
)
from .operator_graph import Array, Operator, integers


def _cut(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Slice: a range of channels, or a crop of D, H and W."""
    tensor = source = builder.tensor(operator)
    places = slice_places(operator, builder.constants(operator), len(source.axes))
    ends = [0] * 6
    for place, start, stop, step in places:
        extent, axis = source.shape[place], source.axes[place]
        first, last, _ = slice(start, stop).indices(extent)
        if step != 1 or (axis == 0 and (first, last) != (0, extent)):
            raise operator.refusal("slices in a way that is not supported")
        if axis == CHANNELS:
            tensor = builder.channels(operator, tensor, first, last - first)
        elif axis > CHANNELS:
            ends[axis - 2], ends[axis + 1] = first, extent - last
    return builder.cropped(operator, tensor, ends)


def _split(builder: Builder, operator: Operator) -> list[GraphTensor]:
    """Convert Split of the channels."""
    source = builder.tensor(operator)
    axis = operator.integer("axis", 0)
    if not -5 <= axis < 5 or source.axes[axis] != CHANNELS:
        raise operator.refusal("splits an axis other than the channels, which is not supported")
    stated_sizes = operator.attributes.get("split", builder.array(operator, 1))
    parts = len(operator.outputs)
    even = -(-source.channels // parts)
    sizes = (
        integers(stated_sizes)
        if stated_sizes is not None
        else [min(even, source.channels - even * at) for at in range(parts)]
    )
    if sum(sizes) != source.channels or len(sizes) != parts:
        raise operator.refusal("has parts that do not add up to the channels")
    starts = accumulate(sizes[:-1], initial=0)
    return [
        builder.channels(operator, source, first, count)
        for first, count in zip(starts, sizes, strict=True)
    ]


def _concat(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Concat of channels, of which some may be constant, two tensors at a time."""
    values = [builder.value(operator, at) for at in range(len(operator.inputs))]
    tensors = [value for value in values if isinstance(value, GraphTensor)]
    if len(tensors) + sum(isinstance(value, np.ndarray) for value in values) < len(values):
        raise misplaced(builder, operator)
    like, axis = tensors[0], operator.integer("axis", 1)
    if not -5 <= axis < 5 or like.axes[axis] != CHANNELS:
        raise operator.refusal("joins an axis other than the channels, which is not supported")
    joined: GraphTensor | None = None
    for value in values:
        tensor = _filled(builder, operator, like, value) if isinstance(value, np.ndarray) else value
        if not isinstance(tensor, GraphTensor):
            continue  # no channels
        check_alike(operator, like, tensor)
        joined = tensor if joined is None else builder.add(operator, Concat(), joined, tensor)
    return like if joined is None else joined


def _filled(
    builder: Builder, operator: Operator, like: GraphTensor, array: Array
) -> GraphTensor | None:
    """Return a constant that is joined to a tensor as channels of one number."""
    places = [at for at, axis in enumerate(like.axes) if axis != CHANNELS]
    if array.ndim != len(like.axes) or any(array.shape[at] != like.shape[at] for at in places):
        raise operator.refusal("joins a constant whose extents are not those of the tensor")
    if array.size and array.min() != array.max():
        raise operator.refusal("joins a constant that differs from voxel to voxel")
    value = float(array.flat[0]) if array.size else 0.0
    return builder.filled(operator, like, array.shape[like.axes.index(CHANNELS)], value)


_MOST_CELL = 8


def _reshape(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Reshape to a view, or a view back to its tensor."""
    value = builder.value(operator, 0)
    asked = operator.attributes.get("shape", builder.array(operator, 1))
    if not isinstance(value, GraphTensor | ReshapedView | MovedView) or asked is None:
        raise misplaced(builder, operator)
    if isinstance(value, MovedView):
        shape = new_shape(operator, value.moved_shape, integers(asked))
        return _moved(builder, operator, value, shape)
    shape = new_shape(operator, value.shape, integers(asked))
    if isinstance(value, GraphTensor) and (view := _as_slices(value, shape)):
        return view
    tensor = value.of if isinstance(value, ReshapedView) else value
    if tensor.axes != IN_ORDER:
        raise operator.refusal("works on axes in an order that is not supported")
    return tensor if shape == tensor.shape else ReshapedView(tensor, shape)


def _as_slices(tensor: GraphTensor, shape: tuple[int, ...]) -> GraphTensor | None:
    """Return a tensor [1, D, C, H, W] as slices [D, C, H, W], or back; None for other shapes."""
    for axes, other in ((SLICES_FIRST, AS_SLICES), (AS_SLICES, SLICES_FIRST)):
        view = replace(tensor, axes=other)
        if tensor.batch == 1 and tensor.axes == axes and view.shape == shape:
            return view
    return None


def _transpose(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Transpose to another axis order, without moving voxels."""
    value = builder.value(operator, 0)
    if isinstance(value, ReshapedView):
        rank = len(value.shape)
        order = operator.integers("perm", tuple(range(rank))[::-1])
        return MovedView(value.of, value.shape, order)
    source = builder.tensor(operator)
    places = range(len(source.axes))
    order = operator.integers("perm", tuple(places)[::-1])
    if sorted(order) != list(places):
        raise operator.refusal("does not name each axis once")
    axes = tuple(source.axes[place] for place in order)
    return GraphTensor(source.node, source.batch, source.channels, source.extents, axes)


def _expand(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Expand: a single channel is repeated."""
    source, asked = builder.tensor(operator), builder.array(operator, 1)
    wanted = np.broadcast_shapes(source.shape, integers(() if asked is None else asked))
    return _repeated(builder, operator, source, wanted)


def _tile(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Tile: a single channel is repeated."""
    source, asked = builder.tensor(operator), builder.array(operator, 1)
    counts = integers(() if asked is None else asked)
    wanted = tuple(extent * count for extent, count in zip(source.shape, counts, strict=True))
    return _repeated(builder, operator, source, wanted)


def _repeated(
    builder: Builder, operator: Operator, source: GraphTensor, wanted: tuple[int, ...]
) -> GraphTensor:
    if source.axes != IN_ORDER or (wanted[0], *wanted[2:]) != (source.batch, *source.extents):
        raise operator.refusal("repeats axes other than the channels, which is not supported")
    return builder.repeated(operator, source, wanted[1])


def _moved(
    builder: Builder, operator: Operator, value: MovedView, shape: tuple[int, ...]
) -> GraphTensor:
    """Convert channels to voxels, as in sub-pixel shuffling, or voxels to channels."""
    for rule in (_to_voxels, _to_channels):
        if output := rule(builder, operator, value, shape):
            return output
    raise operator.refusal("moves voxels in a way that is not supported")


def _to_voxels(
    builder: Builder, operator: Operator, value: MovedView, shape: tuple[int, ...]
) -> GraphTensor | None:
    """Convert [N, C, i, j, k, D, H, W] to [N, C, D i, H j, W k], if that is the pattern."""
    source, order = value.of, value.order
    if (order[:2], order[2::2], sorted(order[3::2])) != ((0, 1), (5, 6, 7), [2, 3, 4]):
        return None
    batch, channels, *cell = value.shape[:5]
    factor = triple(value.shape[axis] for axis in order[3::2])
    grown = multiplied(source.extents, factor)
    if value.shape[5:] != source.extents or shape != (batch, channels, *grown):
        return None
    weight = _ones_of_cells(operator, channels, cell, [axis - 2 for axis in order[3::2]])
    layer = ConvTranspose3d(
        *(source.channels, channels, factor, builder.keep("weight", weight)),
        stride=factor,
        groups=channels,
    )
    return builder.add(operator, layer, source)


def _to_channels(
    builder: Builder, operator: Operator, value: MovedView, shape: tuple[int, ...]
) -> GraphTensor | None:
    """Convert [N, C, D, i, H, j, W, k] to [N, C i j k, D, H, W], if that is the pattern."""
    source, order = value.of, value.order
    if (order[:2], order[5:], sorted(order[2:5])) != ((0, 1), (2, 4, 6), [3, 5, 7]):
        return None
    batch, channels = value.shape[:2]
    extents, factor = value.shape[2::2], triple(value.shape[3::2])
    shrunk = tuple(a * b for a, b in zip(extents, factor, strict=True))
    out_channels = channels * prod(factor)
    if shrunk != source.extents or shape != (batch, out_channels, *extents):
        return None
    cell = [value.shape[axis] for axis in order[2:5]]
    places = [order[2:5].index(axis) for axis in (3, 5, 7)]
    weight = _ones_of_cells(operator, channels, cell, places)
    layer = Conv3d(
        *(source.channels, out_channels, factor, builder.keep("weight", weight)),
        stride=factor,
        groups=channels,
    )
    return builder.add(operator, layer, source)


def _ones_of_cells(
    operator: Operator, channels: int, cell: Sequence[int], places: Sequence[int]
) -> FloatArray:
    """Return weights [channels * voxels of a cell, 1, kD, kH, kW] that select one voxel each.

    cell: extents in the order of the channels. places: indices of D, H and W in it.
    """
    if max(cell) > _MOST_CELL or min(cell) < 1:
        raise operator.refusal(f"has cells of {times(cell)}, which is not supported")
    ones = np.eye(prod(cell), dtype=np.float32).reshape(prod(cell), 1, *cell)
    ones = ones.transpose(0, 1, *(2 + place for place in places))
    return np.tile(ones, (channels, 1, 1, 1, 1))


SHAPE_RULES: Mapping[str, Rule] = {
    "Slice": _cut,
    "Split": _split,
    "Concat": _concat,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
}
"""Rules of the operators of channels, shapes and axis orders."""
