"""Reports of past batches, alone or compared, as text and as a page."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...pipelines.report.codec import StoredReport
from ...pipelines.report.comparison import Comparison, compare, conditions
from ...pipelines.report.report import BatchReport, StudyReport
from ...pipelines.view.studies import of_report
from . import batch_summary, charts
from .review import failure_groups, review_page, stored_pictures, study_data
from .tables import Row, TextTable
from .text import bar, counted, date_and_minute, duration, memory, printable, scaled, seconds

if TYPE_CHECKING:
    from markupsafe import Markup

BAR = 30
"""Columns of a stage that takes all the time."""

MOST_IN_TIMELINE = 40
"""Maximum number of studies with a line of their own in the timeline."""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines that keep their columns, and sentences below them that may be broken.

    lines: of a table. sentences: each on a line of its own, if it fits.
    """

    lines: Iterable[str]
    sentences: Iterable[str] = ()


def sections(
    stored: Sequence[StoredReport], columns: int | None, *, all_rows: bool = False
) -> Iterator[Section]:
    """Yield each batch, then the comparison of two, and every failure last.

    all_rows: whether tables show every study.
    """
    for one in stored:
        yield Section([], [_heading(one)])
        yield Section(
            ["", *batch_summary.table(one.batch, columns, all_rows=all_rows)],
            batch_summary.totals(one.batch, verbose=True),
        )
        yield Section([*_stage_bars(one), ""])
        yield Section(_timeline(one.batch, columns))
    if len(stored) == 2:
        yield from _comparison(compare(*stored), columns)
    yield Section([], _failures(stored))


SHORTEST = 0.005
"""Shortest time, in seconds, that a table does not round to 0; ratios of shorter times mean
nothing.
"""


def ratio(first: float, second: float) -> str:
    """Return the first by the second; empty if either is too short to be shown."""
    return f"{first / second:.2f}" if min(first, second) >= SHORTEST else ""


def _heading(one: StoredReport) -> str:
    batch = one.batch
    return (
        f"{_name(one)}: {printable(batch.model.name)} on {printable(batch.device)}, "
        f"{printable(batch.started)}, cuda-cyclegan {printable(one.program)}"
    )


def _name(one: StoredReport) -> str:
    return printable(one.name)


def _failures(stored: Sequence[StoredReport]) -> Iterator[str]:
    """Return common failures once, and all others with the name of their report."""
    places: dict[str, list[str]] = {}
    for one in stored:
        for line in batch_summary.failures(one.batch):
            places.setdefault(line, []).append(_name(one))
    for line, names in places.items():
        yield line if len(names) == len(stored) else f"{', '.join(names)}: {line}"


def _stage_bars(one: StoredReport) -> Iterator[str]:
    spent = one.batch.stages()
    total = sum(spent.values())
    if not total:
        return
    yield ""
    yield "Work by stage, summed over studies that overlap in time"
    for stage, value in spent.items():
        share = value / total
        yield f"{stage:<8}{seconds(value):>8} s {share:>6.1%}  {bar(share, BAR)}".rstrip()


def _timeline(batch: BatchReport, columns: int | None) -> Iterator[str]:
    """Draw studies below each other on one time axis, so that overlapping ones show."""
    rows = batch.by_start()
    if not rows:
        return
    last = max(stop for (_, stop), _ in rows) or 1.0
    table = TextTable(
        head=Row("study", ["from", "to", "in progress"]),
        rows=[
            Row(printable(row.name), [seconds(start), seconds(stop), _stretches(row, last)])
            for (start, stop), row in rows[:MOST_IN_TIMELINE]
        ],
    )
    yield from table.lines(columns)
    if len(rows) > MOST_IN_TIMELINE:
        yield f"The first {MOST_IN_TIMELINE} of {len(rows)}; --html shows all."
    yield ""


def _stretches(row: StudyReport, last: float) -> str:
    """Return blocks when a stage worked, and dots when the study waited."""
    columns = [
        (first := min(int(start / last * BAR), BAR - 1), max(round(stop / last * BAR), first + 1))
        for start, stop in row.when.values()
    ]
    begin, end = min(first for first, _ in columns), max(stop for _, stop in columns)
    worked = {column for first, stop in columns for column in range(first, stop)}
    return " " * begin + "".join("█" if at in worked else "·" for at in range(begin, end))


def _comparison(found: Comparison, columns: int | None) -> Iterator[Section]:
    first, second = _name(found.first), _name(found.second)
    yield Section([], [f"{second} against {first}:", *outcome(found), *_differences(found)])
    if found.pairs:
        yield Section(["", *_pairs(found).lines(columns), ""])
        yield Section([*_stages(found).lines(columns), ""])


def _pairs(found: Comparison) -> TextTable:
    return TextTable(
        head=Row("seconds of work on", ["first", "second", "ratio"]),
        rows=[
            Row(
                printable(pair.first.name),
                [
                    seconds(pair.first.seconds),
                    seconds(pair.second.seconds),
                    ratio(pair.first.seconds, pair.second.seconds),
                ],
            )
            for pair in found.pairs
        ],
        total=Row("sum", [*map(seconds, found.work), ratio(*found.work)]),
    )


def _stages(found: Comparison) -> TextTable:
    rows = [
        Row(stage, [seconds(one), seconds(other), ratio(one, other)])
        for stage, (one, other) in found.stages().items()
    ]
    one, other = found.peaks
    if one and other:
        rows.append(Row("peak RAM", [memory(one), memory(other), ratio(one, other)]))
    return TextTable(head=Row("stage, summed", ["first", "second", "ratio"]), rows=rows)


def _differences(found: Comparison) -> Iterator[str]:
    for name, (one, other) in found.differences.items():
        yield f"- {name}: {printable(one) or 'none'} became {printable(other) or 'none'}"


def outcome(found: Comparison) -> Iterator[str]:
    """Return the outcome of a comparison in a few sentences, before the different conditions."""
    one, other = map(seconds, found.wall)
    if found.speedup is not None:
        studies = counted(len(found.pairs), "study", "studies")
        yield (
            f"Wall time: {one} s, then {other} s for the same {studies}; the second was "
            f"{found.speedup:.2f}x as fast"
        )
    elif not found.pairs:
        yield "No study was translated in both batches"
    else:
        yield f"Wall time: {one} s, then {other} s, but not for the same studies"
        for count, name in zip(found.unmatched, ("first", "second"), strict=True):
            if count:
                yield f"{counted(count, 'study', 'studies')} translated only in the {name}"
        if found.rate is not None:
            yield f"Throughput of the second was {found.rate:.2f}x that of the first"
    if found.pairs:
        yield ("The conditions differed:" if found.differences else "The conditions were the same")


def _longest_pair(found: Comparison) -> float:
    rows = (row for pair in found.pairs for row in (pair.first, pair.second))
    return max(sum(row.stages.values()) for row in rows)


_FILTERS: dict[str, Callable[..., Any]] = {
    "date_and_minute": date_and_minute,
    "seconds": seconds,
    "memory": memory,
    "ratio": ratio,
    "outcome": outcome,
    "stage_bar": charts.stage_bar,
    "timeline_bar": charts.timeline_bar,
    "unproven": batch_summary.unproven,
    "longest": _longest_pair,
}


@dataclass(frozen=True, slots=True)
class _Batch:
    """Stored report as the template shows it.

    last: time at which the last study ended. first, end: place of its studies among those of all
    reports.
    """

    stored: StoredReport
    failures: "Markup"
    figures: Mapping[str, str]
    plots: Sequence[tuple[str, charts.TimePlot]]
    last: float
    first: int
    end: int
    conditions: Mapping[str, str]

    @property
    def batch(self) -> BatchReport:
        return self.stored.batch


def page(stored: Sequence[StoredReport], target: Path) -> str:
    """Return the page; failures come first in each batch. target: the file that it becomes."""
    title = " and ".join(one.name for one in stored[:2])
    studies = [study for one in stored for study in of_report(one).studies]
    data = {
        **study_data(studies, beside=target.absolute().parent),
        "mode": "file",
        "opens": False,
        "title": printable(title),
        "started": stored[0].batch.started,
    }
    return review_page(
        "batch.html.j2",
        data,
        pictures=stored_pictures(studies),
        filters=_FILTERS,
        title=f"Batch report: {title}",
        comparison=compare(*stored) if len(stored) == 2 else None,
        batches=list(_batches(stored)),
        colours=charts.STAGE_COLOURS,
    )


def _batches(stored: Sequence[StoredReport]) -> Iterator[_Batch]:
    first = 0
    for one in stored:
        batch = one.batch
        end = first + len(batch.studies)
        yield _Batch(
            stored=one,
            failures=failure_groups(batch.studies),
            figures=_figures(batch),
            plots=_plots(batch) if batch.translated() else [],
            last=max((stop for (_, stop), _ in batch.by_start()), default=0.0),
            first=first,
            end=end,
            conditions={**conditions(one), "results": str(batch.output)},
        )
        first = end


def _figures(batch: BatchReport) -> dict[str, str]:
    rate, peak = batch.voxels_per_second, batch.peak_memory
    return {
        "translated": str(len(batch.translated())),
        "up to date": str(batch.count("up to date") or ""),
        "failed": str(len(batch.failures) or ""),
        "not finished": str(batch.count("interrupted") + batch.not_reached or ""),
        "time": duration(batch.seconds) if batch.seconds >= 60 else f"{seconds(batch.seconds)} s",
        "throughput": f"{scaled(rate)} voxels/s" if rate else "",
        "peak memory": batch_summary.peak_text(peak),
        "beyond cycle limit": str(sum(cycle.is_marked for cycle in batch.cycles) or ""),
        "worst seam": batch_summary.figure_text(batch.worst_seam, batch_summary.SEAM_FORM),
    }


def _plots(batch: BatchReport) -> list[tuple[str, charts.TimePlot]]:
    rows = batch.translated()
    rates = [row.voxels_per_second or 0.0 for row in rows]
    named = [("Throughput, voxels/s", charts.over_time(_spans(rows, rates), scaled))]
    peaks = [row.peak_memory.bytes / 2**20 if row.peak_memory else 0.0 for row in rows]
    if max(peaks) >= 1024:
        gibibytes = [peak / 1024 for peak in peaks]
        plot = charts.over_time(_spans(rows, gibibytes), "{:g}".format)
        named.append(("Peak memory, GiB", plot))
    elif any(peaks):
        named.append(("Peak memory, MiB", charts.over_time(_spans(rows, peaks), "{:g}".format)))
    return named


def _spans(rows: Sequence[StudyReport], values: Sequence[float]) -> list[charts.PlotSpan]:
    """Return when studies were in flight, or one after another if that was not recorded."""
    spans: list[charts.PlotSpan] = []
    begin = 0.0
    for row, value in zip(rows, values, strict=True):
        start, stop = row.in_flight or (begin, begin + row.seconds)
        spans.append(charts.PlotSpan(start, stop, value, row.name))
        begin += row.seconds
    return spans
