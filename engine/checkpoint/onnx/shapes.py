"""Operators that see voxels in another shape, as layers where that moves any."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ...network.graph import times
from ...network.layers import Conv3d, ConvTranspose3d, FloatArray, triple
from .builder import Builder
from .file import Operator
from .folding import integers, new_shape
from .values import IN_ORDER, GraphTensor, GraphValue, MovedView, ReshapedView

_MOST_FACTOR = 8


def reshape(builder: Builder, operator: Operator) -> GraphValue:
    """Reshape: the same voxels seen otherwise, and back again."""
    value = builder.value(operator, 0)
    asked = operator.attributes.get("shape", builder.array(operator, 1))
    if not isinstance(value, GraphTensor | ReshapedView | MovedView) or asked is None:
        raise operator.refusal("does what is not supported with intermediate values")
    if isinstance(value, MovedView):
        seen = tuple(value.shape[axis] for axis in value.order)
        return _moved(builder, operator, value, new_shape(operator, seen, integers(asked)))
    shape = new_shape(operator, value.shape, integers(asked))
    tensor = value.of if isinstance(value, ReshapedView) else value
    if tensor.axes != IN_ORDER:
        raise operator.refusal("works on axes in an order that is not supported")
    return tensor if shape == tensor.shape else ReshapedView(tensor, shape)


def transpose(builder: Builder, operator: Operator) -> GraphValue:
    """Transpose: nothing is moved, the axes are only known in another order."""
    value = builder.value(operator, 0)
    if isinstance(value, ReshapedView):
        rank = len(value.shape)
        order = integers(operator.attributes.get("perm", tuple(range(rank))[::-1]))
        return MovedView(value.of, value.shape, order)
    source = builder.tensor(operator)
    order = integers(operator.attributes.get("perm", tuple(range(5))[::-1]))
    if sorted(order) != list(range(5)):
        raise operator.refusal("does not name each axis once")
    axes = tuple(source.axes[place] for place in order)
    return GraphTensor(source.node, source.batch, source.channels, source.extents, axes)


def expand(builder: Builder, operator: Operator) -> GraphTensor:
    """Expand: one channel becomes several that are the same."""
    source, asked = builder.tensor(operator), builder.array(operator, 1)
    wanted = np.broadcast_shapes(source.shape, integers(() if asked is None else asked))
    return _repeated(builder, operator, source, wanted)


def tile(builder: Builder, operator: Operator) -> GraphTensor:
    """Tile: the same, said by how often each axis is repeated."""
    source, asked = builder.tensor(operator), builder.array(operator, 1)
    counts = integers(() if asked is None else asked)
    wanted = tuple(extent * count for extent, count in zip(source.shape, counts, strict=True))
    return _repeated(builder, operator, source, wanted)


def _repeated(
    builder: Builder, operator: Operator, source: GraphTensor, wanted: tuple[int, ...]
) -> GraphTensor:
    if source.axes != IN_ORDER or (wanted[0], *wanted[2:]) != (source.batch, *source.extents):
        raise operator.refusal("repeats other axes than the channels, which is not supported")
    return builder.repeated(operator, source, wanted[1])


def _moved(
    builder: Builder, operator: Operator, value: MovedView, shape: tuple[int, ...]
) -> GraphTensor:
    """Channels that become voxels, as sub-pixel shuffling makes them, or the other way round."""
    for rule in (_to_voxels, _to_channels):
        if made := rule(builder, operator, value, shape):
            return made
    raise operator.refusal("moves voxels in a way that is not supported")


def _to_voxels(
    builder: Builder, operator: Operator, value: MovedView, shape: tuple[int, ...]
) -> GraphTensor | None:
    """[N, C, i, j, k, D, H, W] as [N, C, D i, H j, W k]: each channel has voxels of its own."""
    source, order = value.of, value.order
    if (order[:2], order[2::2], sorted(order[3::2])) != ((0, 1), (5, 6, 7), [2, 3, 4]):
        return None
    batch, channels, *cell = value.shape[:5]
    factor = triple(value.shape[axis] for axis in order[3::2])
    grown = tuple(a * b for a, b in zip(source.extents, factor, strict=True))
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
    """[N, C, D, i, H, j, W, k] as [N, C i j k, D, H, W]."""
    source, order = value.of, value.order
    if (order[:2], order[5:], sorted(order[2:5])) != ((0, 1), (2, 4, 6), [3, 5, 7]):
        return None
    batch, channels = value.shape[:2]
    extents, factor = value.shape[2::2], triple(value.shape[3::2])
    shrunk = tuple(a * b for a, b in zip(extents, factor, strict=True))
    made = channels * prod(factor)
    if shrunk != source.extents or shape != (batch, made, *extents):
        return None
    cell = [value.shape[axis] for axis in order[2:5]]
    places = [order[2:5].index(axis) for axis in (3, 5, 7)]
    weight = _ones_of_cells(operator, channels, cell, places)
    layer = Conv3d(
        *(source.channels, made, factor, builder.keep("weight", weight)),
        stride=factor,
        groups=channels,
    )
    return builder.add(operator, layer, source)


def _ones_of_cells(
    operator: Operator, channels: int, cell: Sequence[int], places: Sequence[int]
) -> FloatArray:
    """Weights [channels * voxels of a cell, 1, kD, kH, kW] that are one for a voxel each.

    cell: extents in the order in which channels follow each other. places: of D, H and W in it.
    """
    if max(cell) > _MOST_FACTOR or min(cell) < 1:
        raise operator.refusal(f"has cells of {times(cell)}, which is not supported")
    ones = np.eye(prod(cell), dtype=np.float32).reshape(prod(cell), 1, *cell)
    ones = ones.transpose(0, 1, *(2 + place for place in places))
    return np.tile(ones, (channels, 1, 1, 1, 1))
