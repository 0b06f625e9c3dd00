"""What a spread comes to, as a study's row holds it, and how its maps are marked."""

from dataclasses import dataclass

from ....io.maps import MapMark


@dataclass(frozen=True, slots=True)
class SpreadFigures:
    """flips: ways in which patches were mirrored, none of them counted too. deviation: mean over
    the foreground of the standard deviation between them, in the unit of the result.
    """

    flips: int
    deviation: float


def spread_marks(count: int) -> tuple[MapMark, MapMark]:
    """Of the mean of so many translations, and of the standard deviation between them."""
    recipe = f"{count} flips"
    return (
        MapMark("spread-mean", f"mean of {recipe}", recipe),
        MapMark("spread-sd", f"sd of {recipe}", recipe),
    )
