"""Measures that are judged, each with the values that are suspicious."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, inf, log
from statistics import median

from ...engine.model.calibration import DEVIATIONS
from .report import StudyReport


@dataclass(frozen=True, slots=True)
class MeasureRule:
    """A measure, with its name everywhere and its judgement.

    key: its name in JSON, and of its field in `Measures`. help: description. name: its name in
    words, unless that is the key. figure: returns it from a row if no field of `Measures` has it;
    None if it is not known. low, high: whether lower or higher values than usual are suspicious.
    floor: smallest standard deviation that a group is taken to have, in the measure's unit, or in
    logarithms if `is_ratio`. share: the same as a share of the group's median. least, most: limits
    for any batch. unit: of the measure. is_listed: whether it is a column of the list in pages,
    which is as wide as a screen.
    """

    key: str
    help: str
    name: str = ""
    figure: Callable[[StudyReport], float | None] | None = None
    low: bool = False
    high: bool = False
    floor: float = 0.0
    share: float = 0.0
    is_ratio: bool = False
    least: float = -inf
    most: float = inf
    unit: str = ""
    is_listed: bool = True

    @property
    def title(self) -> str:
        """Name in words."""
        return self.name or self.key.replace("_", " ")

    def of(self, row: StudyReport) -> float | None:
        """Return the measure of a row; None if it is not known."""
        if self.figure:
            return self.figure(row)
        return getattr(row.measures, self.key) if row.measures else None

    def scaled(self, value: float) -> float:
        """Return a value on the scale on which deviations are measured."""
        return log(max(value, 1e-6)) if self.is_ratio else value

    def unscaled(self, value: float) -> float:
        """Return the value of a place on that scale."""
        return exp(value) if self.is_ratio else value


RULES = (
    MeasureRule(
        "edges",
        "correlation of the size of the gradient in scan and result; low if the anatomy differs",
        low=True,
        floor=0.02,
        least=0.01,
    ),
    MeasureRule(
        "match",
        "share of the result's variance that the scan's value explains; low if the anatomy differs",
        low=True,
        floor=0.01,
        least=0.02,
    ),
    MeasureRule(
        "detail",
        "detail of the result divided by that of the scan; low if blurred, high if noisy",
        low=True,
        high=True,
        floor=0.1,
        is_ratio=True,
    ),
    MeasureRule(
        "cut_off",
        "share of the foreground at the lowest or highest value of the result",
        high=True,
        floor=0.002,
        most=0.5,
    ),
    MeasureRule(
        "mirrored",
        "rise of the match if the result is mirrored along its best axis",
        high=True,
        floor=0.03,
        most=0.05,
        is_listed=False,
    ),
    MeasureRule(
        "shift",
        "displacement of the result along an axis",
        high=True,
        floor=0.1,
        most=5.0,
        unit=" mm",
    ),
    MeasureRule(
        "empty",
        "share of the parts with edges in the scan that have none in the result",
        name="empty parts",
        high=True,
        floor=0.002,
        most=0.4,
    ),
    MeasureRule(
        "breaks",
        "largest change of the edges' correlation from slice to slice",
        high=True,
        floor=0.03,
        most=0.6,
        is_listed=False,
    ),
    MeasureRule(
        "local",
        "largest deviation of a part of the result from what is usual at the scan's values",
        name="local deviation",
        high=True,
        floor=0.005,
    ),
    MeasureRule(
        "values",
        "number of 256 grey levels that occur in the foreground",
        low=True,
        floor=0.1,
        is_ratio=True,
        least=3,
        is_listed=False,
    ),
    MeasureRule(
        "distance",
        "distance of the scan from the model's calibration set, in standard deviations",
        most=DEVIATIONS,
    ),
    MeasureRule(
        "seam",
        "steps across patch borders divided by steps elsewhere",
        figure=lambda row: row.seams and row.seams.worst,
        high=True,
        floor=0.1,
        most=3,
    ),
    MeasureRule(
        "cycle",
        "mean absolute difference between the scan and its result translated back",
        name="cycle error",
        figure=lambda row: row.cycle and row.cycle.error,
        high=True,
        share=0.1,
    ),
    MeasureRule(
        "spread",
        "mean standard deviation between mirrored translations",
        figure=lambda row: row.spread and row.spread.deviation,
        high=True,
        share=0.1,
    ),
    MeasureRule(
        "disagreement",
        "mean absolute deviation of an ensemble's networks from their mean",
        high=True,
        share=0.1,
    ),
)
"""Measures that are judged, besides levels and patterns, in the order of lists."""

_LEVELS = ("level of the air", "level of the tissue", "highest level")
_LEVEL_SHARE = 0.03
"""Smallest standard deviation of a level, as a share of the group's range of levels."""


def level_rules(rows: Sequence[StudyReport]) -> Iterator[MeasureRule]:
    """Yield a rule for each level of each channel; the range of a group's levels is its scale."""
    every = [row.measures.levels for row in rows if row.measures]
    for channel in range(max(map(len, every), default=0)):
        size = median(each[channel][2] - each[channel][0] for each in every if len(each) > channel)
        for at, title in enumerate(_LEVELS):
            yield MeasureRule(
                f"levels.{channel}.{at}",
                "",
                f"{title} of channel {channel + 1}" if channel else title,
                partial(_level, channel, at),
                low=True,
                high=True,
                floor=_LEVEL_SHARE * size,
            )


def _level(channel: int, at: int, row: StudyReport) -> float | None:
    levels = row.measures.levels if row.measures else ()
    return levels[channel][at] if len(levels) > channel else None
