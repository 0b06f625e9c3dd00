"""Suspicious results of a batch, and the order in which to read all of them.

A pure function of the rows of studies, computed whenever they are read and never stored: a later
study may show that an earlier one is odd. Each measure is compared with the results of the model's
reference set, else with the other results of its group, by median and median absolute deviation
(MAD), and with limits that hold for any batch. No
limit proves a result right: one within all limits is "usual", and one that could not be compared
with others is "not judged".
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, inf, isfinite, isinf, log
from statistics import median
from textwrap import wrap
from typing import Literal, TypeAlias

from ...engine.model.calibration import DEVIATIONS, ResultReference, UsualMeasure
from .report import BatchReport, StudyReport

State: TypeAlias = Literal["suspicious", "usual", "not judged"]

FEWEST = 12
"""Smallest number of different scans in a group whose results are judged by each other."""

BEYOND = 5.0
"""Accepted distance from the median of a group, in robust standard deviations.

Planted and honest results chose it: `tests/benchmarks/planted_results.py`.
"""

_SD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution whose median absolute deviation is 1."""

_NEAR = 1.2
"""Largest ratio of voxel spacings, along each axis, between results of one group."""

_REPEATED, _DIFFERENT = 7, 14
"""Bits of 128 in which the patterns of repeated results differ, at most, and those of different
scans, at least.
"""

_REPEATS = "bits in which its pattern differs from that of another scan's result"
_DIGITS = 4
"""Hexadecimal digits of a part of a pattern: of eight parts one is equal if 7 bits differ."""

_KEPT = 16
"""Largest number of results with an equal part that one is compared with."""

_LEAST_SD, _FARTHEST = 1e-9, 1e6
"""Bounds of standard deviations, and of distances but for results without measures."""


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
)
"""Measures that are judged, besides levels and patterns, in the order of lists."""

_LEVELS = ("level of the air", "level of the tissue", "highest level")
_LEVEL_SHARE = 0.03
"""Smallest standard deviation of a level, as a share of the group's range of levels."""


@dataclass(frozen=True, slots=True)
class OddMeasure:
    """Measure beyond its limits.

    key, title, unit: as in `MeasureRule`. value: of the result. low, high: ends of the usual range;
    infinite at an end without limit. far: distance from the usual, 1 at its limit.
    """

    key: str
    title: str
    value: float
    low: float
    high: float
    far: float
    unit: str = ""

    @property
    def words(self) -> str:
        """Measure, value and usual range."""
        low, high = (f"{end:.3g}" if isfinite(end) else "" for end in (self.low, self.high))
        usual = f"{low} to {high}" if low and high else f"at least {low}" if low else ""
        usual = usual or f"at most {high}"
        return f"{self.title} {self.value:.3g}{self.unit} (usual {usual}{self.unit})"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Judgement of a study's result.

    state: "suspicious" if a measure is beyond its limits; else "not judged" without measures or
    with a group too small, or for a study without a result. findings: those measures, the furthest
    first. far: distance of the furthest measure, 1 at its limit; infinite for a result without
    measures, and 0 without a result. why: reason why a result is not judged.
    """

    state: State
    findings: tuple[OddMeasure, ...] = ()
    far: float = 0.0
    why: str = ""

    @property
    def note(self) -> str:
        """Note on a suspicious result; empty for others."""
        found = "; ".join(finding.words for finding in self.findings)
        return f"its result is suspicious: {found}" if found else ""

    @property
    def is_suspicious(self) -> bool:
        """Whether a measure is beyond its limits."""
        return self.state == "suspicious"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of results that are compared.

    identity: of model and settings. reference: results of the model's reference set.
    """

    identity: str = ""
    reference: ResultReference | None = None


NO_ORIGIN = Origin()


def suspicions(
    rows: Sequence[StudyReport], origins: Sequence[Origin] = ()
) -> tuple[Suspicion, ...]:
    """Judge the results of rows, in their order.

    origins: of each row; none if all have the same, without a reference set. Only results of one
    origin are compared.
    """
    places: defaultdict[Origin, list[int]] = defaultdict(list)
    origins = origins or [NO_ORIGIN] * len(rows)
    for at, origin in enumerate(origins):
        places[origin].append(at)
    found: dict[int, Suspicion] = {}
    for origin, same in places.items():
        judged = _of_one_origin([rows[at] for at in same], origin.reference)
        found.update(zip(same, judged, strict=True))
    return tuple(found[at] for at in range(len(rows)))


def suspicions_in(report: BatchReport) -> tuple[Suspicion, ...]:
    """Judge the results of a report, in the order of its studies."""
    origin = Origin(reference=report.model.results)
    return suspicions(report.studies, [origin] * len(report.studies))


def _of_one_origin(
    rows: Sequence[StudyReport], reference: ResultReference | None
) -> tuple[Suspicion, ...]:
    groups = _groups([row for row in rows if row.is_done and row.measures], reference)
    repeated = _repetitions(rows)
    return tuple(_judged(row, groups, repeated.get(at)) for at, row in enumerate(rows))


def has_suspicious(report: BatchReport) -> bool:
    """Return whether a result is suspicious, or could not be measured."""
    return any(found.is_suspicious or isinf(found.far) for found in suspicions_in(report))


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


def reading_order(found: Sequence[Suspicion]) -> list[int]:
    """Return the places of studies, the most suspicious first, and equal ones in their order."""
    return sorted(range(len(found)), key=lambda at: -found[at].far)


_Spacing: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Usual:
    """Usual values of a measure in a group, on the scale of its rule."""

    middle: float
    sd: float


@dataclass(frozen=True, slots=True)
class _Group:
    """Results with similar spacings, or those of a reference set.

    count: number of different scans. rules: for them, each with the usual values if enough of them
    are known.
    """

    count: int
    rules: tuple[tuple[MeasureRule, _Usual | None], ...]


def _groups(
    rows: Sequence[StudyReport], reference: ResultReference | None
) -> dict[_Spacing | None, _Group]:
    """Return the group of each spacing. Copies of a scan count once."""
    usual_spacing = _rounded(reference.spacing) if reference else None
    known: dict[_Spacing | None, dict[object, StudyReport]] = {}
    for at, row in enumerate(rows):
        scan = row.source_content.sha256 if row.source_content else at
        known.setdefault(_spacing(row), {}).setdefault(scan, row)
    groups: dict[_Spacing | None, _Group] = {}
    for spacing in known:
        peers: dict[object, StudyReport] = {}
        for other, members in known.items():
            if _is_near(spacing, other):
                peers.update(members)
        group = _group(list(peers.values()))
        is_usual = usual_spacing is not None and _is_near(spacing, usual_spacing)
        groups[spacing] = _compared_with(group, reference) if is_usual and reference else group
    return groups


def _compared_with(group: _Group, reference: ResultReference) -> _Group:
    """Return the group of a reference set, with the measures that it lacks of the results' own."""
    known = {one.measure: _Usual(one.median, one.sd) for one in reference.measures}
    rules = ((rule, known.get(rule.key, usual)) for rule, usual in group.rules)
    return _Group(reference.studies, tuple(rules))


def _spacing(row: StudyReport) -> _Spacing | None:
    """Return logarithms of a result's spacing; None if it is not known."""
    found = row.measures.spacing if row.measures else None
    return _rounded(found) if found else None


def _rounded(spacing: tuple[float, float, float]) -> _Spacing:
    """Return logarithms of a spacing, rounded so that a batch has few different ones."""
    first, second, third = (round(log(max(step, 1e-6)), 2) for step in spacing)
    return first, second, third


def _is_near(one: _Spacing | None, other: _Spacing | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(abs(a - b) <= log(_NEAR) for a, b in zip(one, other, strict=True))


def _group(rows: Sequence[StudyReport]) -> _Group:
    rules = (*RULES, *_level_rules(rows))
    return _Group(len(rows), tuple((rule, _usual(rows, rule)) for rule in rules))


def _usual(rows: Sequence[StudyReport], rule: MeasureRule) -> _Usual | None:
    values = [rule.scaled(value) for row in rows if (value := rule.of(row)) is not None]
    if len(values) < FEWEST:
        return None
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    return _Usual(middle, max(_SD_OF_MAD * mad, rule.floor, rule.share * abs(middle), _LEAST_SD))


def _level_rules(rows: Sequence[StudyReport]) -> Iterator[MeasureRule]:
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


def _judged(
    row: StudyReport, groups: Mapping[_Spacing | None, _Group], repeated: OddMeasure | None
) -> Suspicion:
    if not row.is_done:
        return Suspicion("not judged", why="there is no result")
    if row.measures is None:
        return Suspicion("not judged", far=inf, why="its result could not be measured")
    group = groups[_spacing(row)]
    compared = [*_compared(row, group), *_beyond_cycle_limit(row)]
    compared += [repeated] if repeated else []
    found = sorted((each for each in compared if each.far > 1), key=lambda each: -each.far)
    far = max((each.far for each in compared), default=0.0)
    if found:
        return Suspicion("suspicious", tuple(found), far)
    if group.count < FEWEST:
        scans = "1 similar scan" if group.count == 1 else f"{group.count} similar scans"
        return Suspicion("not judged", far=far, why=f"{scans}, and {FEWEST} are needed")
    return Suspicion("usual", far=far)


def _compared(row: StudyReport, group: _Group) -> Iterator[OddMeasure]:
    """Yield each measure with its distance from the limits of the group and of any batch."""
    for rule, usual in group.rules:
        value = rule.of(row)
        if value is None:
            continue
        low, high, far = rule.least, rule.most, 0.0
        if usual:
            apart = (rule.scaled(value) - usual.middle) / (BEYOND * usual.sd)
            far = max(-apart if rule.low else 0.0, apart if rule.high else 0.0)
            ends = (rule.unscaled(usual.middle + side * BEYOND * usual.sd) for side in (-1, 1))
            below, above = ends
            low, high = (
                max(low, below if rule.low else -inf),
                min(high, above if rule.high else inf),
            )
        if isfinite(rule.most):
            far = max(far, value / rule.most)
        if isfinite(rule.least):
            far = max(far, rule.least / max(value, rule.least / _FARTHEST))
        yield OddMeasure(rule.key, rule.title, value, low, high, min(far, _FARTHEST), rule.unit)


def _beyond_cycle_limit(row: StudyReport) -> Iterator[OddMeasure]:
    """Yield a cycle error beyond the limit of the model's calibration."""
    cycle = row.cycle
    if cycle and cycle.limit and cycle.is_marked:
        far = min(cycle.error / cycle.limit, _FARTHEST)
        yield OddMeasure("cycle", "cycle error", cycle.error, -inf, cycle.limit, far)


def _repetitions(rows: Sequence[StudyReport]) -> dict[int, OddMeasure]:
    """Return results that repeat that of a different scan, by their places."""
    near: defaultdict[tuple[int, str], deque[int]] = defaultdict(lambda: deque(maxlen=_KEPT))
    patterns: dict[int, tuple[int, int]] = {}
    found: dict[int, OddMeasure] = {}
    for at, row in enumerate(rows):
        if not (row.is_done and row.measures and row.measures.patterns):
            continue
        scan, result = row.measures.patterns
        patterns[at] = int(scan, 16), int(result, 16)
        # Patterns that differ in few bits have a part in common, and most others have none.
        parts = [*enumerate(wrap(result, _DIGITS)), (-1, result)]
        others = {other for part in parts for other in near[part]}
        for other in others:
            scans, results = (
                (one ^ two).bit_count()
                for one, two in zip(patterns[at], patterns[other], strict=True)
            )
            if results <= _REPEATED and scans >= _DIFFERENT:
                finding = OddMeasure("repeats", _REPEATS, results, _REPEATED + 1, inf, 2.0)
                found[at] = found[other] = finding
        for part in parts:
            near[part].append(at)
    return found
