"""Groups of results that are compared, and the usual values of their measures.

Results of one model and settings with similar voxel spacings form a group. If the spacing is that
of the model's reference set, its results are compared with those of the set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import TypeAlias

from ...engine.model.calibration import ResultReference, UsualMeasure
from .measure_rules import RULES, MeasureRule, level_rules
from .report import StudyReport

FEWEST = 12
"""Smallest number of different scans in a group whose results are judged by each other."""

_SD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution whose median absolute deviation is 1."""

_NEAR = 1.2
"""Largest ratio of voxel spacings, along each axis."""

_LEAST_SD = 1e-9
"""Smallest standard deviation of a measure."""

LogSpacing: TypeAlias = tuple[float, float, float]
"""Rounded logarithms of a voxel spacing."""


@dataclass(frozen=True, slots=True)
class Usual:
    """Usual values of a measure in a group, on the scale of its rule.

    middle: median. sd: robust standard deviation.
    """

    middle: float
    sd: float


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Results with similar spacings, or those of a reference set.

    count: number of different scans. rules: for them, each with the usual values if enough of them
    are known.
    """

    count: int
    rules: tuple[tuple[MeasureRule, Usual | None], ...]


def groups_of(
    rows: Sequence[StudyReport], reference: ResultReference | None
) -> dict[LogSpacing | None, ResultGroup]:
    """Return the group of each spacing. Copies of a scan count once."""
    usual_spacing = _rounded(reference.spacing) if reference else None
    known: dict[LogSpacing | None, dict[object, StudyReport]] = {}
    for at, row in enumerate(rows):
        scan = row.source_content.sha256 if row.source_content else at
        known.setdefault(spacing_of(row), {}).setdefault(scan, row)
    groups: dict[LogSpacing | None, ResultGroup] = {}
    for spacing in known:
        peers: dict[object, StudyReport] = {}
        for other, members in known.items():
            if _is_near(spacing, other):
                peers.update(members)
        group = _group(list(peers.values()))
        is_usual = usual_spacing is not None and _is_near(spacing, usual_spacing)
        groups[spacing] = _compared_with(group, reference) if is_usual and reference else group
    return groups


def _compared_with(group: ResultGroup, reference: ResultReference) -> ResultGroup:
    """Return the group of a reference set, with the measures that it lacks of the results' own."""
    known = {one.measure: Usual(one.median, one.sd) for one in reference.measures}
    rules = ((rule, known.get(rule.key, usual)) for rule, usual in group.rules)
    return ResultGroup(reference.studies, tuple(rules))


def spacing_of(row: StudyReport) -> LogSpacing | None:
    """Return logarithms of a result's spacing; None if it is not known."""
    found = row.measures.spacing if row.measures else None
    return _rounded(found) if found else None


def _rounded(spacing: tuple[float, float, float]) -> LogSpacing:
    """Return logarithms of a spacing, rounded so that a batch has few different ones."""
    first, second, third = (round(log(max(step, 1e-6)), 2) for step in spacing)
    return first, second, third


def _is_near(one: LogSpacing | None, other: LogSpacing | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(abs(a - b) <= log(_NEAR) for a, b in zip(one, other, strict=True))


def _group(rows: Sequence[StudyReport]) -> ResultGroup:
    rules = (*RULES, *level_rules(rows))
    return ResultGroup(len(rows), tuple((rule, _usual(rows, rule)) for rule in rules))


def _usual(rows: Sequence[StudyReport], rule: MeasureRule) -> Usual | None:
    values = [rule.scaled(value) for row in rows if (value := rule.of(row)) is not None]
    if len(values) < FEWEST:
        return None
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    return Usual(middle, max(_SD_OF_MAD * mad, rule.floor, rule.share * abs(middle), _LEAST_SD))


def reference_of(rows: Sequence[StudyReport]) -> ResultReference | None:
    """Return the usual measures of results of a reference set; None if there are too few.

    rows: of different scans.
    """
    rows = [row for row in rows if row.measures and row.measures.spacing]
    if len(rows) < FEWEST:
        return None
    known = [(rule.key, usual) for rule, usual in _group(rows).rules if usual]
    edges = zip(*(row.measures.spacing for row in rows if row.measures), strict=True)
    first, second, third = map(median, edges)
    return ResultReference(
        len(rows),
        (first, second, third),
        tuple(UsualMeasure(key, usual.middle, usual.sd) for key, usual in known),
    )
