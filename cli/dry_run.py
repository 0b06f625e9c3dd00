"""`translate --dry-run`: every study found and every file skipped, with the reason."""

from collections.abc import Iterator, Sequence
from io import StringIO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..io.discovery import Skipped
from ..pipelines.dry_run import DryRow
from .text import counted, printable

UNBOUNDED = 10_000
"""Width of a table that no terminal limits."""


def lines(rows: Sequence[DryRow], skipped: Sequence[Skipped], columns: int | None) -> Iterator[str]:
    """The table of studies, that of skipped files, and the totals; nothing is cut off.

    columns: width of the terminal, or None for no limit.
    """
    if rows:
        yield from _rendered(_studies(rows), columns)
        yield ""
    if skipped:
        yield from _rendered(_skipped(skipped), columns)
        yield ""
    yield totals(rows, skipped)


def _rendered(table: Table, columns: int | None) -> Iterator[str]:
    console = Console(file=StringIO(), width=columns or UNBOUNDED)
    with console.capture() as capture:
        console.print(table)
    return map(str.rstrip, capture.get().splitlines())


def totals(rows: Sequence[DryRow], skipped: Sequence[Skipped]) -> str:
    """One line that says what a run would come to."""
    failures = sum(row.failure is not None for row in rows)
    kept = sum(row.planned.action == "keep" for row in rows)
    tiles = sum(row.tiles for row in rows)
    parts = [f"{len(rows) - kept - failures} to translate with {counted(tiles, 'tile')}"]
    parts += [f"{kept} up to date"] if kept else []
    parts += [f"{failures} that would fail"] if failures else []
    parts += [f"{counted(len(skipped), 'other file')} skipped"] if skipped else []
    return f"{counted(len(rows), 'study', 'studies')}: {', '.join(parts)}; nothing was written."


def _studies(rows: Sequence[DryRow]) -> Table:
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("study", overflow="fold")
    table.add_column("tiles", justify="right", no_wrap=True)
    table.add_column("would be", no_wrap=True)
    table.add_column("because", overflow="fold")
    for row in rows:
        action, reason = _outcome(row)
        tiles = str(row.tiles) if row.tiles else ""
        name = printable(str(row.planned.study.name))
        table.add_row(Text(name), tiles, action, Text(printable(reason)))
    return table


def _outcome(row: DryRow) -> tuple[str, str]:
    if row.failure:
        return "failed", f"{row.failure.kind}: {row.failure.reason}"
    if row.planned.action == "keep":
        return "kept", "it is up to date"
    return ("redone" if row.planned.reason else "translated"), row.planned.reason or ""


def _skipped(skipped: Sequence[Skipped]) -> Table:
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("skipped", overflow="fold")
    table.add_column("because", overflow="fold")
    for skip in skipped:
        table.add_row(Text(printable(str(skip.path))), Text(printable(skip.reason)))
    return table
