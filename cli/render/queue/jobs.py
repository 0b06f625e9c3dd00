"""Batches and jobs as tables and as JSON, whose fields are a promise to scripts."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ....pipelines.jobs.queue.job import STATES, BatchCount, JobRow, JobState
from ....pipelines.timestamps import iso_time
from ..terminal.settings import flagged
from ..terminal.tables import Row, TextTable
from ..terminal.text import counted, printable, seconds
from .outlook import moment, outlook, worker_name

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.queue import Queue


def lines(
    jobs: "Queue",
    rows: Sequence[JobRow] | None,
    columns: int | None,
    listed: Collection[JobState] = STATES,
) -> Iterator[str]:
    """What `jobs` prints; columns: width of the terminal, or None for no limit.

    rows: a batch's jobs, or None for all batches. listed: states in which a batch's jobs have a
    line of their own.
    """
    if rows is None:
        yield from batch_lines(jobs.batches(), columns)
    else:
        yield from job_lines(rows, columns, listed)
    yield from outlook(jobs, rows)


def batch_lines(batches: Sequence[BatchCount], columns: int | None) -> Iterator[str]:
    """One line a batch; states in which no job is have no column."""
    held = {state for batch in batches for state in batch.jobs}
    shown: list[JobState] = [state for state in STATES if state in held]
    table = TextTable(
        Row("batch", [*shown, "submitted"]),
        [
            Row(
                f"{batch.batch} {printable(batch.name)}".rstrip(),
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


def job_lines(
    rows: Sequence[JobRow], columns: int | None, listed: Collection[JobState] = STATES
) -> Iterator[str]:
    """One line a job, then how many are in which state, then the reasons of failures."""
    table = TextTable(
        Row("study", ["job", "tries", "seconds", "state"]),
        [
            Row(
                printable(row.study),
                [row.number, str(row.tries or ""), _seconds(row), _state(row)],
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


def _state(row: JobRow) -> str:
    match row.state:
        case "waiting" if row.not_before:
            return f"waiting until {moment(row.not_before)}"
        case "queued" if row.scheduling.window:
            return f"queued for {row.scheduling.window}"
        case "running" if row.worker:
            return f"running on {worker_name(row.worker)}"
        case "done" if "send" in row.passages:
            return "sent"
        case "done" if row.was_up_to_date:
            return "kept"
        case state:
            return state


def _seconds(row: JobRow) -> str:
    return seconds(row.seconds) if row.seconds else ""


SCHEMA = "cuda-cyclegan/jobs/2"
"""Raised when a field changes its meaning or goes: 1 had times as seconds since 1970."""
_TIMES = ("submitted", "not_before", "started", "ended")


def text(jobs: "Queue", rows: Sequence[JobRow] | None) -> str:
    """The document, in ASCII. rows: a batch's jobs, or None for all batches."""
    found = (
        {"batches": [_dated(asdict(count)) for count in jobs.batches()]}
        if rows is None
        else {"jobs": [_job(row) for row in rows]}
    )
    state = {"schema": SCHEMA, "paused": jobs.is_paused(), "workers": jobs.workers(), **found}
    return json.dumps(state, indent=2)


def _dated(fields: dict[str, Any]) -> dict[str, Any]:
    """The same with its times as ISO 8601."""
    times = {name: fields[name] for name in _TIMES if fields.get(name) is not None}
    return {**fields, **{name: iso_time(time) for name, time in times.items()}}


def _job(row: JobRow) -> dict[str, Any]:
    fields = asdict(row)
    del fields["payload"], fields["result"], fields["scheduling"], fields["deferred"]
    return {
        **_dated(fields),
        "priority": row.scheduling.priority,
        "window": row.scheduling.window or None,
        **{key: row.asked.get(key) for key in ("study", "files", "output", "model")},
        "passages": {name: [*map(iso_time, interval)] for name, interval in row.passages.items()},
        "reason": row.reason and flagged(row.reason),
        "result": row.result.get("row", {}),
    }
