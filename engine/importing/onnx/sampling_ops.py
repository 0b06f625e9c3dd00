"""Resize and Upsample: sampling at positions that PyTorch supports, as layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from ...network.layers import Conv3d, ConvTranspose3d, Triple, Upsample, triple
from .folding import integers
from .graph_builder import IN_ORDER, Builder, GraphTensor, text_attribute
from .operator_graph import Array, Operator

_MOST_SAMPLING = 16
_MOST_VOXELS = 1 << 16
"""Limit along one axis."""
_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AxisSampling:
    """Sampling of one axis. extent, made: voxels before and after. scale: their ratio as stored."""

    extent: int
    made: int
    scale: float

    @property
    def factor(self) -> int | None:
        """The scale if it is a whole number that an Upsample takes."""
        is_whole = self.scale == round(self.scale) and 1 <= self.scale <= _MOST_SAMPLING
        return round(self.scale) if is_whole else None


def resize(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Resize and Upsample; by other than whole factors in the mode nearest alone."""
    source = builder.tensor(operator)
    if len(source.axes) != len(IN_ORDER):
        raise operator.refusal("samples a tensor without channels, which is not supported")
    axes = _axes(builder, operator, source)
    factors = [axis.factor for axis in axes]
    if factors == [1, 1, 1]:
        return source
    mode = text_attribute(operator, "mode", "nearest")
    is_old = operator.kind == "Upsample" or builder.opset < 11
    positions = text_attribute(
        operator, "coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel"
    )
    if operator.attributes.get("antialias"):
        raise operator.refusal("filters, which is not supported")
    whole = [factor for factor in factors if factor is not None]
    if mode == "nearest":
        rounding = text_attribute(
            operator, "nearest_mode", "floor" if is_old else "round_prefer_floor"
        )
        if made := _nearest(builder, operator, source, axes, (positions, rounding)):
            return made
    elif len(whole) < len(factors):
        raise operator.refusal(
            f"samples in the mode {mode} by factors of D, H and W that are not integers, which is "
            "not supported"
        )
    elif mode == "linear" and positions in ("half_pixel", "pytorch_half_pixel"):
        return builder.add(operator, Upsample("trilinear", triple(whole)), source)
    elif mode == "linear" and positions == "align_corners":
        layer = Upsample("trilinear", triple(whole), align_corners=True)
        return builder.add(operator, layer, source)
    raise operator.refusal(
        f"samples in the mode {mode} at positions {positions}, which is not supported"
    )


def _nearest(
    builder: Builder,
    operator: Operator,
    source: GraphTensor,
    axes: Sequence[AxisSampling],
    positions: tuple[str, str],
) -> GraphTensor | None:
    """Sample in the mode nearest; None if its positions are not known.

    positions: coordinate_transformation_mode and nearest_mode.
    """
    repeats = [1, 1, 1]
    picked: list[tuple[int, _Period]] = []
    for at, axis in enumerate(axes):
        taken = _taken(axis, *positions)
        if taken is None:
            return None
        if axis.factor and np.array_equal(taken, np.arange(axis.made) // axis.factor):
            repeats[at] = axis.factor
        else:
            picked.append((at, _period(operator, axis, taken, positions[0])))
    made = source
    if repeats != [1, 1, 1]:
        made = builder.add(operator, Upsample("nearest", triple(repeats)), made)
    for at, period in picked:
        made = _picked(builder, operator, made, at, period)
    return made


def _taken(axis: AxisSampling, positions: str, rounding: str) -> _Indices | None:
    """Return the voxel that each sampled one takes; None for positions that are not known.

    Computed in whole numbers; `_period` refuses what single precision rounds to another voxel.
    """
    made = np.arange(axis.made, dtype=np.int64)
    extent, count = axis.extent, axis.made
    match positions:
        case "asymmetric":
            above, below = made * extent * 2, count * 2
        case "half_pixel" | "pytorch_half_pixel":
            above, below = (2 * made + 1) * extent - count, count * 2
        case "tf_half_pixel_for_nn":
            above, below = (2 * made + 1) * extent, count * 2
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
    """Pattern that repeats along an axis: of `voxels`, those with the indices `taken` are kept."""

    voxels: int
    taken: tuple[int, ...]


def _period(operator: Operator, axis: AxisSampling, taken: _Indices, positions: str) -> _Period:
    """Return the pattern of an axis; raises CheckpointError if it has none that layers take."""
    common = gcd(axis.extent, axis.made)
    voxels, count = axis.extent // common, axis.made // common
    period = taken[:count]
    starts = voxels * np.arange(common)[:, None]
    if (
        max(voxels, count) > _MOST_SAMPLING
        or not np.array_equal(taken.reshape(common, count), starts + period)
        or not (period.min() >= 0 and period.max() < voxels)
        or not _is_exact(axis, middles=positions != "asymmetric")
    ):
        raise operator.refusal(
            f"samples {axis.made} of {axis.extent} voxels, which repeats in no pattern of up to "
            f"{_MOST_SAMPLING}; import it for another patch"
        )
    return _Period(voxels, tuple(int(one) for one in period))


def _is_exact(axis: AxisSampling, *, middles: bool) -> bool:
    """Return whether single precision takes the same voxels, multiplying or dividing by the scale.

    middles: whether the middles of voxels are scaled, not their starts.
    """
    if abs(axis.extent * axis.scale - axis.made) > _NEARLY * axis.made:
        return False
    twice = 2 * np.arange(axis.made, dtype=np.int64) + middles
    exact = twice * axis.extent // (2 * axis.made)
    single = twice.astype(np.float32) / np.float32(2)
    scale = np.float32(axis.scale)
    inverse = np.float32(axis.extent / axis.made)
    return all(np.array_equal(np.floor(one), exact) for one in (single / scale, single * inverse))


_NEARLY = 1e-6


def _picked(
    builder: Builder, operator: Operator, source: GraphTensor, axis: int, period: _Period
) -> GraphTensor:
    """Add a convolution that keeps the taken voxels as channels, and one that lines them up."""
    if source.axes != IN_ORDER:
        raise operator.refusal("works on axes in an order that is not supported")
    channels, count = source.channels, len(period.taken)
    kept = np.eye(period.voxels, dtype=np.float32)[list(period.taken)]
    weight = builder.keep("weight", np.tile(_along(kept, axis), (channels, 1, 1, 1, 1)))
    window = _edges(period.voxels, axis)
    sizes = channels, channels * count, window, weight
    made = builder.add(operator, Conv3d(*sizes, stride=window, groups=channels), source)
    if count == 1:
        return made
    ones = _along(np.eye(count, dtype=np.float32), axis)
    weight = builder.keep("weight", np.tile(ones, (channels, 1, 1, 1, 1)))
    window = _edges(count, axis)
    sizes = channels * count, channels, window, weight
    return builder.add(operator, ConvTranspose3d(*sizes, stride=window, groups=channels), made)


def _along(rows: npt.NDArray[np.float32], axis: int) -> npt.NDArray[np.float32]:
    """Return rows as kernels [rows, 1, kD, kH, kW] along an axis."""
    return rows.reshape(len(rows), 1, *_edges(rows.shape[1], axis))


def _edges(edge: int, axis: int) -> Triple:
    return triple(edge if at == axis else 1 for at in range(3))


def _axes(builder: Builder, operator: Operator, source: GraphTensor) -> list[AxisSampling]:
    """Return the sampling of D, H and W; raises CheckpointError if other axes are sampled."""
    shape = source.shape
    named = operator.attributes.get("axes")
    places = integers(named) if named is not None else tuple(range(len(shape)))
    if any(not -len(shape) <= place < len(shape) for place in places):
        raise operator.refusal("refers to axes that do not exist")
    found = {
        axis: AxisSampling(extent, extent, 1.0)
        for axis, extent in zip(source.axes, shape, strict=True)
    }
    for place, sampled in zip(places, _sampled(builder, operator, shape, places), strict=True):
        found[source.axes[place]] = sampled
    if any(found[axis].scale != 1 for axis in (0, 1)):
        raise operator.refusal("samples the batch or the channels, which is not supported")
    if not all(1 <= found[axis].made <= _MOST_VOXELS for axis in (2, 3, 4)):
        raise operator.refusal(f"creates no voxels along an axis, or more than {_MOST_VOXELS}")
    return [found[axis] for axis in (2, 3, 4)]


def _sampled(
    builder: Builder, operator: Operator, shape: tuple[int, ...], places: tuple[int, ...]
) -> list[AxisSampling]:
    scales: Array | None = None
    sizes: Array | None = None
    if operator.kind == "Upsample" or builder.opset < 11:
        given: Any = operator.attributes.get("scales")
        scales = builder.array(operator, 1) if given is None else np.asarray(given)
    else:
        scales, sizes = builder.array(operator, 2), builder.array(operator, 3)
    if sizes is not None and sizes.size == len(places):
        if text_attribute(operator, "keep_aspect_ratio_policy", "stretch") != "stretch":
            raise operator.refusal("keeps an aspect ratio, which is not supported")
        wanted = zip(integers(sizes), places, strict=True)
        return [AxisSampling(shape[at], size, size / shape[at]) for size, at in wanted]
    if scales is None or scales.size != len(places):
        raise operator.refusal("does not give the factor of each axis")
    factors = zip(scales.reshape(-1), places, strict=True)
    return [
        AxisSampling(shape[at], floor(shape[at] * float(scale)), float(scale))
        for scale, at in factors
    ]
