"""The end of a batch: a row a study, the totals, and the failures last."""

from collections.abc import Iterator, Sequence

from ..pipelines.memory import PeakMemory
from ..pipelines.report import BatchReport, StudyReport
from ..pipelines.stopwatch import STAGES
from .lines import failure_text
from .text import counted, memory, printable, scaled, seconds

HEAD = "study / seconds"
FIGURES = (*STAGES, "voxel/s", "peak", "status")
WIDTHS = [max(5, len(stage)) for stage in STAGES] + [7, 8, 7]
FIGURES_WIDTH = sum(WIDTHS) + len(WIDTHS)
STATUS = {"translated": "done", "up to date": "kept", "failed": "failed", "interrupted": "stopped"}


def table(report: BatchReport, columns: int | None) -> Iterator[str]:
    """A line for each study that was worked on, and one for all; seconds a stage.

    columns: width of the terminal, or None for no limit. A name that leaves its figures no room
    has a line of its own, so that no name is ever cut.
    """
    rows = [row for row in report.studies if row.status != "up to date"]
    if not rows:
        return
    name_width = max(len(HEAD), *(len(printable(row.name)) for row in rows))
    if columns is not None:
        name_width = max(len(HEAD), min(name_width, columns - FIGURES_WIDTH))
    yield from _row(HEAD, FIGURES, name_width)
    rule = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (name_width + FIGURES_WIDTH)
    yield rule
    for row in rows:
        yield from _row(printable(row.name), _figures(row), name_width)
    if report.translated():
        yield rule
        yield from _row("total", _total(report), name_width)


def _row(name: str, figures: Sequence[str], name_width: int) -> Iterator[str]:
    if len(name) > name_width:
        yield name
        name = ""
    *numbers, status = [figure.rjust(width) for figure, width in zip(figures, WIDTHS, strict=True)]
    yield " ".join([name.ljust(name_width), *numbers, status.lstrip()]).rstrip()


def _figures(row: StudyReport) -> list[str]:
    return [
        *(seconds(row.stages[stage]) if stage in row.stages else "" for stage in STAGES),
        scaled(row.voxels_per_second) if row.voxels_per_second else "",
        _peak(row.peak_memory),
        "redone" if row.status == "translated" and row.due else STATUS[row.status],
    ]


def _total(report: BatchReport) -> list[str]:
    return [
        *map(seconds, report.stages().values()),
        scaled(report.voxels_per_second or 0),
        _peak(report.peak_memory),
        "",
    ]


def totals(report: BatchReport) -> list[str]:
    """What the batch came to, in a few lines."""
    counts = [f"{len(report.translated())} translated"]
    for count, word in (
        (report.count("up to date"), "up to date"),
        (len(report.failures), "failed"),
        (report.count("interrupted"), "stopped"),
        (report.not_reached, "not begun"),
    ):
        if count:
            counts.append(f"{count} {word}")
    total = len(report.studies) + report.not_reached
    lines = [
        f"{counted(total, 'study', 'studies')} in {seconds(report.seconds)} s: "
        + ", ".join(counts),
        f"Results: {printable(str(report.output))}",
    ]
    if report.skipped:
        lines.append(f"{counted(len(report.skipped), 'other file')} skipped; --dry-run lists them")
    if report.peak_memory and report.peak_memory.of_run:
        lines.append("Peak memory counts from the start of the program: the kernel keeps one mark.")
    return lines


def failures(report: BatchReport) -> list[str]:
    """The failed studies with their reasons, for the very end."""
    return [f"failed: {printable(row.name)}: {failure_text(row)}" for row in report.failures]


def _peak(peak: PeakMemory | None) -> str:
    return memory(peak.bytes) if peak else ""
