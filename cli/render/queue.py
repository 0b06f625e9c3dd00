"""Batches and jobs of a queue as tables, as JSON for scripts, and watched live."""

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.decoding import encode_record
from ...pipelines.jobs.queue.job import (
    OPEN,
    STATES,
    BatchCount,
    JobRow,
    JobState,
    OpenJobs,
    counted_open,
)
from ...pipelines.timestamps import iso_time
from .documents import json_text
from .pending_jobs import PAUSED, moment, state_text, waiting_jobs, worker_name
from .tables import Row, TextTable, shortened
from .terminal import columns_of, print_line
from .text import counted, flagged, printable, seconds

if TYPE_CHECKING:
    from ...pipelines.jobs.queue.queue import Queue


def queue_lines(
    jobs: "Queue",
    rows: Sequence[JobRow] | None,
    columns: int | None,
    listed: Collection[JobState] = STATES,
) -> Iterator[str]:
    """Return the lines of `jobs`. columns: of the terminal; None for no limit.

    rows: a batch's jobs, or None for all batches. listed: states in which a batch's jobs have a
    line of their own.
    """
    if rows is None:
        yield from batch_lines(jobs.batches(), columns)
    else:
        yield from job_lines(rows, columns, listed)
    yield from outlook(jobs, None if rows is None else counted_open(rows))


def batch_lines(batches: Sequence[BatchCount], columns: int | None) -> Iterator[str]:
    """Return one line per batch; states without jobs have no column."""
    held = {state for batch in batches for state in batch.jobs}
    shown: list[JobState] = [state for state in STATES if state in held]
    table = TextTable(
        Row("batch", [*shown, "submitted"]),
        [
            Row(
                _named(batch),
                [
                    *(str(batch.jobs[state]) if state in batch.jobs else "" for state in shown),
                    moment(batch.submitted),
                ],
            )
            for batch in batches
        ],
    )
    yield from table.lines(columns)
    if not batches:
        yield "The queue is empty."


def _named(batch: BatchCount) -> str:
    """Return number and name of a batch, then its model and folders."""
    work = batch.work
    parts = [f"{batch.batch} {printable(batch.name)}".rstrip()]
    if work.model:
        parts.append(f"{printable(work.inputs)} by {printable(Path(work.model).stem)}")
        parts.append(f"to {printable(work.output)}")
    return " ".join(parts)


def job_lines(
    rows: Sequence[JobRow], columns: int | None, listed: Collection[JobState]
) -> Iterator[str]:
    """Return model and folders, one line per job, counts by state, and reasons of failures."""
    work = next((row.work for row in rows if row.work.model), None)
    if work and listed == STATES:
        yield f"Model: {printable(work.model)}"
        yield f"Scans: {printable(work.inputs)}"
        yield f"Results: {printable(work.output)}"
    table = TextTable(
        Row("study", ["job", "tries", "seconds", "state"]),
        [
            Row(
                printable(row.study),
                [
                    row.number,
                    str(row.tries or ""),
                    seconds(row.seconds) if row.seconds else "",
                    state_text(row),
                ],
            )
            for row in rows
            if row.state in listed
        ],
    )
    yield from table.lines(columns)
    counts = [(sum(row.state == state for row in rows), state) for state in STATES]
    parts = ", ".join(f"{count} {state}" for count, state in counts if count)
    yield f"{counted(len(rows), 'job')}: {parts}"
    for row in rows:
        if row.reason:
            yield f"{row.state}: {printable(row.study)}: {printable(flagged(row.reason))}"


SCHEMA = "cuda-cyclegan/jobs/2"
"""Version of the layout: raised when a field changes its meaning or disappears. Version 1 had times
as seconds since 1970.
"""
_TIMES = ("submitted", "not_before", "started", "ended")


def jobs_json(jobs: "Queue", rows: Sequence[JobRow] | None) -> str:
    """Encode as JSON, in ASCII. rows: a batch's jobs, or None for all batches."""
    found = (
        {"batches": [_counted(count) for count in jobs.batches()]}
        if rows is None
        else {"jobs": [_job(row) for row in rows]}
    )
    state = {"schema": SCHEMA, "paused": jobs.is_paused(), "workers": jobs.workers(), **found}
    return json_text(state)


def _dated(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with times as ISO 8601."""
    times = {name: fields[name] for name in _TIMES if fields.get(name) is not None}
    return {**fields, **{name: iso_time(time) for name, time in times.items()}}


def _counted(count: BatchCount) -> dict[str, Any]:
    fields = _dated(encode_record(count))
    work = fields.pop("work")
    return {**fields, **work}


def _job(row: JobRow) -> dict[str, Any]:
    fields = encode_record(row)
    del fields["payload"], fields["result"], fields["scheduling"], fields["deferred"]
    return {
        **_dated(fields),
        "priority": row.scheduling.priority,
        "window": row.scheduling.window or None,
        **{key: row.asked.get(key) for key in ("study", "files", "output", "model")},
        "passages": {name: [*map(iso_time, interval)] for name, interval in row.transfers.items()},
        "reason": row.reason and flagged(row.reason),
        "result": row.result.get("row", {}),
    }


def outlook(jobs: "Queue", left: Sequence[OpenJobs] | None) -> Iterator[str]:
    """Yield sentences for below the table; left: a batch's open jobs, or None for all batches."""
    if left is None:
        yield from map(_at_work, jobs.jobs("", ["running"]))
        for row in jobs.deferred():
            yield f"Waiting: {row.job} {printable(row.study)}: {printable(flagged(row.deferred))}"
        left = jobs.open_jobs()
    if later := list(waiting_jobs(left)):
        yield f"Later: {', '.join(later)}"
    if jobs.is_paused():
        yield PAUSED.capitalize()
    if left and not jobs.workers():
        yield "No worker is running; start 'cuda-cyclegan worker' to run the jobs"


def _at_work(row: JobRow) -> str:
    since = f" since {moment(row.started)}" if row.started else ""
    who = worker_name(row.worker) if row.worker else "a worker"
    return f"Running: {row.job} {printable(row.study)}, on {who}{since}"


REFRESH_SECONDS = 1.0


def watch(jobs: "Queue", batch: str | None) -> None:
    """Show until no job is open; on a terminal in place, elsewhere as lines when they change."""
    if columns_of(sys.stdout) is None:
        _as_lines(jobs, batch)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from .progress_bars import ECHO

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
                    last = list(queue_lines(jobs, _rows(jobs, batch), console.width))
                    return
                time.sleep(REFRESH_SECONDS)
    finally:
        for line in last:
            print_line(line, sys.stdout)


def fitting(jobs: "Queue", batch: str | None, height: int, columns: int | None = None) -> list[str]:
    """Return lines that fit: all, or running jobs and first failures, or newest batches."""
    rows = _rows(jobs, batch)
    lines = list(queue_lines(jobs, rows, columns))
    if len(lines) > height and rows is not None:
        return list(queue_lines(jobs, rows, columns, listed=("running",)))[:height]
    return lines[-height:]


def _as_lines(jobs: "Queue", batch: str | None) -> None:
    printed: list[str] = []
    while True:
        lines = list(queue_lines(jobs, _rows(jobs, batch), None))
        for line in lines:
            if line not in printed:
                print_line(line, sys.stdout)
        printed = lines
        if not _is_open(jobs, batch):
            return
        time.sleep(REFRESH_SECONDS)


def _rows(jobs: "Queue", batch: str | None) -> "list[JobRow] | None":
    return None if batch is None else jobs.jobs(batch)


def _is_open(jobs: "Queue", batch: str | None) -> bool:
    return any(
        count.jobs.get(state)
        for count in jobs.batches()
        if batch in (None, count.batch)
        for state in OPEN
    )
