"""A translation back onto the grid of its scan, and the memory for it."""

from dataclasses import dataclass, replace

import numpy as np

from ...engine.cores import in_parallel
from ...engine.model.intensity_maps import NetworkRange
from ...engine.network.layers import FloatArray
from ...engine.scaling import Scaling, Stored
from ...io.volume import Empty, Volume
from ..settings import OutputType
from .geometry import slabs
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
    view; None if network intensities are stored first, to be processed further.
    """

    target: Stored
    volume: Volume | None = None


def canvas(prepared: Prepared, empty: Empty = np.empty) -> Canvas:
    """Allocate a canvas: the result's own voxels if the plan says so."""
    results = prepared.plan.results
    if prepared.plan.is_output_as_stored and (voxel_type := results[0].voxel_type):
        volume = _blank(prepared, 0, voxel_type, empty)
        target = mapped_voxels(volume, prepared.fit.outward[0], prepared.plan.orientation)
        return Canvas(Stored(target.voxels[None], target.scaling), volume)
    return Canvas(Stored(lying_alike(prepared.network_input.values[0], len(results), empty)))


def map_canvas(prepared: Prepared, empty: Empty) -> Canvas:
    """Allocate a canvas for network intensities of a map: its own voxels if on the scan's grid."""
    plan = prepared.plan
    if plan.resampling is None and plan.crop is None:
        volume = _blank(prepared, 0, _MAP_VOXELS, empty)
        return Canvas(Stored(plan.orientation.oriented(volume.voxels)[None]), volume)
    return Canvas(Stored(lying_alike(prepared.network_input.values[0], 1, empty)))


def finish_map(prepared: Prepared, output: Canvas, fitted: FittedMap, empty: Empty) -> Volume:
    """Return a map as float32 on exactly the scan's grid; fitted: to the map's values."""
    volume = output.volume or _blank(prepared, 0, _MAP_VOXELS, empty)
    _scatter(output.target.values[0], prepared, volume, fitted)
    return volume


def finish(prepared: Prepared, output: Canvas, empty: Empty = np.empty) -> tuple[Volume, ...]:
    """Return the network's output as a volume for each channel, on exactly the grid of the first
    scan.

    Raises PrecisionOverflowError if the voxel type cannot hold a value.
    """
    if output.volume is not None:
        return (output.volume,)
    return tuple(
        _finished(prepared, channel, network, empty)
        for channel, network in enumerate(output.target.values)
    )


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


def note_of_cut_values(
    result: Volume, outward: FittedMap, network: NetworkRange, asked: OutputType | None = None
) -> str:
    """Return a note if a result may be clipped at an end of its voxel type; else "".

    The type is the scan's or was requested. outward: from the network's values to those of the
    result. network: its range, which may exclude clipping. asked: the requested type. The lowest
    number of an unsigned type does not count, as it is the background of most scans that have one,
    unless a type was requested that cannot hold values below it.
    """
    dtype = result.voxels.dtype
    if dtype.kind not in "iu":
        return ""
    limits = np.iinfo(dtype)
    low, high = sorted((end - result.intercept) / result.slope for end in outward.ends)
    if network != "open" and limits.min - 0.5 <= low and high <= limits.max + 0.5:
        return ""
    is_background = dtype.kind == "u" and not (asked and low < limits.min - 0.5)
    ends = (limits.max,) if is_background else (limits.min, limits.max)
    cut = sum(int(np.count_nonzero(result.voxels == end)) for end in ends)
    if not cut:
        return ""
    counted = f"{cut} of {result.voxels.size} voxels of its result are at an end of"
    if asked:
        return (
            f"{counted} voxel type {dtype}, where values beyond it are clipped; float32 would keep "
            "them"
        )
    return (
        f"{counted} the scan's voxel type ({dtype}), where larger values are clipped; save the "
        "scan as float32 to keep them"
    )


def _finished(prepared: Prepared, channel: int, network: FloatArray, empty: Empty) -> Volume:
    voxel_type = _voxel_type(network, channel, prepared)
    volume = _blank(prepared, channel, voxel_type, empty)
    _scatter(network, prepared, volume, prepared.fit.outward[channel])
    return volume


def _voxel_type(network: FloatArray, channel: int, prepared: Prepared) -> VoxelType:
    """Return the planned voxel type, or choose one by the network's output."""
    result = prepared.plan.results[channel]
    if result.voxel_type:
        return result.voxel_type
    ends, outward = extremes(network), prepared.fit.outward[channel]
    low, high = map(float, outward.values(np.array([ends.low, ends.high])))
    if prepared.plan.crop:
        low, high = min(low, prepared.fill), max(high, prepared.fill)
    source = voxel_type_of(prepared.source)
    is_whole = source.dtype.kind != "f"
    steps = min(ENOUGH_STEPS, prepared.fit.steps) if is_whole else ENOUGH_STEPS
    return choose_voxel_type(source, Demand(Range(low, high), steps), result.asked)


def _blank(prepared: Prepared, channel: int, voxel_type: VoxelType, empty: Empty) -> Volume:
    """Allocate a volume on the first scan's grid."""
    voxels = empty(prepared.source.shape[::-1], voxel_type.dtype).transpose()
    slope, intercept = voxel_type.slope, voxel_type.intercept
    if prepared.plan.crop:
        around = np.empty((1, 1, 1), voxel_type.dtype)
        fill = np.full((1, 1, 1), prepared.fill, np.float32)
        Scaling().of_stored(slope, intercept).store(fill, around)
        voxels[...] = around
    keeps_unit = prepared.plan.results[channel].keeps_unit
    volume = prepared.source.with_voxels(voxels, slope, intercept, keeps_unit=keeps_unit)
    if prepared.marks:
        volume = replace(volume, mark=prepared.marks[channel])
    return volume


def _scatter(network: FloatArray, prepared: Prepared, volume: Volume, fitted: FittedMap) -> None:
    """Write network intensities of the model's grid to a volume on the scan's grid."""
    plan = prepared.plan
    target = mapped_voxels(plan.part(volume), fitted, plan.orientation)
    resample = plan.resampling
    if resample is None:
        in_parallel(lambda slab: target.write(network[slab], slab), slabs(network))
        return

    def read(start: int, stop: int) -> FloatArray:
        return network[start:stop]

    for part, values in resample.inverse.parts(read):
        target.write(values, part)
