"""What a model's card knows of a reference set of scans: what they are like, and how near their
translations come back to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, isfinite, sqrt

from ..errors import ModelFileError

DEVIATIONS = 4.0
"""By so many standard deviations a scan may lie from the mean of the reference set.

Whatever the distribution, no more than 1 in 16 studies like those of the set lies beyond
(Chebyshev), and of a normal one 1 in 16,000. So few, because ten figures of each study are looked
at, the deviation is known from few studies, and errors have long tails.
"""

FEWEST_STUDIES = 5
"""Of a reference set; the deviation of fewer says nothing."""

PERCENTILES = (5, 25, 50, 75, 95)
"""Of intensity in the foreground."""


@dataclass(frozen=True, slots=True)
class Typical:
    """A figure over the studies of a reference set. mean, sd: standard deviation by n - 1."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Typical":
        """Of two values or more."""
        mean = fsum(values) / len(values)
        return cls(mean, sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))

    def deviations(self, value: float, finest: float) -> float:
        """How many standard deviations a value lies from the mean.

        finest: the smallest one that counts, above zero.
        """
        return abs(value - self.mean) / max(self.sd, finest)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What scans of the reference set were like.

    studies: how many. intensity: network intensity in the foreground, at PERCENTILES. extent:
    millimetres along D, H and W that the foreground takes. spacing: millimetres along D, H and W.
    """

    studies: int
    intensity: tuple[Typical, Typical, Typical, Typical, Typical]
    extent: tuple[Typical, Typical, Typical]
    spacing: tuple[Typical, Typical, Typical]


@dataclass(frozen=True, slots=True)
class CycleReference:
    """The cycle error of the reference set.

    back: identity of the model that translated back. studies: how many. error: in network
    intensity, by which studies of different units compare. mark_beyond: by so many standard
    deviations above the mean a study is marked; None marks none.
    """

    back: str
    studies: int
    error: Typical
    mark_beyond: float | None = None

    @property
    def limit(self) -> float | None:
        """The error above which a study is marked, in network intensity."""
        if self.mark_beyond is None:
            return None
        return self.error.mean + self.mark_beyond * self.error.sd


def check_calibration(expected: Expectations | None, cycle: CycleReference | None) -> None:
    """Raise ModelFileError, which names the field, if a number is none that scans can have."""
    figures: list[tuple[str, Typical, float]] = []
    if expected:
        figures += [("expected.intensity", each, -inf) for each in expected.intensity]
        figures += [("expected.extent", each, 0.0) for each in expected.extent]
        figures += [("expected.spacing", each, 0.0) for each in expected.spacing]
    if cycle:
        figures.append(("cycle.error", cycle.error, 0.0))
    for name, figure, lowest in figures:
        if not (isfinite(figure.mean) and isfinite(figure.sd)):
            raise ModelFileError(f"The model card's field {name!r} must hold finite numbers.")
        if figure.sd < 0 or figure.mean < lowest:
            raise ModelFileError(f"The model card's field {name!r} must not be negative.")
    beyond = cycle.mark_beyond if cycle else None
    if beyond is not None and not (isfinite(beyond) and beyond > 0):
        raise ModelFileError("The model card's field 'cycle.mark_beyond' must be above zero.")
    for name, known in (("expected.studies", expected), ("cycle.studies", cycle)):
        if known and known.studies < FEWEST_STUDIES:
            raise ModelFileError(
                f"The model card's field {name!r} must be at least {FEWEST_STUDIES}."
            )
