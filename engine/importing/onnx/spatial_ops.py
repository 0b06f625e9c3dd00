"""Operators that combine voxels or change shapes, as layers: convolution, pooling, padding, slices
and reshapes that move voxels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np

from ...network.graph import times
from ...network.layers import (
    Channels,
    Concat,
    Constant,
    Conv3d,
    ConvTranspose3d,
    Crop,
    FloatArray,
    Pad,
    PadMode,
    Pool,
    Triple,
    triple,
)
from .folding import integers, new_shape, number_attribute, slice_places
from .graph_builder import (
    CHANNELS,
    IN_ORDER,
    Builder,
    GraphTensor,
    GraphValue,
    MovedView,
    ReshapedView,
    misplaced,
    text_attribute,
)
from .operator_graph import Array, Operator

_ZERO: Triple = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class KernelWindow:
    """Geometry of a kernel.

    kernel, stride, dilation: along D, H and W. before, after: padding at the ends.
    """

    kernel: Triple
    stride: Triple
    dilation: Triple
    before: Triple
    after: Triple

    @property
    def is_even(self) -> bool:
        """Whether both ends have the same padding."""
        return self.before == self.after


def triple_attribute(operator: Operator, name: str, usual: Triple) -> Triple:
    """Return an attribute of three numbers, along D, H and W."""
    values = integers(operator.attributes.get(name, usual))
    if len(values) != 3:
        raise operator.refusal(f"has {len(values)} numbers for {name} instead of three")
    return values[0], values[1], values[2]


def window_of(operator: Operator, kernel: Triple, extents: Triple) -> KernelWindow:
    """Return the geometry of a convolution or pooling that does not enlarge."""
    one: Triple = (1, 1, 1)
    stride, dilation = (
        triple_attribute(operator, "strides", one),
        triple_attribute(operator, "dilations", one),
    )
    if (
        triple_attribute(operator, "kernel_shape", kernel) != kernel
        or min(*stride, *dilation, *kernel) < 1
    ):
        raise operator.refusal("has an invalid kernel or strides")
    before, after = _pads(operator)
    automatic = text_attribute(operator, "auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        missing = [
            max(0, (-(-extent // step) - 1) * step + (taps - 1) * apart + 1 - extent)
            for extent, step, taps, apart in zip(extents, stride, kernel, dilation, strict=True)
        ]
        before, after = split_evenly(missing, more_after=automatic == "SAME_UPPER")
    return KernelWindow(kernel, stride, dilation, before, after)


def split_evenly(missing: list[int], *, more_after: bool) -> tuple[Triple, Triple]:
    """Split padding between both ends of each axis; an odd voxel goes to the end or the start."""
    few: Triple = (missing[0] // 2, missing[1] // 2, missing[2] // 2)
    many: Triple = (missing[0] - few[0], missing[1] - few[1], missing[2] - few[2])
    return (few, many) if more_after else (many, few)


def _pads(operator: Operator) -> tuple[Triple, Triple]:
    pads = integers(operator.attributes.get("pads", (0,) * 6))
    if len(pads) != 6 or min(pads) < 0:
        raise operator.refusal("has pads that do not fit a 3D kernel")
    return (pads[0], pads[1], pads[2]), (pads[3], pads[4], pads[5])


def _kernel(operator: Operator, weight: Array) -> Triple:
    if weight.ndim == 4:
        raise operator.refusal("is 2-D, and only 3-D generators are supported")
    if weight.ndim != 5:
        raise operator.refusal(f"has a weight of {weight.ndim} axes instead of five")
    return weight.shape[2], weight.shape[3], weight.shape[4]


def _groups(operator: Operator, channels: int, into: int) -> int:
    [groups] = integers(operator.attributes.get("group", 1))
    if groups < 1 or channels % groups or into % groups:
        raise operator.refusal(f"has {groups} groups, which do not divide its channels")
    return groups


def convolve(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Conv; zero padding that differs between the ends becomes a separate layer."""
    source = builder.tensor(operator, in_order=True)
    weight = builder.weight(operator, 1)
    window = window_of(operator, _kernel(operator, weight), source.extents)
    out = weight.shape[0]
    groups = _groups(operator, source.channels, out)
    if weight.shape[1] * groups != source.channels:
        raise operator.refusal(f"takes {weight.shape[1] * groups} channels of {source.channels}")
    if not window.is_even:
        source = builder.add(operator, Pad("zero", window.before, window.after), source)
    names = _kept(builder, operator, weight, out)
    padding = window.before if window.is_even else _ZERO
    sizes = window.stride, padding, window.dilation, groups
    layer = Conv3d(source.channels, out, window.kernel, *names, *sizes)
    return builder.add(operator, layer, source)


def _kept(builder: Builder, operator: Operator, weight: Array, out: int) -> tuple[str, str | None]:
    bias = builder.array(operator, 2)
    if bias is not None:
        bias = builder.weight(operator, 2, (out,))
    name = builder.keep("weight", weight)
    return name, None if bias is None else builder.keep("bias", bias)


def convolve_transposed(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert ConvTranspose; a Crop layer removes what PyTorch's padding cannot."""
    source = builder.tensor(operator, in_order=True)
    weight = builder.weight(operator, 1)
    kernel = _kernel(operator, weight)
    groups = _groups(operator, source.channels, 0)
    if weight.shape[0] != source.channels:
        raise operator.refusal(f"takes {weight.shape[0]} channels of {source.channels}")
    window = window_of(operator, kernel, (1, 1, 1))
    extra = triple_attribute(operator, "output_padding", _ZERO)
    before, after = _cut_ends(operator, window, extra, source.extents)
    # PyTorch's padding is the same at both ends; the difference is added to the output or cropped.
    growth = [extra[axis] + before[axis] - after[axis] for axis in range(3)]
    grown: Triple = (max(0, growth[0]), max(0, growth[1]), max(0, growth[2]))
    cropped: Triple = (max(0, -growth[0]), max(0, -growth[1]), max(0, -growth[2]))
    out = weight.shape[1] * groups
    names = _kept(builder, operator, weight, out)
    sizes = window.stride, before, grown, window.dilation, groups
    layer = ConvTranspose3d(source.channels, out, kernel, *names, *sizes)
    made = builder.add(operator, layer, source)
    return builder.add(operator, Crop(_ZERO, cropped), made) if any(cropped) else made


def _cut_ends(
    operator: Operator, window: KernelWindow, extra: Triple, extents: Triple
) -> tuple[Triple, Triple]:
    """Return the voxels to remove from the full output, at the start and the end of each axis."""
    automatic = text_attribute(operator, "auto_pad", "NOTSET")
    asked = operator.attributes.get("output_shape")
    if asked is None and automatic in ("NOTSET", "VALID"):
        return _pads(operator)
    if asked is None:
        whole = [extent * step for extent, step in zip(extents, window.stride, strict=True)]
    else:
        whole = list(integers(asked)[-3:])
    spread = [
        (extent - 1) * step + (taps - 1) * apart + 1 + more
        for extent, step, taps, apart, more in zip(
            extents, window.stride, window.kernel, window.dilation, extra, strict=True
        )
    ]
    cut = [a - b for a, b in zip(spread, whole, strict=True)]
    if len(whole) != 3 or min(cut) < 0:
        raise operator.refusal("requests an output size that its kernel cannot produce")
    return split_evenly(cut, more_after=automatic == "SAME_UPPER")


_PAD_MODES: dict[str, PadMode] = {"reflect": "reflect", "edge": "replicate"}


def pad(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Pad; negative padding is cropped."""
    source = builder.tensor(operator)
    ends = _pad_ends(builder, operator, len(source.axes))
    before, after = [0] * 5, [0] * 5
    for place, (low, high) in ends.items():
        before[source.axes[place]], after[source.axes[place]] = low, high
    mode = _pad_mode(builder, operator)
    if before[0] or after[0] or min(before[1], after[1]) < 0:
        raise operator.refusal("pads the batch or cuts channels, which is not supported")
    if before[1] or after[1]:
        source = _more_channels(builder, operator, source, mode, (before[1], after[1]))
    grown = [max(0, voxels) for voxels in (*before[2:], *after[2:])]
    cut = [max(0, -voxels) for voxels in (*before[2:], *after[2:])]
    if any(cut):
        source = _cropped(builder, operator, source, cut)
    if not any(grown):
        return source
    layer = Pad(mode, (grown[0], grown[1], grown[2]), (grown[3], grown[4], grown[5]))
    return builder.add(operator, layer, source)


def _more_channels(
    builder: Builder, operator: Operator, source: GraphTensor, mode: PadMode, ends: tuple[int, int]
) -> GraphTensor:
    """Add channels of one number before and after those of a tensor."""
    if mode in ("reflect", "replicate") or sum(ends) > _MOST_CHANNELS:
        raise operator.refusal(f"pads channels by {max(ends)} in a mode that is not supported")
    value = mode.value if isinstance(mode, Constant) else 0.0
    made = source
    for at, count in enumerate(ends):
        left = count
        while left:
            some = channels_of(builder, operator, source, 0, min(left, source.channels))
            empty = builder.uniform(operator, some, 0.0, value)
            made = builder.add(operator, Concat(), *((made, empty) if at else (empty, made)))
            left -= some.channels
    return made


_MOST_CHANNELS = 4096


def _cropped(
    builder: Builder, operator: Operator, source: GraphTensor, cut: list[int]
) -> GraphTensor:
    layer = Crop((cut[0], cut[1], cut[2]), (cut[3], cut[4], cut[5]))
    return builder.add(operator, layer, source) if any(cut) else source


def _pad_ends(builder: Builder, operator: Operator, rank: int) -> dict[int, tuple[int, int]]:
    """Return the padding before and after, by axis index of the file."""
    given = operator.attributes.get("pads", builder.array(operator, 1))
    named = builder.array(operator, 3)
    axes = tuple(range(rank)) if named is None else integers(named)
    pads = () if given is None else integers(given)
    if len(pads) != 2 * len(axes) or any(not -rank <= axis < rank for axis in axes):
        raise operator.refusal("does not give the factor of each axis")
    return {axis % rank: (pads[at], pads[len(axes) + at]) for at, axis in enumerate(axes)}


def _pad_mode(builder: Builder, operator: Operator) -> PadMode:
    mode = text_attribute(operator, "mode", "constant")
    if mode in _PAD_MODES:
        return _PAD_MODES[mode]
    if mode != "constant":
        raise operator.refusal(f"has the mode {mode}, which is not supported")
    given = builder.array(operator, 2)
    value = (
        number_attribute(operator, "value", 0.0)
        if given is None or given.size != 1
        else given.item()
    )
    return Constant(float(value)) if value else "zero"


def cut(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Slice: a range of channels, or a crop of D, H and W."""
    tensor = source = builder.tensor(operator)
    arrays = [builder.array(operator, at) for at in range(1, len(operator.inputs))]
    places = slice_places(
        operator, [None, *(one for one in arrays if one is not None)], len(source.axes)
    )
    ends = [0] * 6
    for place, start, stop, step in places:
        extent, axis = source.shape[place], source.axes[place]
        first, last, _ = slice(start, stop).indices(extent)
        if step != 1 or (axis == 0 and (first, last) != (0, extent)):
            raise operator.refusal("slices in a way that is not supported")
        if axis == CHANNELS:
            tensor = channels_of(builder, operator, tensor, first, last - first)
        elif axis > CHANNELS:
            ends[axis - 2], ends[axis + 1] = first, extent - last
    return _cropped(builder, operator, tensor, ends)


def channels_of(
    builder: Builder, operator: Operator, source: GraphTensor, first: int, count: int
) -> GraphTensor:
    """Add the channels from `first` on; return the tensor itself if they are all of it."""
    if count < 1:
        raise operator.refusal("leaves no channel")
    if (first, count) == (0, source.channels):
        return source
    return builder.add(operator, Channels(first, count), source)


def split(builder: Builder, operator: Operator) -> list[GraphTensor]:
    """Convert Split of the channels."""
    source = builder.tensor(operator)
    [axis] = integers(operator.attributes.get("axis", 0))
    if not -5 <= axis < 5 or source.axes[axis] != CHANNELS:
        raise operator.refusal("splits an axis other than the channels, which is not supported")
    given = operator.attributes.get("split", builder.array(operator, 1))
    parts = len(operator.outputs)
    even = -(-source.channels // parts)
    sizes = (
        integers(given)
        if given is not None
        else [min(even, source.channels - even * at) for at in range(parts)]
    )
    if sum(sizes) != source.channels or len(sizes) != parts:
        raise operator.refusal("has parts that do not add up to the channels")
    starts = accumulate(sizes[:-1], initial=0)
    return [
        channels_of(builder, operator, source, first, count)
        for first, count in zip(starts, sizes, strict=True)
    ]


def concat(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Concat of channels, two tensors at a time."""
    tensors = [builder.tensor(operator, at) for at in range(len(operator.inputs))]
    [axis] = integers(operator.attributes.get("axis", 1))
    if not -5 <= axis < 5 or tensors[0].axes[axis] != CHANNELS:
        raise operator.refusal("joins an axis other than the channels, which is not supported")
    joined = tensors[0]
    for tensor in tensors[1:]:
        check_alike(operator, joined, tensor)
        joined = builder.add(operator, Concat(), joined, tensor)
    return joined


def check_alike(operator: Operator, first: GraphTensor, second: GraphTensor) -> None:
    """Raise CheckpointError unless two tensors have the same axis order."""
    if first.axes != second.axes:
        raise operator.refusal("joins tensors whose axes are in different orders")


def pool(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert MaxPool and AveragePool."""
    source = builder.tensor(operator, in_order=True)
    kernel = triple_attribute(operator, "kernel_shape", (0, 0, 0))
    window = window_of(operator, kernel, source.extents)
    if window.dilation != (1, 1, 1) or not window.is_even:
        raise operator.refusal("has dilation or uneven padding, which is not supported")
    if operator.attributes.get("ceil_mode") and any(
        (extent + 2 * edge - taps) % step
        for extent, edge, taps, step in zip(
            source.extents, window.before, kernel, window.stride, strict=True
        )
    ):
        raise operator.refusal("rounds extents up, which is not supported")
    if any(2 * edge > taps for edge, taps in zip(window.before, kernel, strict=True)):
        raise operator.refusal("has windows that are entirely in the padding")
    if operator.kind == "MaxPool":
        return builder.add(operator, Pool("largest", kernel, window.stride, window.before), source)
    counts = not any(window.before) or bool(operator.attributes.get("count_include_pad", 0))
    return builder.add(operator, Pool("mean", kernel, window.stride, window.before, counts), source)


_MOST_CELL = 8


def reshape(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Reshape to a view, or a view back to its tensor."""
    value = builder.value(operator, 0)
    asked = operator.attributes.get("shape", builder.array(operator, 1))
    if not isinstance(value, GraphTensor | ReshapedView | MovedView) or asked is None:
        raise misplaced(operator, value)
    if isinstance(value, MovedView):
        shape = new_shape(operator, value.moved_shape, integers(asked))
        return _moved(builder, operator, value, shape)
    shape = new_shape(operator, value.shape, integers(asked))
    tensor = value.of if isinstance(value, ReshapedView) else value
    if tensor.axes != IN_ORDER:
        raise operator.refusal("works on axes in an order that is not supported")
    return tensor if shape == tensor.shape else ReshapedView(tensor, shape)


def transpose(builder: Builder, operator: Operator) -> GraphValue:
    """Convert Transpose to another axis order, without moving voxels."""
    value = builder.value(operator, 0)
    if isinstance(value, ReshapedView):
        rank = len(value.shape)
        order = integers(operator.attributes.get("perm", tuple(range(rank))[::-1]))
        return MovedView(value.of, value.shape, order)
    source = builder.tensor(operator)
    places = range(len(source.axes))
    order = integers(operator.attributes.get("perm", tuple(places)[::-1]))
    if sorted(order) != list(places):
        raise operator.refusal("does not name each axis once")
    axes = tuple(source.axes[place] for place in order)
    return GraphTensor(source.node, source.batch, source.channels, source.extents, axes)


def expand(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Expand: a single channel is repeated."""
    source, asked = builder.tensor(operator), builder.array(operator, 1)
    wanted = np.broadcast_shapes(source.shape, integers(() if asked is None else asked))
    return _repeated(builder, operator, source, wanted)


def tile(builder: Builder, operator: Operator) -> GraphTensor:
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
        if made := rule(builder, operator, value, shape):
            return made
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
    """Convert [N, C, D, i, H, j, W, k] to [N, C i j k, D, H, W], if that is the pattern."""
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
    """Return weights [channels * voxels of a cell, 1, kD, kH, kW] that select one voxel each.

    cell: extents in the order of the channels. places: indices of D, H and W in it.
    """
    if max(cell) > _MOST_CELL or min(cell) < 1:
        raise operator.refusal(f"has cells of {times(cell)}, which is not supported")
    ones = np.eye(prod(cell), dtype=np.float32).reshape(prod(cell), 1, *cell)
    ones = ones.transpose(0, 1, *(2 + place for place in places))
    return np.tile(ones, (channels, 1, 1, 1, 1))
