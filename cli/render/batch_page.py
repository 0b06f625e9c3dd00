"""What past batches came to, alone or compared, as one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...pipelines.report.codec import StoredReport
from ...pipelines.report.comparison import Comparison, compare, conditions
from ...pipelines.report.previews import small_preview
from ...pipelines.report.report import BatchReport, StudyReport
from . import batch_summary, charts
from .html import rendered
from .progress_lines import failure_text
from .report_text import outcome, ratio
from .terminal.text import duration, memory, scaled, seconds

PREVIEWS = 200
"""Previews embedded of one batch; at some 40 kB each a page stays usable."""

_FILTERS = {
    "seconds": seconds,
    "memory": memory,
    "scaled": scaled,
    "ratio": ratio,
    "outcome": outcome,
    "stage_bar": charts.stage_bar,
    "timeline_bar": charts.timeline_bar,
    "cycle_text": batch_summary.cycle_text,
    "error_text": batch_summary.error_text,
    "failure_text": failure_text,
    "peak_text": batch_summary.peak_text,
    "score_text": batch_summary.score_text,
    "spread_text": batch_summary.spread_text,
    "unproven": batch_summary.unproven,
    "longest": lambda found: _longest_pair(found),
}


@dataclass(frozen=True, slots=True)
class _Batch:
    """A stored report as the template shows it.

    longest: seconds of the longest study. last: time at which the last study ended. previewed:
    how many studies have a preview.
    """

    stored: StoredReport
    figures: Mapping[str, str]
    plots: Sequence[tuple[str, charts.TimePlot]]
    cycles: Sequence[StudyReport]
    cycle_errors: charts.Distribution | None
    previews: Sequence[tuple[StudyReport, bytes]]
    previewed: int
    longest: float
    last: float
    conditions: Mapping[str, str]

    @property
    def batch(self) -> BatchReport:
        return self.stored.batch


def page(stored: Sequence[StoredReport]) -> str:
    """Return the page; what failed comes first in each batch."""
    title = " and ".join(one.file.name for one in stored[:2])
    return rendered(
        "batch.html.j2",
        _FILTERS,
        title=f"Batch report: {title}",
        comparison=compare(*stored) if len(stored) == 2 else None,
        batches=[_batch(one) for one in stored],
        colours=charts.STAGE_COLOURS,
        statuses=batch_summary.STATUS,
        most_previews=PREVIEWS,
    )


def _longest_pair(found: Comparison) -> float:
    rows = (row for pair in found.pairs for row in (pair.first, pair.second))
    return max(sum(row.stages.values()) for row in rows)


def _batch(one: StoredReport) -> _Batch:
    batch = one.batch
    cycles = sorted((row for row in batch.studies if row.cycle), key=_worst_first)
    errors = [(row.name, row.cycle.error) for row in batch.studies if row.cycle]
    pictured = [row for row in batch.studies if row.preview and not row.failure]
    if cycles:
        pictured.sort(key=_worst_first)
    return _Batch(
        stored=one,
        figures=_figures(batch),
        plots=_plots(batch) if batch.translated() else [],
        cycles=cycles,
        cycle_errors=charts.distribution(errors, "{:.3g}".format) if errors else None,
        previews=[
            (row, picture) for row in pictured[:PREVIEWS] if (picture := small_preview(one, row))
        ],
        previewed=len(pictured),
        longest=max(
            (sum(row.stages.values()) for row in batch.studies if row.status != "up to date"),
            default=0.0,
        ),
        last=max((stop for (_, stop), _ in batch.by_start()), default=0.0),
        conditions={**conditions(one), "results": str(batch.output)},
    )


def _worst_first(row: StudyReport) -> tuple[bool, float, str]:
    """Sorting key: marked studies first, then by error, those without one last."""
    is_marked = row.cycle is not None and row.cycle.is_marked
    return not is_marked, -row.cycle.error if row.cycle else 0.0, row.name


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
        "worst seam": batch_summary.score_text(batch.worst_seam),
    }


def _plots(batch: BatchReport) -> list[tuple[str, charts.TimePlot]]:
    rows = batch.translated()
    rates = [row.voxels_per_second or 0.0 for row in rows]
    named = [("Throughput, voxels a second", charts.over_time(_spans(rows, rates), scaled))]
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
        start, stop = row.under_way or (begin, begin + row.seconds)
        spans.append(charts.PlotSpan(start, stop, value, row.name))
        begin += row.seconds
    return spans
