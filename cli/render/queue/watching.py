"""`jobs --watch`: the tables, again and again."""

import sys
import time
from typing import TYPE_CHECKING

from ..progress_bars import ECHO
from ..terminal.elision import shortened
from ..terminal.streams import columns_of, say
from . import jobs as listing

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.job import JobRow
    from ....pipelines.jobs.queue.queue import Queue

REFRESH_SECONDS = 1.0


def watch(jobs: "Queue", batch: str | None) -> None:
    """Show until no job is open; on a terminal in place, elsewhere as lines when they change."""
    if columns_of(sys.stdout) is None:
        _as_lines(jobs, batch)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    last: list[str] = []
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                columns = console.width - len(ECHO)
                last = fitting(jobs, batch, console.height - 1, columns)
                shown = "\n".join(shortened(line, columns) for line in last)
                live.update(Text(shown, no_wrap=True), refresh=True)
                if not _is_open(jobs, batch):
                    last = list(listing.lines(jobs, _rows(jobs, batch), console.width))
                    return
                time.sleep(REFRESH_SECONDS)
    finally:
        for line in last:
            say(line, sys.stdout)


def fitting(jobs: "Queue", batch: str | None, room: int, columns: int | None = None) -> list[str]:
    """What there is room for: all, or the jobs that run and first failures, or newest batches."""
    rows = _rows(jobs, batch)
    lines = list(listing.lines(jobs, rows, columns))
    if len(lines) > room and rows is not None:
        return list(listing.lines(jobs, rows, columns, listed=("running",)))[:room]
    return lines[-room:]


def _as_lines(jobs: "Queue", batch: str | None) -> None:
    told: list[str] = []
    while True:
        lines = list(listing.lines(jobs, _rows(jobs, batch), None))
        for line in lines:
            if line not in told:
                say(line, sys.stdout)
        told = lines
        if not _is_open(jobs, batch):
            return
        time.sleep(REFRESH_SECONDS)


def _rows(jobs: "Queue", batch: str | None) -> "list[JobRow] | None":
    return None if batch is None else jobs.jobs(batch)


def _is_open(jobs: "Queue", batch: str | None) -> bool:
    from ....pipelines.jobs.queue.job import OPEN

    return any(
        count.jobs.get(state)
        for count in jobs.batches()
        if batch in (None, count.batch)
        for state in OPEN
    )
