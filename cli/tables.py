"""The end of a batch: a row a study, the totals, and the failures last."""

from collections.abc import Iterable
from typing import TextIO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..pipelines.memory import PeakMemory
from ..pipelines.report import BatchReport, StudyReport
from ..pipelines.stopwatch import STAGES
from .lines import failure_text
from .text import counted, memory, printable, scaled, seconds, shortened

NARROWEST_NAME = 14
STAGE_WIDTHS = {stage: max(5, len(stage)) for stage in STAGES}
OTHER_WIDTHS = {"voxel/s": 7, "peak": 7, "status": 7}
FIGURES_WIDTH = sum(STAGE_WIDTHS.values()) + sum(OTHER_WIDTHS.values()) + len(STAGES) + 3
"""Columns of the terminal that a row takes besides its name, one space before each figure."""


def show(report: BatchReport, stream: TextIO) -> None:
    """Table and totals of a batch; wide enough for every name unless a terminal sets the width."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    names = [len(printable(row.name)) for row in report.studies]
    name_width = max([NARROWEST_NAME, *names])
    if console.is_terminal:
        name_width = max(NARROWEST_NAME, min(name_width, console.width - FIGURES_WIDTH))
    console.width = FIGURES_WIDTH + name_width
    rows = [row for row in report.studies if row.status != "up to date"]
    if rows:
        console.print(_table(rows, report, name_width))
    for line in totals(report):
        console.print(Text(line), soft_wrap=True)


def _table(rows: Iterable[StudyReport], report: BatchReport, name_width: int) -> Table:
    translated = len(report.translated()) > 0
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, padding=0, show_footer=translated)
    stages = report.stages()
    table.add_column("study", "total", width=name_width, no_wrap=True)
    for stage, width in STAGE_WIDTHS.items():
        table.add_column(stage, seconds(stages[stage]), width=width, justify="right", no_wrap=True)
    rate, peak = scaled(report.voxels_per_second or 0), _peak(report.peak_memory)
    for (name, width), total in zip(OTHER_WIDTHS.items(), (rate, peak, ""), strict=True):
        justify = "left" if name == "status" else "right"
        table.add_column(name, total, width=width, justify=justify, no_wrap=True)
    for row in rows:
        status = "redone" if row.status == "translated" and row.due else _STATUS[row.status]
        table.add_row(
            Text(shortened(printable(row.name), name_width)),
            *(seconds(row.stages[stage]) if stage in row.stages else "" for stage in STAGES),
            scaled(row.voxels_per_second) if row.voxels_per_second else "",
            _peak(row.peak_memory),
            Text(status, "red" if row.status == "failed" else ""),
        )
    return table


_STATUS = {"translated": "done", "up to date": "kept", "failed": "failed", "interrupted": "stopped"}


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
