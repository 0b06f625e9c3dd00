"""A map as it is stored beside its study's result."""

from dataclasses import dataclass

from ....io.maps import MapMark
from ....io.volume import Volume


@dataclass(frozen=True, slots=True)
class StudyMap:
    """mark: what it is. volume: its values on the scan's grid, in the format of the result."""

    mark: MapMark
    volume: Volume
