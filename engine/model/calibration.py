"""Calibration of a model: figures of the scans of a reference set, and of their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, isfinite, sqrt

from ..errors import ModelFileError

DEVIATIONS = 4.0
"""Accepted distance of a scan from the mean of the reference set, in standard deviations.

Whatever the distribution, at most 1 in 16 studies like those of the set lies beyond (Chebyshev),
and 1 in 16,000 if it is normal. The limit is wide because many figures of each study are checked,
the deviation is estimated from few studies, and errors have long tails.
"""

FEWEST_STUDIES = 5
"""Smallest size of a reference set; fewer studies give no usable deviation."""

ENOUGH_STUDIES = 20
"""Recommended size of a reference set."""

PERCENTILES = (5, 25, 50, 75, 95)
"""Percentiles of the intensity in the foreground."""


@dataclass(frozen=True, slots=True)
class Typical:
    """A figure over the studies of a reference set.

    mean: over the studies. sd: standard deviation, with n - 1 degrees of freedom.
    """

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Typical":
        """Summarise two values or more."""
        mean = fsum(values) / len(values)
        return cls(mean, sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))

    def deviations(self, value: float, finest: float) -> float:
        """Return the distance of a value from the mean, in standard deviations.

        finest: lower limit of the deviation, above zero.
        """
        return abs(value - self.mean) / max(self.sd, finest)


@dataclass(frozen=True, slots=True)
class Expectations:
    """Properties of the scans of the reference set.

    studies: how many. intensity: network intensity in the foreground, at PERCENTILES. extent: of
    the foreground along D, H and W, in millimetres. spacing: along D, H and W, in millimetres.
    """

    studies: int
    intensity: tuple[Typical, Typical, Typical, Typical, Typical]
    extent: tuple[Typical, Typical, Typical]
    spacing: tuple[Typical, Typical, Typical]


EIGHTHS = 8
"""Parts of the foreground along an axis, in each of which its share is measured."""


@dataclass(frozen=True, slots=True)
class ScanProfiles:
    """Distribution of the foreground in the scans of the reference set.

    along_d, along_h, along_w: foreground in each eighth of its extent along that axis, by the mean
    of all eighths.
    """

    along_d: tuple[Typical, ...]
    along_h: tuple[Typical, ...]
    along_w: tuple[Typical, ...]

    @property
    def axes(self) -> tuple[tuple[Typical, ...], ...]:
        """All three."""
        return self.along_d, self.along_h, self.along_w


@dataclass(frozen=True, slots=True)
class CycleReference:
    """Cycle error of the reference set.

    back: identity of the reverse model. studies: how many. error: in network intensity, so that
    studies in different units are comparable. mark_beyond: a study is marked if its error exceeds
    the mean by this number of standard deviations; None marks none.
    """

    back: str
    studies: int
    error: Typical
    mark_beyond: float | None = None

    @property
    def limit(self) -> float | None:
        """Error above which a study is marked, in network intensity; None marks none."""
        if self.mark_beyond is None:
            return None
        return self.error.mean + self.mark_beyond * self.error.sd


@dataclass(frozen=True, slots=True)
class UsualMeasure:
    """A measure over the results of a reference set.

    measure: its key. median, sd: robust ones, in natural logarithms if the measure is a ratio.
    """

    measure: str
    median: float
    sd: float


@dataclass(frozen=True, slots=True)
class ResultReference:
    """Measures of the results of the reference set, with which those of others are compared.

    studies: how many. spacing: medians along D, H and W, in millimetres. measures: each known one.
    """

    studies: int
    spacing: tuple[float, float, float]
    measures: tuple[UsualMeasure, ...]


def check_calibration(
    expected: Expectations | None,
    cycle: CycleReference | None,
    results: ResultReference | None = None,
    profiles: ScanProfiles | None = None,
) -> None:
    """Raise ModelFileError, which names the field, if no scan can have a number."""
    figures: list[tuple[str, Typical, float]] = []
    if expected:
        figures += [("expected.intensity", each, -inf) for each in expected.intensity]
        figures += [("expected.extent", each, 0.0) for each in expected.extent]
        figures += [("expected.spacing", each, 0.0) for each in expected.spacing]
    if cycle:
        figures.append(("cycle.error", cycle.error, 0.0))
    if profiles:
        if any(len(axis) != EIGHTHS for axis in profiles.axes):
            raise ModelFileError(
                f"The model card's field 'profiles' must have {EIGHTHS} figures of each axis."
            )
        figures += [("profiles", each, 0.0) for axis in profiles.axes for each in axis]
    for name, figure, lowest in figures:
        if not (isfinite(figure.mean) and isfinite(figure.sd)):
            raise ModelFileError(f"The model card's field {name!r} must contain finite numbers.")
        if figure.sd < 0 or figure.mean < lowest:
            raise ModelFileError(f"The model card's field {name!r} must not be negative.")
    beyond = cycle.mark_beyond if cycle else None
    if beyond is not None and not (isfinite(beyond) and beyond > 0):
        raise ModelFileError("The model card's field 'cycle.mark_beyond' must be above zero.")
    if results:
        _check_results(results)
    sets = (
        ("expected.studies", expected),
        ("cycle.studies", cycle),
        ("results.studies", results),
    )
    for name, known in sets:
        if known and known.studies < FEWEST_STUDIES:
            raise ModelFileError(
                f"The model card's field {name!r} must be at least {FEWEST_STUDIES}."
            )


def _check_results(results: ResultReference) -> None:
    if not all(isfinite(edge) and edge > 0 for edge in results.spacing):
        raise ModelFileError("The model card's field 'results.spacing' must be above zero.")
    for one in results.measures:
        if not (isfinite(one.median) and isfinite(one.sd) and one.sd > 0):
            raise ModelFileError(
                "The model card's field 'results.measures' must contain finite numbers, and "
                "deviations above zero."
            )
