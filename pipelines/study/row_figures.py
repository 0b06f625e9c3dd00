"""What seams, spreads and second computations came to, as a study's row holds it; `seams`,
`maps/spread` and `verification` measure them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeamScore:
    """Scores along the model's D, H and W: 1.0 where no seam shows, above it where one does.

    None along an axis without borders, or without any steps to compare.

    axes: those scores.
    """

    axes: tuple[float | None, float | None, float | None]

    @property
    def worst(self) -> float | None:
        """The largest of the three; None if one tile covers the volume."""
        return max((score for score in self.axes if score is not None), default=None)


@dataclass(frozen=True, slots=True)
class Verified:
    """places: parts of the result that were compared; tiles: those computed again for them.

    error: relative, of the place that is worst by what is allowed there. allowed: what precision
    and voxel type explain. seconds: what it took.
    """

    places: int
    tiles: int
    error: float
    allowed: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the result is what the second computation gives, but for rounding."""
        return self.error <= self.allowed


@dataclass(frozen=True, slots=True)
class SpreadFigures:
    """flips: ways in which patches were mirrored, none of them counted too. deviation: mean over
    the foreground of the standard deviation between them, in the unit of the result.
    """

    flips: int
    deviation: float
