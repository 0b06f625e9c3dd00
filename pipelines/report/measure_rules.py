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

    key, title: its name in JSON and in words. help: description. of: returns it from a row; None if
    it is not known. low, high: whether lower or higher values than usual are suspicious. floor:
    smallest standard deviation that a group is taken to have, in the measure's unit, or in
    logarithms if `is_ratio`. share: the same as a share of the group's median. least, most: limits
    for any batch. unit: of the measure. is_listed: whether it is a column of the list in pages,
    which is as wide as a screen.
    """

    key: str
    title: str
    help: str
    of: Callable[[StudyReport], float | None]
    low: bool = False
    high: bool = False
    floor: float = 0.0
    share: float = 0.0
    is_ratio: bool = False
    least: float = -inf
    most: float = inf
    unit: str = ""
    is_listed: bool = True

    def scaled(self, value: float) -> float:
        """Return a value on the scale on which deviations are measured."""
        return log(max(value, 1e-6)) if self.is_ratio else value

    def unscaled(self, value: float) -> float:
        """Return the value of a place on that scale."""
        return exp(value) if self.is_ratio else value


def _measured(name: str) -> Callable[[StudyReport], float | None]:
    return lambda row: getattr(row.measures, name) if row.measures else None


RULES = (
    MeasureRule(
        "edges",
        "edges",
        "correlation of the size of the gradient in scan and result; low if the anatomy differs",
        _measured("edges"),
        low=True,
        floor=0.02,
        least=0.01,
    ),
    MeasureRule(
        "match",
        "match",
        "share of the result's variance that the scan's value explains; low if the anatomy differs",
        _measured("match"),
        low=True,
        floor=0.01,
        least=0.02,
    ),
    MeasureRule(
        "detail",
        "detail",
        "detail of the result divided by that of the scan; low if blurred, high if noisy",
        _measured("detail"),
        low=True,
        high=True,
        floor=0.1,
        is_ratio=True,
    ),
    MeasureRule(
        "cut_off",
        "cut off",
        "share of the foreground at the lowest or highest value of the result",
        _measured("cut_off"),
        high=True,
        floor=0.002,
        most=0.5,
    ),
    MeasureRule(
        "mirrored",
        "mirrored",
        "rise of the match if the result is mirrored along its best axis",
        _measured("mirrored"),
        high=True,
        floor=0.03,
        most=0.05,
        is_listed=False,
    ),
    MeasureRule(
        "shift",
        "shift",
        "displacement of the result along an axis",
        _measured("shift"),
        high=True,
        floor=0.1,
        most=5.0,
        unit=" mm",
    ),
    MeasureRule(
        "empty",
        "empty parts",
        "share of the parts with edges in the scan that have none in the result",
        _measured("empty"),
        high=True,
        floor=0.002,
        most=0.4,
    ),
    MeasureRule(
        "breaks",
        "breaks",
        "largest change of the edges' correlation from slice to slice",
        _measured("breaks"),
        high=True,
        floor=0.03,
        most=0.6,
        is_listed=False,
    ),
    MeasureRule(
        "local",
        "local deviation",
        "largest deviation of a part of the result from what is usual at the scan's values",
        _measured("local"),
        high=True,
        floor=0.005,
    ),
    MeasureRule(
        "values",
        "values",
        "number of 256 grey levels that occur in the foreground",
        _measured("values"),
        low=True,
        floor=0.1,
        is_ratio=True,
        least=3,
        is_listed=False,
    ),
    MeasureRule(
        "distance",
        "distance",
        "distance of the scan from the model's calibration set, in standard deviations",
        _measured("distance"),
        most=DEVIATIONS,
    ),
    MeasureRule(
        "seam",
        "seam",
        "steps across patch borders divided by steps elsewhere",
        lambda row: row.seams and row.seams.worst,
        high=True,
        floor=0.1,
        most=3,
    ),
    MeasureRule(
        "cycle",
        "cycle error",
        "mean absolute difference between the scan and its result translated back",
        lambda row: row.cycle and row.cycle.error,
        high=True,
        share=0.1,
    ),
    MeasureRule(
        "spread",
        "spread",
        "mean standard deviation between mirrored translations",
        lambda row: row.spread and row.spread.deviation,
        high=True,
        share=0.1,
    ),
    MeasureRule(
        "disagreement",
        "disagreement",
        "mean absolute deviation of an ensemble's networks from their mean",
        _measured("disagreement"),
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
                f"{title} of channel {channel + 1}" if channel else title,
                "",
                partial(_level, channel, at),
                low=True,
                high=True,
                floor=_LEVEL_SHARE * size,
            )


def _level(channel: int, at: int, row: StudyReport) -> float | None:
    levels = row.measures.levels if row.measures else ()
    return levels[channel][at] if len(levels) > channel else None
