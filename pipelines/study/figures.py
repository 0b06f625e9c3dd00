"""Figures in a study's row of reports and manifest: seam score, verification, spread, cycle error.

Importing this module loads no library; the modules that measure the figures do.
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


@dataclass(frozen=True, slots=True)
class CycleError:
    """How far a result that is translated back lies from its scan.

    error: mean absolute difference in the foreground of the scan, in its unit. unit: what 1 of
    network intensity is in that unit. back: identity of the model that translated back. limit:
    above which the study is marked, in the scan's unit; None where a calibration with `back` did
    not set one.
    """

    error: float
    unit: float
    back: str
    limit: float | None = None

    @property
    def is_marked(self) -> bool:
        """Whether it lies beyond what the reference set lets expect."""
        return self.limit is not None and self.error > self.limit

    @property
    def warning(self) -> str:
        """What a picture of a marked study says; nothing of others."""
        if self.limit is None or not self.is_marked:
            return ""
        return f"cycle error {self.error:.3g}, beyond its limit {self.limit:.3g}"

    @property
    def note(self) -> str:
        """What is to be said of a marked study; nothing of others."""
        if self.limit is None or not self.is_marked:
            return ""
        return (
            f"its cycle error of {self.error:.3g} is beyond {self.limit:.3g}, the limit that the "
            "model's calibration set"
        )


@dataclass(frozen=True, slots=True)
class CycleRule:
    """How cycle errors are judged.

    back: identity of the model that translates back. limit: of the error in network intensity; None
    where a calibration with `back` did not set one.
    """

    back: str
    limit: float | None = None

    def judged(self, error: float, unit: float) -> CycleError:
        """An error in the scan's unit; unit: what 1 of network intensity is in it."""
        return CycleError(error, unit, self.back, None if self.limit is None else self.limit * unit)

    def judged_again(self, known: CycleError) -> CycleError:
        """An error of an earlier run by the limit of today."""
        return self.judged(known.error, known.unit)
