"""Suspicious results of a batch, and the order in which to read all of them.

A pure function of the rows of studies, computed whenever they are read and never stored: a later
study may show that an earlier one is odd. Each measure is compared with the results of the model's
reference set, else with the other results of its group, by median and median absolute deviation
(MAD), and with limits that hold for any batch. No limit proves a result right: one within all
limits is "usual", and one that could not be compared with others is "not judged".
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf
from typing import Literal, TypeAlias

from ...engine.model.calibration import ResultReference
from .repetitions import MOST_BITS, repetitions
from .report import BatchReport, StudyReport
from .result_groups import FEWEST, LogSpacing, ResultGroup, groups_of, spacing_of

State: TypeAlias = Literal["suspicious", "usual", "not judged"]

BEYOND = 5.0
"""Accepted distance from the median of a group, in robust standard deviations.

Planted and honest results chose it: `tests/benchmarks/planted_results.py`.
"""

_FARTHEST = 1e6
"""Largest distance of a measure."""

_REPEATS = "bits in which its pattern differs from that of another scan's result"


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
    groups = groups_of([row for row in rows if row.is_done and row.measures], reference)
    repeated = repetitions(rows)
    return tuple(_judged(row, groups, repeated.get(at)) for at, row in enumerate(rows))


def has_suspicious(report: BatchReport) -> bool:
    """Return whether a result is suspicious, or could not be measured."""
    return any(found.is_suspicious or isinf(found.far) for found in suspicions_in(report))


def reading_order(found: Sequence[Suspicion]) -> list[int]:
    """Return the places of studies, the most suspicious first, and equal ones in their order."""
    return sorted(range(len(found)), key=lambda at: -found[at].far)


def _judged(
    row: StudyReport, groups: Mapping[LogSpacing | None, ResultGroup], repeated: int | None
) -> Suspicion:
    if not row.is_done:
        return Suspicion("not judged", why="there is no result")
    if row.measures is None:
        return Suspicion("not judged", far=inf, why="its result could not be measured")
    group = groups[spacing_of(row)]
    compared = [*_compared(row, group), *_beyond_cycle_limit(row)]
    if repeated is not None:
        compared.append(OddMeasure("repeats", _REPEATS, repeated, MOST_BITS + 1, inf, 2.0))
    found = sorted((each for each in compared if each.far > 1), key=lambda each: -each.far)
    far = max((each.far for each in compared), default=0.0)
    if found:
        return Suspicion("suspicious", tuple(found), far)
    if group.count < FEWEST:
        scans = "1 similar scan" if group.count == 1 else f"{group.count} similar scans"
        return Suspicion("not judged", far=far, why=f"{scans}, and {FEWEST} are needed")
    return Suspicion("usual", far=far)


def _compared(row: StudyReport, group: ResultGroup) -> Iterator[OddMeasure]:
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
