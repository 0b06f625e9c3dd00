"""Operators that read around a voxel, or resample: convolution, pooling, padding and Resize."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from ...network.layers import (
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
    Upsample,
    triple,
)
from .graph_builder import (
    AS_SLICES,
    CHANNELS,
    Builder,
    GraphTensor,
    Rule,
)
from .operator_graph import Array, Operator, integers

_ZERO: Triple = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class _KernelWindow:
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


def _window_of(operator: Operator, kernel: Triple, extents: Triple) -> _KernelWindow:
    """Return the geometry of a convolution or pooling that does not enlarge."""
    one: Triple = (1, 1, 1)
    stride, dilation = (
        operator.triple("strides", one),
        operator.triple("dilations", one),
    )
    if operator.triple("kernel_shape", kernel) != kernel or min(*stride, *dilation, *kernel) < 1:
        raise operator.refusal("has an invalid kernel or strides")
    before, after = _pads(operator)
    automatic = operator.text("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        missing = [
            max(0, (-(-extent // step) - 1) * step + (taps - 1) * apart + 1 - extent)
            for extent, step, taps, apart in zip(extents, stride, kernel, dilation, strict=True)
        ]
        before, after = _split_evenly(missing, more_after=automatic == "SAME_UPPER")
    return _KernelWindow(kernel, stride, dilation, before, after)


def _split_evenly(missing: list[int], *, more_after: bool) -> tuple[Triple, Triple]:
    """Split padding between both ends of each axis; an odd voxel goes to the end or the start."""
    few: Triple = (missing[0] // 2, missing[1] // 2, missing[2] // 2)
    many: Triple = (missing[0] - few[0], missing[1] - few[1], missing[2] - few[2])
    return (few, many) if more_after else (many, few)


def _pads(operator: Operator) -> tuple[Triple, Triple]:
    pads = operator.integers("pads", (0,) * 6)
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
    groups = operator.integer("group", 1)
    if groups < 1 or channels % groups or into % groups:
        raise operator.refusal(f"has {groups} groups, which do not divide its channels")
    return groups


def _in_three_axes(builder: Builder, operator: Operator) -> tuple[GraphTensor, Operator]:
    """Return the tensor of a layer that reads around each voxel, and the operator in three axes.

    On slices as a batch, a kernel of two axes is one slice deep.
    """
    source = builder.tensor(operator)
    if source.axes != AS_SLICES:
        return builder.tensor(operator, in_order=True), operator
    attributes = dict(operator.attributes)
    for name, of_one in _OF_ONE_SLICE.items():
        if name in attributes:
            values = integers(attributes[name])
            ends = (values[:2], values[2:]) if name == "pads" else (values,)
            attributes[name] = tuple(one for end in ends for one in (of_one, *end))
    return source, replace(operator, attributes=attributes)


_OF_ONE_SLICE = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
"""Attributes along the axes of a kernel, with their value along D for one slice."""


def _weight(builder: Builder, operator: Operator, source: GraphTensor) -> Array:
    """Return the weight of a convolution, along three axes."""
    weight = builder.weight(operator, 1)
    is_flat = source.axes == AS_SLICES and weight.ndim == len(AS_SLICES)
    return weight[:, :, None] if is_flat else weight


def _convolve(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Conv; zero padding that differs between the ends becomes a separate layer."""
    source, operator = _in_three_axes(builder, operator)
    weight = _weight(builder, operator, source)
    window = _window_of(operator, _kernel(operator, weight), source.extents)
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


def _convolve_transposed(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert ConvTranspose; a Crop layer removes what PyTorch's padding cannot."""
    source, operator = _in_three_axes(builder, operator)
    weight = _weight(builder, operator, source)
    kernel = _kernel(operator, weight)
    groups = _groups(operator, source.channels, 0)
    if weight.shape[0] != source.channels:
        raise operator.refusal(f"takes {weight.shape[0]} channels of {source.channels}")
    window = _window_of(operator, kernel, (1, 1, 1))
    extra = operator.triple("output_padding", _ZERO)
    before, after = _cut_ends(operator, window, extra, source.extents)
    # PyTorch's padding is the same at both ends; the difference is added to the output or cropped.
    growth = [extra[axis] + before[axis] - after[axis] for axis in range(3)]
    grown: Triple = (max(0, growth[0]), max(0, growth[1]), max(0, growth[2]))
    cropped: Triple = (max(0, -growth[0]), max(0, -growth[1]), max(0, -growth[2]))
    out = weight.shape[1] * groups
    names = _kept(builder, operator, weight, out)
    sizes = window.stride, before, grown, window.dilation, groups
    layer = ConvTranspose3d(source.channels, out, kernel, *names, *sizes)
    output = builder.add(operator, layer, source)
    return builder.add(operator, Crop(_ZERO, cropped), output) if any(cropped) else output


def _cut_ends(
    operator: Operator, window: _KernelWindow, extra: Triple, extents: Triple
) -> tuple[Triple, Triple]:
    """Return the voxels to remove from the full output, at the start and the end of each axis."""
    automatic = operator.text("auto_pad", "NOTSET")
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
    return _split_evenly(cut, more_after=automatic == "SAME_UPPER")


_PAD_MODES: dict[str, PadMode] = {"reflect": "reflect", "edge": "replicate"}


def _pad(builder: Builder, operator: Operator) -> GraphTensor:
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
        source = builder.cropped(operator, source, cut)
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
    before, after = (builder.filled(operator, source, count, value) for count in ends)
    joined = source if before is None else builder.add(operator, Concat(), before, source)
    return joined if after is None else builder.add(operator, Concat(), joined, after)


_MOST_CHANNELS = 4096


def _pad_ends(builder: Builder, operator: Operator, rank: int) -> dict[int, tuple[int, int]]:
    """Return the padding before and after, by axis index of the file."""
    stated = operator.attributes.get("pads", builder.array(operator, 1))
    named = builder.array(operator, 3)
    axes = tuple(range(rank)) if named is None else integers(named)
    pads = () if stated is None else integers(stated)
    if len(pads) != 2 * len(axes) or any(not -rank <= axis < rank for axis in axes):
        raise operator.refusal("does not give the factor of each axis")
    return {axis % rank: (pads[at], pads[len(axes) + at]) for at, axis in enumerate(axes)}


def _pad_mode(builder: Builder, operator: Operator) -> PadMode:
    mode = operator.text("mode", "constant")
    if mode in _PAD_MODES:
        return _PAD_MODES[mode]
    if mode != "constant":
        raise operator.refusal(f"has the mode {mode}, which is not supported")
    stated = builder.array(operator, 2)
    value = operator.number("value", 0.0) if stated is None or stated.size != 1 else stated.item()
    return Constant(float(value)) if value else "zero"


def _pool(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert MaxPool and AveragePool."""
    source, operator = _in_three_axes(builder, operator)
    kernel = operator.triple("kernel_shape", (0, 0, 0))
    window = _window_of(operator, kernel, source.extents)
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


_MOST_SAMPLING = 16
_NEARLY = 1e-6


_MOST_VOXELS = 1 << 16
"""Limit along one axis."""


_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _AxisSampling:
    """Sampling of one axis.

    extent, sampled: voxels before and after. scale: their ratio as stored.
    """

    extent: int
    sampled: int
    scale: float

    @property
    def factor(self) -> int | None:
        """The scale if it is a whole number that an Upsample takes."""
        takes = self.scale == round(self.scale) and 1 <= self.scale <= _MOST_SAMPLING
        return round(self.scale) if takes else None

    @property
    def is_whole(self) -> bool:
        """Whether the scale makes a whole number of voxels of the extent."""
        return abs(self.extent * self.scale - self.sampled) <= _NEARLY * self.sampled


def _resize(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Resize and Upsample; by other than whole factors if the positions repeat."""
    source = builder.tensor(operator)
    if not {*AS_SLICES} <= {*source.axes}:
        raise operator.refusal("samples a tensor without channels, which is not supported")
    axes = _axes(builder, operator, source)
    factors = [axis.factor for axis in axes]
    if factors == [1, 1, 1]:
        return source
    mode = operator.text("mode", "nearest")
    is_old = operator.kind == "Upsample" or builder.opset < 11
    positions = operator.text(
        "coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel"
    )
    if operator.attributes.get("antialias"):
        raise operator.refusal("filters, which is not supported")
    whole = [factor for factor in factors if factor is not None]
    if mode == "nearest":
        rounding = operator.text("nearest_mode", "floor" if is_old else "round_prefer_floor")
        if output := _nearest(builder, operator, source, axes, (positions, rounding)):
            return output
    elif mode == "linear" and positions in _HALF_PIXEL:
        return _linear(builder, operator, source, axes, positions)
    elif mode == "linear" and positions == "align_corners":
        if len(whole) < len(factors):
            raise operator.refusal(
                "aligns the corners while sampling by factors of D, H and W that are not integers, "
                "so each voxel is weighed differently; that would need a layer of its own"
            )
        layer = Upsample("trilinear", triple(whole), align_corners=True)
        return builder.add(operator, layer, source)
    raise operator.refusal(
        f"samples in the mode {mode} at positions {positions}, which is not supported"
    )


_HALF_PIXEL = ("half_pixel", "pytorch_half_pixel")


def _linear(
    builder: Builder,
    operator: Operator,
    source: GraphTensor,
    axes: Sequence[_AxisSampling],
    positions: str,
) -> GraphTensor:
    """Interpolate linearly between the middles of voxels, one axis after another."""
    factors = triple(axis.factor or 1 for axis in axes)
    others = [at for at, axis in enumerate(axes) if axis.factor is None]
    output = source
    if factors != (1, 1, 1):
        output = builder.add(operator, Upsample("trilinear", factors), output)
    for at in others:
        if positions != "half_pixel" and axes[at].sampled == 1:
            raise operator.refusal("samples a single voxel, which runtimes do differently")
        output = _sampled_in_periods(
            builder, operator, output, at, _linear_period(operator, axes[at])
        )
    return output


def _linear_period(operator: Operator, axis: _AxisSampling) -> "_Period":
    """Return the pattern of linear interpolation along an axis, whose border is repeated."""
    common = gcd(axis.extent, axis.sampled)
    voxels, count = axis.extent // common, axis.sampled // common
    if max(voxels, count) > _MOST_SAMPLING or not axis.is_whole:
        raise operator.refusal(_no_period(axis))
    places = (np.arange(count) + 0.5) * voxels / count - 0.5
    first = np.floor(places).astype(np.int64)
    share = (places - first).astype(np.float32)
    rows = np.zeros((count, voxels + 2), np.float32)  # of which the ends are the neighbours'
    rows[np.arange(count), first + 1] = 1 - share
    rows[np.arange(count), first + 2] += share
    is_inside = not rows[:, 0].any() and not rows[:, -1].any()
    return _Period(voxels, rows[:, 1:-1], 0) if is_inside else _Period(voxels, rows, 1)


def _nearest(
    builder: Builder,
    operator: Operator,
    source: GraphTensor,
    axes: Sequence[_AxisSampling],
    positions: tuple[str, str],
) -> GraphTensor | None:
    """Sample in the mode nearest; None if its positions are not known.

    positions: coordinate_transformation_mode and nearest_mode.
    """
    repeats = [1, 1, 1]
    picked: list[tuple[int, _Indices]] = []
    for at, axis in enumerate(axes):
        taken = _taken(axis, *positions)
        if taken is None:
            return None
        if axis.factor and np.array_equal(taken, np.arange(axis.sampled) // axis.factor):
            repeats[at] = axis.factor
        elif _is_exact(axis, middles=positions[0] != "asymmetric"):
            picked.append((at, taken))
        else:
            raise operator.refusal(_no_period(axis))
    output = source
    if repeats != [1, 1, 1]:
        output = builder.add(operator, Upsample("nearest", triple(repeats)), output)
    for at, taken in picked:
        output = _picked(builder, operator, output, at, (axes[at], taken))
    return output


def _picked(
    builder: Builder,
    operator: Operator,
    source: GraphTensor,
    at: int,
    sampling: "tuple[_AxisSampling, _Indices]",
) -> GraphTensor:
    """Pick voxels along an axis: all of them but for a border, or by a pattern that repeats."""
    axis, taken = sampling
    before = int((taken == 0).sum()) - 1
    after = axis.sampled - axis.extent - before
    if np.array_equal(taken, np.arange(axis.sampled)):
        return builder.cropped(operator, source, [0, 0, 0, *_edges(-after, at, 0)])
    shifted = np.clip(np.arange(axis.sampled) - before, 0, axis.extent - 1)
    if min(before, after) >= 0 and np.array_equal(taken, shifted):
        ends = _edges(before, at, 0), _edges(after, at, 0)
        return builder.add(operator, Pad("replicate", *ends), source)
    return _sampled_in_periods(
        builder, operator, source, at, _nearest_period(operator, axis, taken)
    )


def _taken(axis: _AxisSampling, positions: str, rounding: str) -> _Indices | None:
    """Return the voxel that each sampled one takes; None for positions that are not known.

    Computed in whole numbers; `_period` refuses what single precision rounds to another voxel.
    """
    at = np.arange(axis.sampled, dtype=np.int64)
    extent, count = axis.extent, axis.sampled
    match positions:
        case "asymmetric":
            above, below = at * extent * 2, count * 2
        case "half_pixel" | "pytorch_half_pixel":
            above, below = (2 * at + 1) * extent - count, count * 2
        case "tf_half_pixel_for_nn":
            above, below = (2 * at + 1) * extent, count * 2
        case _:
            return None
    match rounding:
        case "floor":
            taken = above // below
        case "ceil":
            taken = -(-above // below)
        case "round_prefer_floor":
            taken = -((below - 2 * above) // (2 * below))
        case "round_prefer_ceil":
            taken = (2 * above + below) // (2 * below)
        case _:
            return None
    return np.clip(taken, 0, extent - 1)


@dataclass(frozen=True, slots=True)
class _Period:
    """Pattern that repeats along an axis.

    voxels: its extent before. rows: for each sampled voxel, the weights of those that are read.
    margin: voxels read before and after the pattern, which repeat the border.
    """

    voxels: int
    rows: FloatArray
    margin: int


def _nearest_period(operator: Operator, axis: _AxisSampling, taken: _Indices) -> _Period:
    """Return the pattern of an axis; raises CheckpointError if it has none that layers take."""
    common = gcd(axis.extent, axis.sampled)
    voxels, count = axis.extent // common, axis.sampled // common
    period = taken[:count]
    starts = voxels * np.arange(common)[:, None]
    if (
        max(voxels, count) > _MOST_SAMPLING
        or not np.array_equal(taken.reshape(common, count), starts + period)
        or not (period.min() >= 0 and period.max() < voxels)
    ):
        raise operator.refusal(_no_period(axis))
    return _Period(voxels, np.eye(voxels, dtype=np.float32)[period], 0)


def _no_period(axis: _AxisSampling) -> str:
    return (
        f"samples {axis.sampled} of {axis.extent} voxels, which repeats in no pattern of up to "
        f"{_MOST_SAMPLING}; import it for another patch"
    )


def _is_exact(axis: _AxisSampling, *, middles: bool) -> bool:
    """Return whether single precision takes the same voxels, multiplying or dividing by the scale.

    middles: whether the middles of voxels are scaled, not their starts.
    """
    if not axis.is_whole:
        return False
    twice = 2 * np.arange(axis.sampled, dtype=np.int64) + middles
    exact = twice * axis.extent // (2 * axis.sampled)
    single = twice.astype(np.float32) / np.float32(2)
    scale = np.float32(axis.scale)
    inverse = np.float32(axis.extent / axis.sampled)
    return all(np.array_equal(np.floor(one), exact) for one in (single / scale, single * inverse))


def _sampled_in_periods(
    builder: Builder, operator: Operator, source: GraphTensor, at: int, period: _Period
) -> GraphTensor:
    """Add a convolution that makes the sampled voxels channels, and one that lines them up."""
    channels, (count, taps) = source.channels, period.rows.shape
    if period.margin:
        ends = _edges(period.margin, at, 0)
        source = builder.add(operator, Pad("replicate", ends, ends), source)
    weight = builder.keep("weight", np.tile(_along(period.rows, at), (channels, 1, 1, 1, 1)))
    sizes = channels, channels * count, _edges(taps, at), weight
    step = _edges(period.voxels, at)
    output = builder.add(operator, Conv3d(*sizes, stride=step, groups=channels), source)
    if count == 1:
        return output
    ones = _along(np.eye(count, dtype=np.float32), at)
    weight = builder.keep("weight", np.tile(ones, (channels, 1, 1, 1, 1)))
    window = _edges(count, at)
    sizes = channels * count, channels, window, weight
    return builder.add(operator, ConvTranspose3d(*sizes, stride=window, groups=channels), output)


def _along(rows: FloatArray, axis: int) -> FloatArray:
    """Return rows as kernels [rows, 1, kD, kH, kW] along an axis."""
    return rows.reshape(len(rows), 1, *_edges(rows.shape[1], axis))


def _edges(edge: int, axis: int, others: int = 1) -> Triple:
    return triple(edge if at == axis else others for at in range(3))


def _axes(builder: Builder, operator: Operator, source: GraphTensor) -> list[_AxisSampling]:
    """Return the sampling of D, H and W; raises CheckpointError if other axes are sampled."""
    shape = source.shape
    named = operator.attributes.get("axes")
    places = integers(named) if named is not None else tuple(range(len(shape)))
    if any(not -len(shape) <= place < len(shape) for place in places):
        raise operator.refusal("refers to axes that do not exist")
    found = {
        axis: _AxisSampling(extent, extent, 1.0)
        for axis, extent in zip(source.axes, shape, strict=True)
    }
    for place, sampled in zip(places, _sampled(builder, operator, shape, places), strict=True):
        found[source.axes[place]] = sampled
    if any(found[axis].scale != 1 for axis in {0, CHANNELS} & found.keys()):
        raise operator.refusal("samples the batch or the channels, which is not supported")
    if not all(1 <= found[axis].sampled <= _MOST_VOXELS for axis in (2, 3, 4)):
        raise operator.refusal(f"creates no voxels along an axis, or more than {_MOST_VOXELS}")
    return [found[axis] for axis in (2, 3, 4)]


def _sampled(
    builder: Builder, operator: Operator, shape: tuple[int, ...], places: tuple[int, ...]
) -> list[_AxisSampling]:
    scales: Array | None = None
    sizes: Array | None = None
    if operator.kind == "Upsample" or builder.opset < 11:
        stated: Any = operator.attributes.get("scales")
        scales = builder.array(operator, 1) if stated is None else np.asarray(stated)
    else:
        scales, sizes = builder.array(operator, 2), builder.array(operator, 3)
    if sizes is not None and sizes.size == len(places):
        if operator.text("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise operator.refusal("keeps an aspect ratio, which is not supported")
        wanted = zip(integers(sizes), places, strict=True)
        return [_AxisSampling(shape[at], size, size / shape[at]) for size, at in wanted]
    if scales is None or scales.size != len(places):
        raise operator.refusal("does not give the factor of each axis")
    factors = zip(scales.reshape(-1), places, strict=True)
    return [
        _AxisSampling(shape[at], floor(shape[at] * float(scale)), float(scale))
        for scale, at in factors
    ]


SPATIAL_RULES: Mapping[str, Rule] = {
    "Conv": _convolve,
    "ConvTranspose": _convolve_transposed,
    "Pad": _pad,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
}
"""Rules of the operators of convolution, pooling, padding and sampling."""
