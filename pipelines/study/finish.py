"""A translation back onto the grid of its scan, and the memory for it."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...engine.cores import in_parallel
from ...engine.network.layers import FloatArray
from ...engine.scaling import NOTHING_CLIPPED, Clipped, Scaling, Stored
from ...io.formats.registry import format_named
from ...io.volume import Empty, Volume
from ..settings import OutputType
from .geometry import rows, slabs
from .intensities import FittedMap
from .prepare import Prepared, lying_alike, mapped_voxels
from .statistics import Range, extremes
from .voxel_type import ENOUGH_STEPS, Demand, VoxelType, choose_voxel_type, voxel_type_of

_MAP_VOXELS = VoxelType(np.dtype(np.float32))
"""Voxel type of every map: integers of the result would round away what it shows."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """Memory for a translation.

    target: filled by the network, [C, D, H, W]. volume: the one result, of which the target is a
    view; None if network intensities are stored first, to be processed further. clipped: what the
    voxel type of each result could not hold, part by part.
    """

    target: Stored
    volume: Volume | None = None
    clipped: dict[int, list[Clipped]] = field(default_factory=lambda: defaultdict(list))

    def clipped_in(self, channel: int) -> Clipped:
        """Return all that the voxel type of a finished result could not hold."""
        return sum(self.clipped[channel], NOTHING_CLIPPED)


def canvas(prepared: Prepared, empty: Empty = np.empty) -> Canvas:
    """Allocate a canvas: the result's own voxels if the plan says so."""
    results = prepared.plan.results
    if prepared.plan.is_output_as_stored and (voxel_type := results[0].voxel_type):
        volume, clipped = _blank(prepared, 0, voxel_type, empty)
        target = mapped_voxels(volume, prepared.fit.outward[0], prepared.plan.orientation)
        counted = defaultdict(list, {0: [clipped]})
        stored = Stored(target.voxels[None], target.scaling, on_clipped=counted[0].append)
        return Canvas(stored, volume, counted)
    channels = prepared.plan.channels
    return Canvas(Stored(lying_alike(prepared.network_input.values[0], channels, empty)))


def map_canvas(prepared: Prepared, empty: Empty) -> Canvas:
    """Allocate a canvas for network intensities of a map: its own voxels if on the scan's grid."""
    plan = prepared.plan
    if plan.is_on_scan and plan.crop is None:
        volume, _ = _blank(prepared, 0, _MAP_VOXELS, empty)
        return Canvas(Stored(plan.orientation.oriented(volume.voxels)[None]), volume)
    return Canvas(Stored(lying_alike(prepared.network_input.values[0], 1, empty)))


def finish_map(prepared: Prepared, output: Canvas, fitted: FittedMap, empty: Empty) -> Volume:
    """Return the last channel as a map of float32 on exactly the scan's grid.

    fitted: to the map's values.
    """
    volume = output.volume or _blank(prepared, 0, _MAP_VOXELS, empty)[0]
    _scatter(output.target.values[-1], prepared, volume, fitted)
    return volume


def finish(prepared: Prepared, output: Canvas, empty: Empty = np.empty) -> tuple[Volume, ...]:
    """Return the network's output as a volume for each channel, on exactly the grid of the first
    scan.

    Raises PrecisionOverflowError if the voxel type cannot hold a value.
    """
    if output.volume is not None:
        return (output.volume,)
    return tuple(
        _finished(prepared, channel, output.target.values[channel], output.clipped[channel], empty)
        for channel in range(len(prepared.plan.results))
    )


_NOISE = 0.01
"""Share of the highest value of a result up to which values below 0 are noise of a background."""

_EVERY = 16
"""Step along each axis of a first look: hardly any image is the same in all of these voxels."""


def note_of_one_value(result: Volume) -> str:
    """Return a note if a result has one value throughout, as of a collapsed generator; else ""."""
    voxels = result.voxels
    first = voxels[0, 0, 0]
    if (voxels[::_EVERY, ::_EVERY, ::_EVERY] != first).any() or (voxels != first).any():
        return ""
    value = float(first) * result.slope + result.intercept
    return f"its result is {value:g} throughout, so the model does not suit this scan"


def note_of_clipped_values(
    result: Volume, clipped: Clipped, scan: "np.dtype[Any]", asked: OutputType | None = None
) -> str:
    """Return a note with the number of values that the voxel type of a result could not hold, and
    the farthest of them; else "".

    scan: voxel type of the scan. asked: the requested type. If the type was not requested, values
    a little below the lowest number of an unsigned scan do not count: they are noise of the
    background, which most such scans store as that number.
    """
    dtype, size = result.voxels.dtype, result.voxels.size
    if not clipped:
        return ""
    is_background = asked is None and scan.kind == dtype.kind == "u" and not clipped.above
    if is_background and -clipped.lowest <= _NOISE * float(result.voxels.max()):
        return ""
    ends = np.iinfo(dtype)
    sides = [
        (clipped.below, ends.min, clipped.lowest, ("below", "lowest")),
        (clipped.above, ends.max, clipped.highest, ("above", "highest")),
    ]
    if result.slope < 0:
        sides = [(*side[:3], other[3]) for side, other in zip(sides, sides[::-1], strict=True)]
    counted = " and ".join(
        f"{count} of {size} voxels of its result are {side} {_value(result, end)} "
        f"({farthest}: {_value(result, stored)})"
        for count, end, stored, (side, farthest) in sides
        if count
    )
    kind = f"voxel type {dtype}" if asked else f"the scan's voxel type ({dtype})"
    other = ", as NIfTI" if format_named(result.format).is_series else ""
    return f"{counted}, which {kind} cannot hold, and were clipped; float32{other} would keep them"


def _value(result: Volume, stored: float) -> str:
    """Return a stored number as a value, in words."""
    return f"{stored * result.slope + result.intercept:g}"


def _finished(
    prepared: Prepared, channel: int, network: FloatArray, clipped: list[Clipped], empty: Empty
) -> Volume:
    voxel_type = _voxel_type(network, channel, prepared)
    volume, around = _blank(prepared, channel, voxel_type, empty)
    inside = _scatter(network, prepared, volume, prepared.fit.outward[channel])
    clipped[:] = [around, inside]
    return volume


def _voxel_type(network: FloatArray, channel: int, prepared: Prepared) -> VoxelType:
    """Return the planned voxel type, or choose one by the network's output."""
    result = prepared.plan.results[channel]
    if result.voxel_type:
        return result.voxel_type
    ends, outward = extremes(network), prepared.fit.outward[channel]
    low, high = map(float, outward.values(np.array([ends.low, ends.high])))
    if prepared.plan.crop:
        fill = prepared.fills[channel]
        low, high = min(low, fill), max(high, fill)
    if prepared.plan.window and not prepared.plan.window.keeps_all:
        low, high = min(low, prepared.window_fill), max(high, prepared.window_fill)
    source = voxel_type_of(prepared.source)
    is_whole = source.dtype.kind != "f"
    steps = min(ENOUGH_STEPS, prepared.fit.steps) if is_whole else ENOUGH_STEPS
    return choose_voxel_type(source, Demand(Range(low, high), steps), result.asked)


def _blank(
    prepared: Prepared, channel: int, voxel_type: VoxelType, empty: Empty
) -> tuple[Volume, Clipped]:
    """Allocate a volume on the first scan's grid; return also what clips outside of the crop."""
    voxels = empty(prepared.source.shape[::-1], voxel_type.dtype).transpose()
    slope, intercept = voxel_type.slope, voxel_type.intercept
    clipped = NOTHING_CLIPPED
    if crop := prepared.plan.crop:
        around = np.empty((1, 1, 1), voxel_type.dtype)
        fill = np.full((1, 1, 1), prepared.fills[channel], np.float32)
        one = Scaling().of_stored(slope, intercept).store(fill, around)
        outside = voxels.size - voxels[crop].size
        clipped = replace(one, below=one.below * outside, above=one.above * outside)
        voxels[...] = around
    keeps_unit = prepared.plan.results[channel].keeps_unit
    volume = prepared.source.with_voxels(voxels, slope, intercept, keeps_unit=keeps_unit)
    if prepared.marks:
        volume = replace(volume, mark=prepared.marks[channel])
    return volume, clipped


def _scatter(network: FloatArray, prepared: Prepared, volume: Volume, fitted: FittedMap) -> Clipped:
    """Write network intensities of the model's grid to a volume on the scan's grid.

    Return what its voxel type could not hold.
    """
    plan = prepared.plan
    target = mapped_voxels(plan.part(volume), fitted, plan.orientation)
    resample, window = plan.resampling, plan.window
    if plan.is_on_scan:
        parts = in_parallel(lambda slab: target.write(network[slab], slab), slabs(network))
        return sum(parts, NOTHING_CLIPPED)
    crops = window is not None and not window.keeps_all
    fill = fitted.network(prepared.window_fill) if crops else 0.0

    def read(start: int, stop: int) -> FloatArray:
        return window.rows(network, start, stop, fill) if window else network[start:stop]

    if resample is None:
        pieces = rows(plan.grid)
        return sum((target.write(read(*ends), slice(*ends)) for ends in pieces), NOTHING_CLIPPED)
    resampled = resample.inverse.parts(read)
    return sum((target.write(values, part) for part, values in resampled), NOTHING_CLIPPED)
