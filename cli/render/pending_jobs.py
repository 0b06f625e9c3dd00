"""Lines about jobs that wait; workers print them, so nothing here loads rich."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ...pipelines.jobs.queue.schedule import StartWindow
from .text import counted, printable

if TYPE_CHECKING:
    from ...pipelines.jobs.queue.job import JobRow, OpenJobs

PAUSED = "paused: no job starts until 'jobs resume'"


def remaining(left: Sequence["OpenJobs"], *, is_paused: bool) -> Iterator[str]:
    """Describe pending jobs and what they wait for: "60 jobs wait until 2026-11-22 23:00"."""
    if is_paused:
        yield PAUSED
    if running := sum(kind.count for kind in left if kind.state == "running"):
        yield f"{counted(running, 'job')} running"
    if free := sum(kind.count for kind in left if kind.state == "queued" and is_open(kind.window)):
        yield f"{counted(free, 'job')} queued"
    yield from waiting_jobs(left)


def waiting_jobs(left: Sequence["OpenJobs"]) -> Iterator[str]:
    """Count jobs that may not start yet, by closed window and earliest start."""
    windows, moments = Counter[str](), Counter[str]()
    for kind in left:
        if kind.until is not None:
            moments[moment(earliest_start(kind.until, kind.window))] += kind.count
        elif kind.state == "queued" and not is_open(kind.window):
            windows[kind.window] += kind.count
    for window, count in sorted(windows.items()):
        yield f"{counted(count, 'job waits', 'jobs wait')} for the window {window}"
    for until, count in sorted(moments.items()):
        yield f"{counted(count, 'job waits', 'jobs wait')} until {until}"
    if held := sum(kind.count for kind in left if kind.is_held):
        yield f"{counted(held, 'job')} held until 'jobs run-now' or 'jobs move --at'"


def is_open(window: str) -> bool:
    """Return whether jobs of a window, "" for any time, may start now."""
    return not window or StartWindow.parse(window).is_open(datetime.now())


def earliest_start(not_before: float, window: str) -> float:
    """Return when jobs may start that wait for a time, and for a window after it."""
    start = datetime.fromtimestamp(not_before)
    return (StartWindow.parse(window).first_open(start) if window else start).timestamp()


def worker_name(name: str) -> str:
    """Return a worker's readable name: `host:user:mark:cuda:0` is cuda:0 of user@host."""
    match name.split(":", 3):
        case [host, user, _, device]:
            return printable(f"{device} of {user}@{host}")
        case _:
            return printable(name)


def moment(when: float) -> str:
    """Format a time as local date and minute."""
    return f"{datetime.fromtimestamp(when):%Y-%m-%d %H:%M}"


def state_text(row: "JobRow") -> str:
    """Return a job's state, with when it may start or who has it."""
    window = row.scheduling.window
    match row.state:
        case "waiting" if row.not_before and window:
            start = moment(earliest_start(row.not_before, window))
            return f"may start {start} (window {window}, not before {moment(row.not_before)})"
        case "waiting" if row.not_before:
            return f"waiting until {moment(row.not_before)}"
        case "waiting":
            return "held"
        case "queued" if not is_open(window):
            return f"waiting for the window {window}"
        case "queued" if window:
            return f"queued, window {window}"
        case "running" if row.worker:
            return f"running on {worker_name(row.worker)}"
        case "done" if "send" in row.transfers:
            return "sent"
        case "done" if row.was_up_to_date:
            return "kept"
        case state:
            return state
