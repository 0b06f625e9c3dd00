"""Operators that change extents or choose voxels, as layers: Pad, Slice, Resize and pooling."""

from itertools import accumulate

import numpy as np

from ...network.layers import (
    Channels,
    Concat,
    Constant,
    Crop,
    Pad,
    PadMode,
    Pool,
    Triple,
    Upsample,
)
from .builder import Builder, word
from .convolutions import triple, window_of
from .file import Operator
from .folding import integers, number, slice_places
from .tensors import Array
from .values import CHANNELS, GraphTensor

_PAD_MODES: dict[str, PadMode] = {"reflect": "reflect", "edge": "replicate"}
_MOST_FACTOR = 16


def pad(builder: Builder, operator: Operator) -> GraphTensor:
    """Pad; what is negative is cropped."""
    source = builder.tensor(operator)
    ends = _pad_ends(builder, operator, len(source.axes))
    before, after = [0] * 5, [0] * 5
    for place, (low, high) in ends.items():
        before[source.axes[place]], after[source.axes[place]] = low, high
    if any((*before[:2], *after[:2])):
        raise operator.refusal("pads the batch or the channels, which is not supported")
    mode = _pad_mode(builder, operator)
    grown = [max(0, voxels) for voxels in (*before[2:], *after[2:])]
    cut = [max(0, -voxels) for voxels in (*before[2:], *after[2:])]
    if any(cut):
        source = _cropped(builder, operator, source, cut)
    if not any(grown):
        return source
    layer = Pad(mode, (grown[0], grown[1], grown[2]), (grown[3], grown[4], grown[5]))
    return builder.add(operator, layer, source)


def _cropped(
    builder: Builder, operator: Operator, source: GraphTensor, cut: list[int]
) -> GraphTensor:
    layer = Crop((cut[0], cut[1], cut[2]), (cut[3], cut[4], cut[5]))
    return builder.add(operator, layer, source) if any(cut) else source


def _pad_ends(builder: Builder, operator: Operator, rank: int) -> dict[int, tuple[int, int]]:
    """Voxels before and after, by the axis as the file counts."""
    given = operator.attributes.get("pads", builder.array(operator, 1))
    named = builder.array(operator, 3)
    axes = tuple(range(rank)) if named is None else integers(named)
    pads = () if given is None else integers(given)
    if len(pads) != 2 * len(axes) or any(not -rank <= axis < rank for axis in axes):
        raise operator.refusal("does not say by how much each axis grows")
    return {axis % rank: (pads[at], pads[len(axes) + at]) for at, axis in enumerate(axes)}


def _pad_mode(builder: Builder, operator: Operator) -> PadMode:
    mode = word(operator, "mode", "constant")
    if mode in _PAD_MODES:
        return _PAD_MODES[mode]
    if mode != "constant":
        raise operator.refusal(f"has the mode {mode}, which is not supported")
    given = builder.array(operator, 2)
    value = number(operator, "value", 0.0) if given is None or given.size != 1 else given.item()
    return Constant(float(value)) if value else "zero"


def cut(builder: Builder, operator: Operator) -> GraphTensor:
    """Slice: of channels, or at the ends of D, H and W."""
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
            raise operator.refusal("cuts in a way that is not supported")
        if axis == CHANNELS:
            tensor = _channels(builder, operator, tensor, first, last - first)
        elif axis > CHANNELS:
            ends[axis - 2], ends[axis + 1] = first, extent - last
    return _cropped(builder, operator, tensor, ends)


def _channels(
    builder: Builder, operator: Operator, source: GraphTensor, first: int, count: int
) -> GraphTensor:
    if count < 1:
        raise operator.refusal("leaves no channel")
    if (first, count) == (0, source.channels):
        return source
    return builder.add(operator, Channels(first, count), source)


def split(builder: Builder, operator: Operator) -> list[GraphTensor]:
    """Split of the channels."""
    source = builder.tensor(operator)
    [axis] = integers(operator.attributes.get("axis", 0))
    if not -5 <= axis < 5 or source.axes[axis] != CHANNELS:
        raise operator.refusal("splits another axis than the channels, which is not supported")
    given = operator.attributes.get("split", builder.array(operator, 1))
    parts = len(operator.outputs)
    even = -(-source.channels // parts)
    sizes = (
        integers(given)
        if given is not None
        else [min(even, source.channels - even * at) for at in range(parts)]
    )
    if sum(sizes) != source.channels or len(sizes) != parts:
        raise operator.refusal("has parts that the channels do not make")
    starts = accumulate(sizes[:-1], initial=0)
    return [
        _channels(builder, operator, source, first, count)
        for first, count in zip(starts, sizes, strict=True)
    ]


def concat(builder: Builder, operator: Operator) -> GraphTensor:
    """Concat of channels, two tensors at a time."""
    tensors = [builder.tensor(operator, at) for at in range(len(operator.inputs))]
    [axis] = integers(operator.attributes.get("axis", 1))
    if not -5 <= axis < 5 or tensors[0].axes[axis] != CHANNELS:
        raise operator.refusal("joins another axis than the channels, which is not supported")
    joined = tensors[0]
    for tensor in tensors[1:]:
        check_alike(operator, joined, tensor)
        joined = builder.add(operator, Concat(), joined, tensor)
    return joined


def check_alike(operator: Operator, first: GraphTensor, second: GraphTensor) -> None:
    """Raise CheckpointError unless two tensors have their axes in one order."""
    if first.axes != second.axes:
        raise operator.refusal("joins tensors whose axes are in different orders")


def pool(builder: Builder, operator: Operator) -> GraphTensor:
    """MaxPool and AveragePool."""
    source = builder.tensor(operator, in_order=True)
    kernel = triple(operator, "kernel_shape", (0, 0, 0))
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
        raise operator.refusal("has windows that lie in the padding alone")
    if operator.kind == "MaxPool":
        return builder.add(operator, Pool("largest", kernel, window.stride, window.before), source)
    counts = not any(window.before) or bool(operator.attributes.get("count_include_pad", 0))
    return builder.add(operator, Pool("mean", kernel, window.stride, window.before, counts), source)


def resize(builder: Builder, operator: Operator) -> GraphTensor:
    """Resize and Upsample by whole factors, with positions that PyTorch has too."""
    source = builder.tensor(operator)
    factors = _factors(builder, operator, source)
    if factors == (1, 1, 1):
        return source
    mode = word(operator, "mode", "nearest")
    is_old = operator.kind == "Upsample" or builder.opset < 11
    positions = word(
        operator, "coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel"
    )
    if operator.attributes.get("antialias"):
        raise operator.refusal("filters, which is not supported")
    if mode == "nearest":
        rounding = word(operator, "nearest_mode", "floor" if is_old else "round_prefer_floor")
        if all(_takes_nearest(factor, positions, rounding) for factor in factors):
            return builder.add(operator, Upsample("nearest", factors), source)
    elif mode == "linear" and positions in ("half_pixel", "pytorch_half_pixel"):
        return builder.add(operator, Upsample("trilinear", factors), source)
    elif mode == "linear" and positions == "align_corners":
        return builder.add(operator, Upsample("trilinear", factors, align_corners=True), source)
    raise operator.refusal(
        f"samples in the mode {mode} at positions {positions}, which is not supported"
    )


def _takes_nearest(factor: int, positions: str, rounding: str) -> bool:
    """Whether each voxel is repeated `factor` times, which is what PyTorch does."""
    made = np.arange(6 * factor, dtype=np.float64)
    match positions:
        case "asymmetric":
            read = made / factor
        case "half_pixel" | "pytorch_half_pixel":
            read = (made + 0.5) / factor - 0.5
        case "tf_half_pixel_for_nn":
            read = (made + 0.5) / factor
        case _:
            return False
    match rounding:
        case "floor":
            taken = np.floor(read)
        case "ceil":
            taken = np.ceil(read)
        case "round_prefer_floor":
            taken = np.ceil(read - 0.5)
        case "round_prefer_ceil":
            taken = np.floor(read + 0.5)
        case _:
            return False
    return np.array_equal(np.clip(taken, 0, 5), made // factor)


def _factors(builder: Builder, operator: Operator, source: GraphTensor) -> Triple:
    shape = source.shape
    named = operator.attributes.get("axes")
    axes = integers(named) if named is not None else tuple(range(5))
    whole = [1.0] * 5
    for place, factor in zip(axes, _scales(builder, operator, shape, axes), strict=True):
        whole[source.axes[place]] = factor
    if any(factor != round(factor) or not 1 <= factor <= _MOST_FACTOR for factor in whole) or whole[
        :2
    ] != [1, 1]:
        raise operator.refusal(
            "samples by other factors than whole ones of D, H and W, which is not supported"
        )
    return round(whole[2]), round(whole[3]), round(whole[4])


def _scales(
    builder: Builder, operator: Operator, shape: tuple[int, ...], axes: tuple[int, ...]
) -> list[float]:
    scales: Array | None = None
    sizes: Array | None = None
    if operator.kind == "Upsample" or builder.opset < 11:
        given = operator.attributes.get("scales")
        scales = builder.array(operator, 1) if given is None else np.asarray(given)
    else:
        scales, sizes = builder.array(operator, 2), builder.array(operator, 3)
    if any(not -5 <= axis < 5 for axis in axes):
        raise operator.refusal("names axes that are not there")
    if sizes is not None and sizes.size == len(axes):
        if word(operator, "keep_aspect_ratio_policy", "stretch") != "stretch":
            raise operator.refusal("keeps an aspect ratio, which is not supported")
        wanted = zip(integers(sizes), axes, strict=True)
        return [size / shape[axis] for size, axis in wanted]
    if scales is None or scales.size != len(axes):
        raise operator.refusal("does not say by how much each axis grows")
    return [float(factor) for factor in scales.reshape(-1)]
