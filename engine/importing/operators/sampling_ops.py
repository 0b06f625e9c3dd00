"""Sampling of voxels by factors: Resize and Upsample."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from ...network.layers import Conv3d, ConvTranspose3d, FloatArray, Pad, Triple, Upsample, triple
from .graph_builder import AS_SLICES, CHANNELS, Builder, GraphTensor, Rule
from .operator_graph import Array, Operator, integers

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
    mode = operator.text("mode", "nearest")
    is_old = operator.kind == "Upsample" or builder.opset < 11
    positions = operator.text(
        "coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel"
    )
    if positions == "pytorch_half_pixel" and any(
        axis.sampled == 1 and axis.factor is None for axis in axes
    ):
        raise operator.refusal("samples a single voxel, which runtimes do differently")
    whole = [factor for factor in factors if factor is not None]
    is_same, is_cut = factors == [1, 1, 1], positions == "tf_crop_and_resize"
    if mode == "nearest" and not is_cut:
        rounding = operator.text("nearest_mode", "floor" if is_old else "round_prefer_floor")
        if output := _nearest(builder, operator, source, axes, (positions, rounding)):
            return output
    elif is_same and not is_cut:
        return source
    elif operator.attributes.get("antialias"):
        raise operator.refusal("filters, which is not supported")
    elif mode == "linear" and positions in _HALF_PIXEL:
        return _linear(builder, operator, source, axes)
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
    builder: Builder, operator: Operator, source: GraphTensor, axes: Sequence[_AxisSampling]
) -> GraphTensor:
    """Interpolate linearly between the middles of voxels, one axis after another."""
    factors = triple(axis.factor or 1 for axis in axes)
    others = [at for at, axis in enumerate(axes) if axis.factor is None]
    output = source
    if factors != (1, 1, 1):
        output = builder.add(operator, Upsample("trilinear", factors), output)
    for at in others:
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
        read = _read(axis, *positions)
        if read is None:
            return None
        taken = np.clip(read, 0, axis.extent - 1)
        if axis.factor and np.array_equal(taken, np.arange(axis.sampled) // axis.factor):
            repeats[at] = axis.factor
        elif axis.factor == 1:
            raise operator.refusal("moves voxels without sampling, which runtimes do differently")
        elif not axis.is_whole:
            raise operator.refusal(_no_period(axis))
        elif _is_exact(axis, positions, taken):
            picked.append((at, read))
        else:
            raise operator.refusal(
                f"samples {axis.sampled} of {axis.extent} voxels at positions that single "
                "precision rounds to one voxel or another"
            )
    output = source
    if repeats != [1, 1, 1]:
        output = builder.add(operator, Upsample("nearest", triple(repeats)), output)
    for at, read in picked:
        output = _picked(builder, operator, output, at, (axes[at], read))
    return output


def _picked(
    builder: Builder,
    operator: Operator,
    source: GraphTensor,
    at: int,
    sampling: "tuple[_AxisSampling, _Indices]",
) -> GraphTensor:
    """Pick voxels along an axis: all of them but for a border, or by a pattern that repeats."""
    axis, read = sampling
    taken = np.clip(read, 0, axis.extent - 1)
    before = int((taken == 0).sum()) - 1
    after = axis.sampled - axis.extent - before
    if np.array_equal(taken, np.arange(axis.sampled)):
        return builder.cropped(operator, source, [0, 0, 0, *_edges(-after, at, 0)])
    shifted = np.clip(np.arange(axis.sampled) - before, 0, axis.extent - 1)
    if min(before, after) >= 0 and np.array_equal(taken, shifted):
        ends = _edges(before, at, 0), _edges(after, at, 0)
        return builder.add(operator, Pad("replicate", *ends), source)
    return _sampled_in_periods(builder, operator, source, at, _nearest_period(operator, axis, read))


def _read(axis: _AxisSampling, positions: str, rounding: str) -> _Indices | None:
    """Return the voxel that each sampled one takes, -1 and the extent for those past the border.

    None for positions that are not known. Computed in whole numbers; `_nearest` refuses what single
    precision rounds to another voxel.
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
            return above // below
        case "ceil":
            return -(-above // below)
        case "round_prefer_floor":
            return -((below - 2 * above) // (2 * below))
        case "round_prefer_ceil":
            return (2 * above + below) // (2 * below)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Period:
    """Pattern that repeats along an axis.

    voxels: its extent before. rows: for each sampled voxel, the weights of those that are read.
    margin: voxels read before and after the pattern, which repeat the border.
    """

    voxels: int
    rows: FloatArray
    margin: int


def _nearest_period(operator: Operator, axis: _AxisSampling, read: _Indices) -> _Period:
    """Return the pattern of an axis; raises CheckpointError if it has none that layers take."""
    common = gcd(axis.extent, axis.sampled)
    voxels, count = axis.extent // common, axis.sampled // common
    period = read[:count]
    starts = voxels * np.arange(common)[:, None]
    if (
        max(voxels, count) > _MOST_SAMPLING
        or not np.array_equal(read.reshape(common, count), starts + period)
        or not (period.min() >= -1 and period.max() <= voxels)
    ):
        raise operator.refusal(_no_period(axis))
    if period.min() >= 0 and period.max() < voxels:
        return _Period(voxels, np.eye(voxels, dtype=np.float32)[period], 0)
    return _Period(voxels, np.eye(voxels + 2, dtype=np.float32)[period + 1], 1)


def _no_period(axis: _AxisSampling) -> str:
    return (
        f"samples {axis.sampled} of {axis.extent} voxels, which repeats in no pattern of up to "
        f"{_MOST_SAMPLING}; import it for another patch"
    )


def _is_exact(axis: _AxisSampling, positions: tuple[str, str], taken: _Indices) -> bool:
    """Return whether single precision takes these voxels, dividing or multiplying by the scale."""
    where, rounding = positions
    half = np.float32(0 if where == "asymmetric" else 0.5)
    start = np.arange(axis.sampled, dtype=np.float32) + half
    scale, inverse = np.float32(axis.scale), np.float32(axis.extent / axis.sampled)
    shift = half if "half_pixel" in where and where != "tf_half_pixel_for_nn" else np.float32(0)
    places = (start / scale - shift, start * inverse - shift)
    rounded = [_ROUNDINGS[rounding](place) for place in places]
    return all(np.array_equal(np.clip(one, 0, axis.extent - 1), taken) for one in rounded)


_ROUNDINGS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda place: np.ceil(place - np.float32(0.5)),
    "round_prefer_ceil": lambda place: np.floor(place + np.float32(0.5)),
}


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


SAMPLING_RULES: Mapping[str, Rule] = dict.fromkeys(("Resize", "Upsample"), _resize)
"""Rules of the operators of sampling."""
