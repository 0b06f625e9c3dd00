"""Figures in a study's row of reports and manifest: seam score, verification, spread, cycle error.

Importing this module loads no library; the modules that measure the figures do.
"""

from dataclasses import dataclass
from typing import TypeAlias

Levels: TypeAlias = tuple[float, float, float]
"""Median of a result outside the scan's foreground and inside it, and its highest level there but
for outliers, in the result's unit.
"""


@dataclass(frozen=True, slots=True)
class SeamScore:
    """Seam score along the model's D, H and W: 1.0 if no seam shows, more if one does.

    axes: the scores; None along an axis without borders or without any steps to compare.
    """

    axes: tuple[float | None, float | None, float | None]

    @property
    def worst(self) -> float | None:
        """The largest of the three; None if one patch covers the volume."""
        return max((score for score in self.axes if score is not None), default=None)


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification.

    places: parts of the result that were compared. tiles: computed again for them. error: relative
    error of the place that exceeds its tolerance most. allowed: tolerance there, by precision and
    voxel type. seconds: duration of the verification.
    """

    places: int
    tiles: int
    error: float
    allowed: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether rounding explains the error."""
        return self.error <= self.allowed


@dataclass(frozen=True, slots=True)
class SpreadFigures:
    """Figures of a TTA spread.

    flips: ways in which patches were mirrored, unmirrored patches included. deviation: standard
    deviation between them in the unit of the result, as a mean over the foreground.
    """

    flips: int
    deviation: float


@dataclass(frozen=True, slots=True)
class CycleError:
    """Distance of a back-translated result from its scan.

    error: mean absolute difference in the foreground of the scan, in its unit. unit: size of 1 in
    network intensity in that unit. back: identity of the reverse model. limit: error above which
    the study is marked, in the scan's unit; None if no calibration with `back` set one.
    """

    error: float
    unit: float
    back: str
    limit: float | None = None

    @property
    def is_marked(self) -> bool:
        """Whether the error exceeds the limit of the reference set."""
        return self.limit is not None and self.error > self.limit

    @property
    def warning(self) -> str:
        """Text in the picture of a marked study; empty for others."""
        if self.limit is None or not self.is_marked:
            return ""
        return f"cycle error {self.error:.3g}, beyond its limit {self.limit:.3g}"

    @property
    def note(self) -> str:
        """Note on a marked study; empty for others."""
        if self.limit is None or not self.is_marked:
            return ""
        return (
            f"its cycle error of {self.error:.3g} is beyond {self.limit:.3g}, the limit set by the "
            "model's calibration"
        )


@dataclass(frozen=True, slots=True)
class Measures:
    """Cheap measures of a result against its scan, in a few planes or on a lattice.

    Of several channels or volumes each measure is that of the worst. Measures of older programs
    lack the later ones, and so do images too small for a lattice.

    cut_off: share of the scan's foreground in which the result has its lowest or its highest value;
    large if values were cut off by the output range. edges: correlation of the size of the gradient
    in scan and result, 0 if there is none; low if the result has other anatomy, or is displaced.
    detail: mean gradient of the result by its standard deviation, divided by the same of the scan;
    low if the result is blurred, high if it is noisy or has a pattern. distance: of the scan from
    those of the model's calibration, in standard deviations of the figure that lies furthest; None
    if the model was not calibrated. match: share of the result's variance that the scan's value
    explains; low if the anatomy differs. mirrored: by how much edges correlate more if the result
    is mirrored along its best axis; above 0 if it is mirrored. shift: of the result along an axis,
    in millimetres. empty: share of the parts with edges in the scan that have none in the result.
    breaks: largest difference of the edges' correlation in a slice from its neighbours. local:
    largest mean deviation in a part of the result from what is usual at the scan's values, in
    shares of its range; large at lesions that only one of the two has. values: number of the 256
    steps of its range that the result fills in the foreground. levels: of each channel. spacing: of
    the voxels along the model's D, H and W, in millimetres. patterns: signs of steps in the scan
    and in the result, in hexadecimal digits; those of repeated images differ in few bits.
    disagreement: mean over the scan's foreground of the mean absolute deviation of an ensemble's
    networks from their mean, in the result's unit; None if the model has none.
    """

    cut_off: float
    edges: float
    detail: float
    distance: float | None = None
    match: float | None = None
    mirrored: float | None = None
    shift: float | None = None
    empty: float | None = None
    breaks: float | None = None
    local: float | None = None
    values: int | None = None
    levels: tuple[Levels, ...] = ()
    spacing: tuple[float, float, float] | None = None
    patterns: tuple[str, str] | None = None
    disagreement: float | None = None


@dataclass(frozen=True, slots=True)
class CycleRule:
    """Rule for judging cycle errors.

    back: identity of the reverse model. limit: of the error in network intensity; None if no
    calibration with `back` set one.
    """

    back: str
    limit: float | None = None

    def judged(self, error: float, unit: float) -> CycleError:
        """Judge an error in the scan's unit; unit: size of 1 in network intensity in it."""
        return CycleError(error, unit, self.back, None if self.limit is None else self.limit * unit)

    def judged_again(self, known: CycleError) -> CycleError:
        """Judge an error of an earlier run by the current limit."""
        return self.judged(known.error, known.unit)
