"""Maps that options request or models compute, stored next to the result of a study."""

from dataclasses import dataclass

from ...engine.model.model_card import ModelCard
from ...io.maps import MapKind, MapMark
from ...io.volume import Volume
from ..settings import TranslateOptions

_LIKE_RESULTS: tuple[MapKind, ...] = ("spread-mean",)


@dataclass(frozen=True, slots=True)
class StudyMap:
    """A map of a study. mark: its kind and recipe. volume: on the scan's grid, in the result's
    format.
    """

    mark: MapMark
    volume: Volume


def is_shown(mark: MapMark) -> bool:
    """Return whether a preview shows the map; one that looks like the result adds nothing."""
    return mark.kind not in _LIKE_RESULTS


def requested_maps(options: TranslateOptions, card: ModelCard | None) -> tuple[MapMark, ...]:
    """Return the marks of the maps that the options request and the model computes, in order.

    card: model card; None if it cannot be read.
    """
    spread = spread_marks(options.spread) if options.spread else ()
    check = options.cycle_check
    cycle = (cycle_mark(check.sha256),) if check and check.has_map else ()
    count = card.disagreement if card else 0
    return *spread, *((disagreement_mark(count),) if count else ()), *cycle


def spread_marks(count: int) -> tuple[MapMark, MapMark]:
    """Return the marks of mean and standard deviation over `count` translations."""
    recipe = f"{count} flips"
    return (
        MapMark("spread-mean", f"mean of {recipe}", recipe),
        MapMark("spread-sd", f"sd of {recipe}", recipe),
    )


def disagreement_mark(count: int) -> MapMark:
    """Return the mark of the mean absolute deviation of `count` networks from their mean."""
    recipe = f"{count} networks"
    return MapMark("disagreement", f"disagreement of {recipe}", recipe)


def cycle_mark(back: str) -> MapMark:
    """Return the mark of the cycle error of each voxel; back: hash of the reverse model."""
    return MapMark("cycle", "cycle error", back)
