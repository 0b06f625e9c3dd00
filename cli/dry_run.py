"""`plan` and `translate --dry-run`: studies and what they take, files skipped, all reasons."""

from collections.abc import Iterator, Sequence

from ..io.discovery import Skipped
from ..pipelines.dry_run import DryRow, batch_seconds
from .lines import failure_text
from .tables import Row, Table
from .text import counted, memory, printable, seconds


def lines(rows: Sequence[DryRow], columns: int | None) -> Iterator[str]:
    """The table of studies; columns: width of the terminal, or None for no limit."""
    table = Table(
        head=Row("study", ["tiles", "RAM", "seconds", "would be"]),
        rows=[
            Row(
                printable(str(row.planned.study.name)),
                [
                    str(row.tiles or ""),
                    memory(row.host_bytes) if row.host_bytes else "",
                    seconds(row.work.seconds) if row.work else "",
                    _outcome(row),
                ],
            )
            for row in rows
        ],
    )
    return table.lines(columns)


def reasons(rows: Sequence[DryRow], skipped: Sequence[Skipped]) -> Iterator[str]:
    """Why studies would fail and files are skipped, and what a run would come to."""
    failed = [row for row in rows if row.failure]
    for skip in skipped:
        yield f"skipped: {printable(str(skip.path))}: {printable(skip.reason)}"
    for row in rows:
        for note in row.planned.study.notes:
            yield f"note: {printable(str(row.planned.study.name))}: {note}"
    for row in failed:
        yield f"would fail: {printable(str(row.planned.study.name))}: {failure_text(row.failure)}"
    if largest := max((row.host_bytes for row in rows), default=0):
        yield (
            f"RAM for arrays: {memory(largest)} for the largest study alone; "
            "its neighbours' beside it where there is room"
        )
        wall = batch_seconds(rows)
        known = "not known yet: it is measured by the first batch" if wall is None else ""
        yield f"Seconds of work in all: {known or seconds(wall or 0)}"
    kept = sum(row.planned.action == "keep" for row in rows)
    due = len(rows) - kept - len(failed)
    parts = [f"{due} to translate in {counted(sum(row.tiles for row in rows), 'tile')}"]
    parts += [f"{kept} up to date"] if kept else []
    parts += [f"{len(failed)} that would fail"] if failed else []
    yield f"{counted(len(rows), 'study', 'studies')}: {', '.join(parts)}; nothing was written"


def _outcome(row: DryRow) -> str:
    if row.failure:
        return "failed"
    if row.planned.action == "keep":
        return "kept"
    return f"redone: {row.planned.reason}" if row.planned.reason else "translated"
