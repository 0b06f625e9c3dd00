"""What became of the jobs: results that are to be sent, and failures."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..jobs.queue.queue import Queue
from ..jobs.queue.state import OPEN, JobRow
from .events import Failed, NodeEvent, SeriesTranslated
from .ledger import Ledger, SeriesRecord, StudyRecord


def note_outcomes(
    ledger: Ledger, queue: Queue, tell: Callable[[NodeEvent], None], clock: Callable[[], float]
) -> None:
    """Record each job that ended, and each that somebody had queued again.

    Raises QueueError.
    """
    still_open = queue.open_keys()
    changed: list[StudyRecord] = []
    for record in ledger.present():
        now = record
        for series in record.series:
            after = _outcome(series, still_open, queue, clock)
            if after is not series:
                now = now.with_series(after)
                _tell_of(f"{record.study}/{after.place}", after, tell)
        if now is not record:
            changed.append(now)
    if changed:
        ledger.put(*changed)


def _outcome(
    series: SeriesRecord,
    still_open: Mapping[str, str],
    queue: Queue,
    clock: Callable[[], float],
) -> SeriesRecord:
    """The series as it stands now; the same one if nothing is new."""
    if series.state == "failed" and series.key in still_open:
        return replace(series, state="queued", reason="", job=still_open[series.key])
    if series.state != "queued" or series.key in still_open:
        return series
    [row] = queue.jobs(series.job) or [None]
    if row is None:
        reason = "the queue does not know its job any more"
        return replace(series, state="failed", reason=reason, done=clock())
    if row.state in OPEN:
        return series
    if row.state == "done":
        return replace(series, state="sending", done=clock())
    return replace(series, state="failed", reason=_reason(row), done=clock())


def _reason(row: JobRow) -> str:
    return row.reason or "it was cancelled"


def _tell_of(name: str, series: SeriesRecord, tell: Callable[[NodeEvent], None]) -> None:
    match series.state:
        case "sending":
            tell(SeriesTranslated(name))
        case "failed":
            tell(Failed(name, series.reason))
        case _:
            pass
