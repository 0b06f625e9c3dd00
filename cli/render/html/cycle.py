"""Cycle errors on the page of a batch: how they spread, and the studies with the worst first."""

from collections.abc import Iterator

from ....pipelines.report.report import BatchReport, StudyReport
from ..batch_summary import cycle_text
from .distribution import distribution
from .markup import Child, element, openable, table

_TOLD = (
    "Mean absolute difference between each scan and its result translated back, in the foreground, "
    "in the scan's unit. This is cycle consistency and no quality: such networks can hide what "
    "they need for the way back, so a low error proves nothing, while one beyond its limit asks "
    "for a look."
)


def cycle_section(batch: BatchReport) -> Iterator[Child]:
    """What the cycle check found; nothing if that was not asked for."""
    known = [row for row in batch.studies if row.cycle]
    if not known:
        return
    yield element("h2", "Cycle consistency")
    yield element("p", _TOLD, class_="faint")
    values = [(row.name, row.cycle.error) for row in known if row.cycle]
    figure = element(
        "figure",
        element("figcaption", "Cycle error, unit of the scans"),
        distribution(values, "{:.3g}".format),
    )
    yield element("div", figure, class_="narrow")
    rows = [
        [row.name, cycle_cell(row), _limit(row), "beyond its limit" if _is_marked(row) else ""]
        for row in sorted(known, key=worst_first)
    ]
    head = ["study", "cycle error", "limit", ""]
    yield openable(table(head, rows, numbers=(1, 2), class_="narrow"), len(rows))


def cycle_cell(row: StudyReport) -> Child:
    """A study's cycle error, in red beyond its limit."""
    return element("span", cycle_text(row.cycle), class_="failed" if _is_marked(row) else None)


def worst_first(row: StudyReport) -> tuple[bool, float, str]:
    """By which studies are sorted: marked ones first, then by error, those without one last."""
    return not _is_marked(row), -row.cycle.error if row.cycle else 0.0, row.name


def _limit(row: StudyReport) -> str:
    limit = row.cycle.limit if row.cycle else None
    return "" if limit is None else f"{limit:.3g}"


def _is_marked(row: StudyReport) -> bool:
    return row.cycle is not None and row.cycle.is_marked
