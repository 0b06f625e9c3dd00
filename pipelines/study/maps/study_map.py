"""A map as it is stored beside its study's result."""

from dataclasses import dataclass

from ....io.maps import MapKind, MapMark
from ....io.volume import Volume

_LIKE_RESULTS: tuple[MapKind, ...] = ("spread-mean",)


@dataclass(frozen=True, slots=True)
class StudyMap:
    """mark: what it is. volume: its values on the scan's grid, in the format of the result."""

    mark: MapMark
    volume: Volume


def is_shown(mark: MapMark) -> bool:
    """Whether a preview shows the map beside the result; one that looks like it tells nothing."""
    return mark.kind not in _LIKE_RESULTS
