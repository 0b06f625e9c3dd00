"""`translate --dry-run`: every study with its tiles, every file skipped, and all the reasons."""

from collections.abc import Iterator, Sequence

from ..io.discovery import Skipped
from ..pipelines.dry_run import DryRow
from .lines import failure_text
from .tables import Row, Table
from .text import counted, printable


def lines(rows: Sequence[DryRow], columns: int | None) -> Iterator[str]:
    """The table of studies; columns: width of the terminal, or None for no limit."""
    table = Table(
        head=Row("study", ["tiles", "would be"]),
        rows=[
            Row(printable(str(row.planned.study.name)), [str(row.tiles or ""), _outcome(row)])
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
