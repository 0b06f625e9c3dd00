"""What of the queue is to come: who works, what waits until when, and whether anybody will."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ....pipelines.jobs.queue.job import OPEN, JobRow, OpenJobs
from ..terminal.settings import flagged
from ..terminal.text import counted, printable

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.queue import Queue

PAUSED = "paused: no job starts until 'jobs resume'"


def outlook(jobs: "Queue", rows: Sequence[JobRow] | None) -> Iterator[str]:
    """Sentences for below the table; rows: a batch's jobs, or None for all batches."""
    if rows is None:
        yield from map(_at_work, jobs.jobs("", ["running"]))
        yield from map(_put_off, jobs.deferred())
    left = _open(rows) if rows is not None else jobs.open_jobs()
    if later := list(_later(left)):
        yield f"Later: {', '.join(later)}"
    if jobs.is_paused():
        yield PAUSED.capitalize()
    if left and not jobs.workers():
        yield "No worker is running; 'cuda-cyclegan worker' does the jobs"


def remaining(left: Sequence[OpenJobs], *, is_paused: bool) -> Iterator[str]:
    """What has not ended, and what it waits for: "60 jobs wait until 2026-11-22 23:00"."""
    if is_paused:
        yield PAUSED
    if running := sum(kind.count for kind in left if kind.state == "running"):
        yield f"{counted(running, 'job')} at work"
    if free := sum(kind.count for kind in left if kind.state == "queued" and not kind.window):
        yield f"{counted(free, 'job')} queued"
    yield from _later(left)


def _later(left: Sequence[OpenJobs]) -> Iterator[str]:
    """Jobs that may not start at any time."""
    windows, moments = Counter[str](), Counter[str]()
    for kind in left:
        if kind.until is not None:
            moments[moment(kind.until)] += kind.count
        elif kind.state == "queued" and kind.window:
            windows[kind.window] += kind.count
    for window, count in sorted(windows.items()):
        yield f"{counted(count, 'job')} queued for {window}"
    for until, count in sorted(moments.items()):
        yield f"{counted(count, 'job waits', 'jobs wait')} until {until}"


def worker_name(name: str) -> str:
    """A worker's name for people: `host:user:mark:cuda:0` is cuda:0 of user@host."""
    match name.split(":", 3):
        case [host, user, _, device]:
            return printable(f"{device} of {user}@{host}")
        case _:
            return printable(name)


def moment(when: float) -> str:
    """Local date and minute."""
    return f"{datetime.fromtimestamp(when):%Y-%m-%d %H:%M}"


def _at_work(row: JobRow) -> str:
    since = f" since {moment(row.started)}" if row.started else ""
    who = worker_name(row.worker) if row.worker else "a worker"
    return f"At work: {row.job} {printable(row.study)}, on {who}{since}"


def _put_off(row: JobRow) -> str:
    return f"Waiting: {row.job} {printable(row.study)}: {printable(flagged(row.deferred))}"


def _open(rows: Sequence[JobRow]) -> list[OpenJobs]:
    return [
        OpenJobs(
            1, row.state, row.scheduling.window, row.not_before if row.state == "waiting" else None
        )
        for row in rows
        if row.state in OPEN
    ]
