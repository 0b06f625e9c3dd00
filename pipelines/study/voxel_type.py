"""Voxel type of a result."""

from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np

from ...engine.model.intensity_maps import (
    USUAL_RANGE,
    Identity,
    IntensityMap,
    NetworkRange,
    Standard,
    Steps,
    Window,
    is_measured,
)
from ...io.formats.registry import format_named
from ...io.volume import Volume
from ..settings import OutputType
from .statistics import Range

ENOUGH_STEPS = 255
"""Steps of an 8-bit image: the least between the lowest and highest value of a result."""


@dataclass(frozen=True, slots=True)
class VoxelType:
    """A voxel type and the line ``value = stored * slope + intercept``.

    dtype: of the stored numbers.
    """

    dtype: "np.dtype[Any]"
    slope: float = 1.0
    intercept: float = 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """Values of the lowest and the highest number of an integer type."""
        limits = np.iinfo(self.dtype)
        low, high = (end * self.slope + self.intercept for end in (limits.min, limits.max))
        return low, high


@dataclass(frozen=True, slots=True)
class Demand:
    """Requirement on the voxel type of a result.

    range: of values to hold. steps: least number of steps in it; for the result's own range, fewer
    are enough if the scan used fewer itself.
    """

    range: Range
    steps: float = ENOUGH_STEPS


def foreseen_voxel_type(
    source: VoxelType,
    intensity_out: IntensityMap,
    network_range: NetworkRange = USUAL_RANGE,
    asked: OutputType | None = None,
) -> VoxelType | None:
    """Return the voxel type of a result if it is known in advance, else None.

    A requested type is the scan's own, or float32, or follows `whole_numbers`, for which the range
    of the result must be known. Otherwise:

    1. If the result is in the scan's own unit (the output map is measured on the study itself), it
       is stored as the scan was: same type, slope and intercept.
    2. If the output map is a window, its type follows `choose_voxel_type`.
    3. If the output map is Identity, Standard, a chain of steps that measures nothing, or a window
       of a network whose range is open, nothing is known: None.
    """
    if asked:
        return _asked_for(asked, source, _foreseen_demand(intensity_out, network_range))
    match intensity_out:
        case Identity() | Standard():
            return None
        case Steps() if not is_measured(intensity_out):
            return None
        case Window() if network_range == "open":
            return None
        case Window():
            demand = Demand(Range(intensity_out.low, intensity_out.high))
            return choose_voxel_type(source, demand)
        case _:
            return source


def _foreseen_demand(intensity_out: IntensityMap, network_range: NetworkRange) -> Demand | None:
    """Return the demand of a result if it does not depend on the study."""
    match intensity_out:
        case Window(low, high) if network_range != "open":
            return Demand(Range(low, high))
        case Identity() if network_range != "open":
            return Demand(Range(0.0 if network_range == "0..1" else -1.0, 1.0))
        case _:
            return None


def _asked_for(asked: OutputType, source: VoxelType, demand: Demand | None) -> VoxelType | None:
    match asked:
        case "same":
            return source
        case "float32":
            return VoxelType(np.dtype(np.float32))
        case "int16" | "uint16":
            return whole_numbers(np.dtype(asked), demand) if demand else None


def whole_numbers(dtype: "np.dtype[Any]", demand: Demand) -> VoxelType:
    """Return an integer type for a range of values, without an intercept, so that 0 is stored as 0.

    The slope is 1 if the type then holds the range in enough steps. Otherwise it is the smallest
    power of two with which the type holds the value farthest from 0. Values below 0 are ignored for
    an unsigned type, which cannot hold them.
    """
    limits, values = np.iinfo(dtype), demand.range
    ends = [(values.high, limits.max), *([(values.low, limits.min)] if limits.min else [])]
    low = values.low if limits.min else max(values.low, 0.0)
    slopes = [value / limit for value, limit in ends if value * limit > 0]
    least = max(slopes, default=0.0)
    if least <= 1 and values.high - low >= demand.steps - 0.5:
        return VoxelType(dtype)
    return VoxelType(dtype, 2.0 ** ceil(log2(least))) if least else VoxelType(dtype)


def choose_voxel_type(
    source: VoxelType, demand: Demand, asked: OutputType | None = None
) -> VoxelType:
    """Return the voxel type of a result that is not in the scan's own unit.

    A requested type is found as by `foreseen_voxel_type`. Otherwise a floating-point scan stays
    what it is; any other result is stored as the scan was if that holds its whole range in enough
    steps, else as int16 without slope if that does, else as float32.
    """
    if asked and (voxel_type := _asked_for(asked, source, demand)):
        return voxel_type
    if source.dtype.kind == "f" or _fits(source, demand):
        return source
    int16 = VoxelType(np.dtype(np.int16))
    return int16 if _fits(int16, demand) else VoxelType(np.dtype(np.float32))


def voxel_type_of(volume: Volume) -> VoxelType:
    """Return the voxel type for values in the unit of a scan, in native byte order: that of the
    scan, or one that holds its values if the result's format has no scale.
    """
    stored = VoxelType(volume.voxels.dtype.newbyteorder("="), volume.slope, volume.intercept)
    if format_named(volume.format).has_scale or stored == VoxelType(stored.dtype):
        return stored
    return _without_scale(stored)


def _without_scale(stored: VoxelType) -> VoxelType:
    if stored.dtype.kind == "f":
        return VoxelType(stored.dtype)
    if float(stored.slope).is_integer() and float(stored.intercept).is_integer():
        low, high = sorted(stored.ends)
        for dtype in map(np.dtype, (np.int16, np.int32)):
            limits = np.iinfo(dtype)
            if limits.min <= low and high <= limits.max:
                return VoxelType(dtype)
    return VoxelType(np.dtype(np.float32))


def _fits(voxel_type: VoxelType, demand: Demand) -> bool:
    """Return whether a type holds the range, to the half step by which storing rounds anyway."""
    ends = sorted(voxel_type.ends)
    step = abs(voxel_type.slope)
    return (
        ends[0] - step / 2 <= demand.range.low
        and demand.range.high <= ends[1] + step / 2
        and demand.range.high - demand.range.low >= step * (demand.steps - 0.5)
    )
