"""Maps stored next to the result of a study: which of them the options request."""

from dataclasses import dataclass

from ...io.maps import MapKind, MapMark
from ...io.volume import Volume
from ..settings import TranslateOptions

_LIKE_RESULTS: tuple[MapKind, ...] = ("spread-mean",)


@dataclass(frozen=True, slots=True)
class StudyMap:
    """mark: what it is. volume: its values on the scan's grid, in the format of the result."""

    mark: MapMark
    volume: Volume


def is_shown(mark: MapMark) -> bool:
    """Whether a preview shows the map beside the result; one that looks like it tells nothing."""
    return mark.kind not in _LIKE_RESULTS


def maps_asked_for(options: TranslateOptions) -> tuple[MapMark, ...]:
    """The maps that each study has beside its result, in the order in which they are made."""
    spread = spread_marks(options.spread) if options.spread else ()
    check = options.cycle_check
    return (*spread, cycle_mark(check.sha256)) if check and check.has_map else spread


def spread_marks(count: int) -> tuple[MapMark, MapMark]:
    """Of the mean of so many translations, and of the standard deviation between them."""
    recipe = f"{count} flips"
    return (
        MapMark("spread-mean", f"mean of {recipe}", recipe),
        MapMark("spread-sd", f"sd of {recipe}", recipe),
    )


def cycle_mark(back: str) -> MapMark:
    """Of the cycle error of each voxel; back: hash of the model that translates back."""
    return MapMark("cycle", "cycle error", back)
