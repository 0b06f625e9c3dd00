"""In which voxel type a result is stored."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....engine.model.card import Identity, IntensityMap, ModelCard, Window
from ....io.volume import Volume
from .statistics import Range

ENOUGH_STEPS = 255
"""Steps of an 8-bit image: what a result has at least between its lowest and highest value."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A voxel type and the line ``value = stored * slope + intercept``."""

    dtype: "np.dtype[Any]"
    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What a result asks of its voxel type: to hold a range in at least so many steps."""

    range: Range
    steps: float = ENOUGH_STEPS


def in_own_unit(intensity_out: IntensityMap) -> bool:
    """Whether an output map's numbers are measured on the study that is translated."""
    return not isinstance(intensity_out, Window | Identity)


def has_own_range(intensity_out: IntensityMap) -> bool:
    """Whether the range of a result is known only once it is there."""
    return isinstance(intensity_out, Identity)


def choose_storage(source: Storage, card: ModelCard, demand: Demand) -> Storage:
    """The voxel type of a result.

    1. A floating-point scan stays what it is.
    2. If the result is in the scan's own unit (the output map is measured on the study itself), it
       is stored as the scan was: same type, slope and intercept.
    3. Otherwise it is stored as the scan was if that holds the whole range of the result in at
       least 255 steps; else as int16 without slope if that does; else as float32.

    Where the output map is Identity, the range is that of the result itself, and fewer steps are
    enough if the scan used fewer itself.
    """
    if source.dtype.kind == "f" or in_own_unit(card.intensity_out) or _fits(source, demand):
        return source
    int16 = Storage(np.dtype(np.int16))
    return int16 if _fits(int16, demand) else Storage(np.dtype(np.float32))


def storage_of(volume: Volume) -> Storage:
    """How a volume is stored, in this machine's byte order."""
    return Storage(volume.voxels.dtype.newbyteorder("="), volume.slope, volume.intercept)


def _fits(storage: Storage, demand: Demand) -> bool:
    """Whether a type holds the range, to the half step by which storing rounds anyway."""
    limits = np.iinfo(storage.dtype)
    ends = sorted(end * storage.slope + storage.intercept for end in (limits.min, limits.max))
    step = abs(storage.slope)
    return (
        ends[0] - step / 2 <= demand.range.low
        and demand.range.high <= ends[1] + step / 2
        and demand.range.high - demand.range.low >= step * (demand.steps - 0.5)
    )
