"""The end of a batch: a row per study, the totals, and the failures last."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isinf

from rich.cells import cell_len

from ...pipelines.host.memory import PeakMemory
from ...pipelines.report.report import BatchReport, StudyReport
from ...pipelines.report.result_groups import FEWEST
from ...pipelines.report.suspicion import Suspicion, suspicions_in
from ...pipelines.stopwatch import Stage
from ...pipelines.study.figures import CycleError
from .progress_lines import failure_text
from .skipped import skip_counts, skipped_scans
from .tables import Row, TextTable
from .text import alike_lines, counted, memory, percent, printable, quantity, scaled, seconds

NAME_COLUMNS = 40
"""Columns that a long name should get; a narrower terminal shows no stages."""

STATUS = {"translated": "done", "up to date": "kept", "failed": "failed", "interrupted": "stopped"}


MOST_ROWS = 40
"""Largest number of rows that a table shows in full."""


def table(report: BatchReport, columns: int | None, *, all_rows: bool = False) -> Iterator[str]:
    """Return the table of processed studies; if they are many, of those that failed or have a note.

    columns: of the terminal; None for no limit. all_rows: whether to show every study.
    """
    processed = [row for row in report.studies if row.status != "up to date"]
    judged = {row.name: found for row, found in _judged(report)}
    first = [row for row in processed if judged[row.name].is_suspicious]
    first.sort(key=lambda row: -judged[row.name].far)
    processed = [*first, *(row for row in processed if not judged[row.name].is_suspicious)]
    rows = processed if all_rows else _noteworthy(processed, first)
    whole = _table(report, rows, tuple(report.stages()))
    longest = max((cell_len(row.name) for row in whole.rows), default=0)
    if columns is None or columns - whole.figures_width >= min(longest, NAME_COLUMNS):
        yield from whole.lines(columns)
    else:
        yield from _table(report, rows, ()).lines(columns)
    if more := len(processed) - len(rows):
        yield f"{counted(more, 'more study', 'more studies')}; --all-rows shows all"


def _judged(report: BatchReport) -> Iterator[tuple[StudyReport, Suspicion]]:
    return zip(report.studies, suspicions_in(report), strict=True)


def suspicious(report: BatchReport, *, is_condition: bool = False) -> Iterator[str]:
    """Yield the suspicious results with their measures, the most suspicious first, and how many
    could not be judged.

    is_condition: whether the exit status depends on them, so that the counts are always shown.
    """
    found = [(row, one) for row, one in _judged(report) if row.is_done]
    odd = [each for each in found if each[1].is_suspicious]
    odd.sort(key=lambda each: -each[1].far)
    yield from alike_lines("suspicious", ((printable(row.name), one.note) for row, one in odd))
    unmeasured = [row for row, one in found if isinf(one.far)]
    if unmeasured:
        names = ", ".join(printable(row.name) for row in unmeasured[:_FEW_NAMES])
        more = ", ..." if len(unmeasured) > _FEW_NAMES else ""
        results = counted(len(unmeasured), "result has", "results have")
        yield f"{results} no measures, so look at them first: {names}{more}"
    few = sum(one.state == "not judged" and not isinf(one.far) for _, one in found)
    parts = [
        (len(odd), "suspicious"),
        (few, "not judged, as too few similar scans are known"),
        (len(unmeasured), "without measures"),
    ]
    if odd or len(found) >= FEWEST or (is_condition and found):
        listed = ", ".join(f"{count} {word}" for count, word in parts if count)
        yield f"Results: {listed or 'none is suspicious, which does not prove them right'}"


_FEW_NAMES = 10
"""Largest number of names in one sentence."""


def _noteworthy(rows: Sequence[StudyReport], first: Sequence[StudyReport]) -> Sequence[StudyReport]:
    """Return all rows if they are few, else those that are not simply done, and the first if all
    are.
    """
    if len(rows) <= MOST_ROWS:
        return rows
    names = {row.name for row in first}
    odd = [row for row in rows if row.notes or row.name in names or row.status != "translated"]
    return odd[:MOST_ROWS] or rows[:1]


def unproven(report: BatchReport) -> str:
    """Return the warning about results of an unproven model."""
    return (
        f"model {printable(report.model.name)} is unproven: no reference or training code "
        "confirms what it computes"
    )


FEW_STUDIES = 10
"""Largest number of studies after which the use of the machine is shown only with --verbose."""


_LONG_BATCH, _IDLE_SHARE = 60.0, 0.55
"""Seconds of a batch, and the network's share of them, from which two processes on a GPU pay: a
second one takes a second to start.
"""


def totals(
    report: BatchReport,
    not_reached: str = "not started",
    *,
    verbose: bool = False,
    is_condition: bool = False,
) -> Iterator[str]:
    """Return the outcome of the batch in a few sentences.

    not_reached: how studies without a row are described. verbose: whether to show the use of the
    machine also for few studies. is_condition: as in `suspicious`.
    """
    if report.model.is_unproven:
        yield f"note: {unproven(report)}"
    rows = report.translated()
    taken = [row for row in report.studies if row.is_done]
    yield from alike_lines("note", ((printable(r.name), note) for r in taken for note in r.notes))
    yield from _without_effect(report)
    yield from suspicious(report, is_condition=is_condition)
    yield from skipped_scans(report.skipped)
    if rows:
        if verbose or len(rows) > FEW_STUDIES:
            yield from _use(report)
        yield from _energy(report)
    total = len(report.studies) + report.not_reached
    counts = (
        (len(report.translated()), "translated"),
        (report.count("up to date"), "up to date"),
        (len(report.failures), "failed"),
        (report.count("interrupted"), "stopped"),
        (report.not_reached, not_reached),
    )
    parts = [f"{count} {word}" for count, word in counts if count]
    if drawn := report.previews_drawn:
        parts.append(f"{counted(drawn, 'preview')} drawn from existing files")
    spent = f"{counted(total, 'study', 'studies')} in {seconds(report.seconds)} s"
    yield f"{spent}: {', '.join(parts)}" if parts else spent  # none: an empty shard
    if report.translated() or report.count("up to date"):
        yield from _where(report)
    yield from skip_counts(report.skipped, "plan")
    if report.peak_memory and report.peak_memory.of_run:
        yield "Peak RAM is that of the whole program: this system records only one peak."
    if report.worst_verified is not None:
        yield (
            "CPU diff: relative error of patches compared with the CPU, which computed them again."
        )
    if any(row.cycle for row in report.translated()):
        yield (
            "Cycle: mean absolute error of the back-translation in the scan's unit, ! beyond its "
            "limit; a low error does not prove that the result is right."
        )
    if report.worst_spread is not None:
        yield (
            "Spread: mean over the foreground of the standard deviation between mirrored "
            "translations, in the result's unit; errors common to all of them do not show."
        )
    if report.worst_disagreement is not None:
        yield (
            "Disagreement: mean over the foreground of how far the model's networks are from "
            "their mean, in the result's unit; errors common to all of them do not show."
        )
    if report.worst_seam is not None:
        yield (
            "Seam: ratio of steps across patch borders to steps elsewhere; 1.00 if no border is "
            "visible."
        )


def _without_effect(report: BatchReport) -> Iterator[str]:
    """Yield notes on results that have not been verified or scored as requested, and why."""
    kept = report.count("up to date")
    if report.options.verify and kept:
        them = "it" if kept == 1 else "them"
        yield (
            f"note: --verify had no effect on {counted(kept, 'result')} that "
            f"{'is' if kept == 1 else 'are'} up to date; --overwrite makes and verifies {them} "
            "again"
        )
    if not report.options.seam_score:
        return
    taken = [row for row in report.studies if row.is_done]
    if unscored := sum(row.seams is None for row in taken):
        them, were = ("it", "was") if unscored == 1 else ("them", "were")
        yield (
            f"note: --seam-score had no effect on {counted(unscored, 'result')} that {were} made "
            f"without it before; --overwrite makes and scores {them} again"
        )
    if seamless := sum(row.seams is not None and row.seams.worst is None for row in taken):
        have = "has" if seamless == 1 else "have"
        yield (
            f"note: {counted(seamless, 'result')} {have} no seam score: a single patch covers the "
            "scan, or there are no differences to compare at patch borders"
        )


def _where(report: BatchReport) -> Iterator[str]:
    previews = [row.preview for row in report.studies if row.preview]
    if len(report.studies) == 1:
        yield f"Result: {printable(str(report.studies[0].output))}"
        yield from (f"Preview: {printable(str(preview))}" for preview in previews)
        return
    yield f"Results: {printable(str(report.output))}"
    if previews:
        yield "Previews: next to the results, *.preview.png"


def _use(report: BatchReport) -> Iterator[str]:
    spent = (f"{stage} {seconds(value)} s" for stage, value in report.stages().items())
    summed = ", summed over the studies" if len(report.translated()) > 1 else ""
    yield f"Work by stage{summed}: {', '.join(spent)}"
    use = report.use
    devices = f" on each of {use.devices} devices" if use.devices > 1 else ""
    share, wall = percent(use.computing_share), seconds(use.wall)
    yield f"The network was computing for {share} of the batch's {wall} s{devices}"
    is_idle = use.wall >= _LONG_BATCH and use.computing_share < _IDLE_SHARE
    if is_idle and use.devices == 1 and "copy" in report.stages():
        yield "The GPU waited for the rest; two processes on it may be faster: --device cuda:0,0"


def _energy(report: BatchReport) -> Iterator[str]:
    if energy := report.energy:
        yield f"Energy {quantity(energy.joules, 'J')}, {energy.watts:.0f} W on average"
        if len(report.translated()) > 1:
            yield "~J: share of that energy in proportion to the time in the network."


def failures(report: BatchReport) -> Iterator[str]:
    """Return the failed studies with their reasons."""
    rows = report.failures
    return alike_lines("failed", ((printable(r.name), failure_text(r.failure)) for r in rows))


@dataclass(frozen=True, slots=True)
class _Column:
    """Column of figures. head: its heading. cell: figure of a study. total: figure of the batch."""

    head: str
    cell: Callable[[StudyReport], str]
    total: str = ""


def _table(report: BatchReport, rows: Sequence[StudyReport], shown: Sequence[Stage]) -> TextTable:
    columns = list(_columns(report, rows, shown))
    return TextTable(
        head=Row("study", [column.head for column in columns]),
        rows=[Row(printable(row.name), [column.cell(row) for column in columns]) for row in rows],
        total=Row("wall time", [column.total for column in columns])
        if len(report.translated()) > 1
        else None,
    )


def _columns(
    report: BatchReport, rows: Sequence[StudyReport], shown: Sequence[Stage]
) -> Iterator[_Column]:
    """Yield the columns of which the batch has figures."""
    for stage in shown:
        yield _Column(stage, partial(_stage_text, stage))
    yield _Column("seconds", lambda row: seconds(row.seconds), seconds(report.use.wall))
    yield _Column(
        "voxels/s",
        lambda row: scaled(row.voxels_per_second) if row.voxels_per_second else "",
        scaled(report.voxels_per_second or 0),
    )
    peak = peak_text(report.peak_memory)
    yield _Column("peak RAM", lambda row: peak_text(row.peak_memory), peak)
    if report.energy:
        joules = report.shared_joules()
        total = scaled(report.energy.joules)
        yield _Column("~J", lambda row: scaled(joules.get(row.name, 0.0)), total)
    seam, diff, spread = report.worst_seam, report.worst_verified, report.worst_spread
    yield from _measured("seam", lambda row: row.seams and row.seams.worst, SEAM_FORM, seam)
    yield from _measured("CPU diff", lambda row: row.verified and row.verified.error, ".1e", diff)
    if any(row.cycle for row in rows):
        yield _Column("cycle", lambda row: _cycle_text(row.cycle))
    yield from _measured("spread", lambda row: row.spread and row.spread.deviation, ".3g", spread)
    yield from _measured(
        "disagreement", lambda row: row.disagreement, ".3g", report.worst_disagreement
    )
    yield _Column(
        "status",
        lambda row: "redone" if row.status == "translated" and row.due else STATUS[row.status],
    )


SEAM_FORM = ".2f"
"""Format of a seam score."""


def _measured(
    head: str, of: Callable[[StudyReport], float | None], form: str, worst: float | None
) -> Iterator[_Column]:
    """Yield the column of a figure if any study has it. form: format of its numbers."""
    if worst is not None:
        yield _Column(head, lambda row: figure_text(of(row), form), figure_text(worst, form))


def _stage_text(stage: Stage, row: StudyReport) -> str:
    return seconds(row.stages[stage]) if stage in row.stages else ""


def figure_text(value: float | None, form: str) -> str:
    """Format a figure; empty if it was not measured."""
    return "" if value is None else f"{value:{form}}"


def _cycle_text(cycle: CycleError | None) -> str:
    """Format a cycle error, marked if it is beyond its limit."""
    if cycle is None:
        return ""
    return f"{cycle.error:.3g}{' !' if cycle.is_marked else ''}"


def peak_text(peak: PeakMemory | None) -> str:
    """Return the peak memory as text, empty if unknown."""
    return memory(peak.bytes) if peak else ""
