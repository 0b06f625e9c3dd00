"""What the queue and the node tell each other: what became of jobs, and which results were sent."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce

from ..jobs.queue.queue import Queue, QueueLink
from ..jobs.queue.state import OPEN, Interval, JobRow
from .events import Failed, NodeEvent, SeriesTranslated
from .ledger import Ledger, SeriesRecord, StudyRecord

LOOK_SECONDS, SELDOM_SECONDS = 1.0, 10.0
"""Between two looks into the queue: while jobs of the node are in it, and while there are only
failed ones, which somebody may have queued again."""


class QueueExchange:
    """Keeps the ledger and the queue in step, as far as the jobs in both go."""

    def __init__(
        self,
        ledger: Ledger,
        link: QueueLink,
        tell: Callable[[NodeEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._ledger, self._link, self._tell, self._clock = ledger, link, tell, clock
        self._looked = 0.0
        self._lock = threading.Lock()
        self._sent = {
            one.job: (one.begun, one.sent)
            for record in ledger.present()
            for one in record.series
            if one.sent
        }

    def note(self) -> None:
        """Look into the queue, if it is time to. Raises QueueError."""
        states = {one.state for record in self._ledger.present() for one in record.series}
        pause = LOOK_SECONDS if "queued" in states else SELDOM_SECONDS
        is_early = 0 <= self._clock() - self._looked < pause  # below 0 it was set back
        if states & {"queued", "failed"} and not is_early:
            note_outcomes(self._ledger, self._link.queue(), self._tell, self._clock)
            self._looked = self._clock()

    def sent(self, job: str, interval: Interval) -> None:
        """Remember from when to when a job's result was sent; any thread may call."""
        with self._lock:
            self._sent[job] = interval

    def tell_sent(self) -> None:
        """Tell the queue; after a restart all of it again, for some may be new.

        Raises QueueError.
        """
        for job, interval in list(self._sent.items()):
            self._link.queue().note_sent(job, interval)
            with self._lock:
                del self._sent[job]


def note_outcomes(
    ledger: Ledger, queue: Queue, tell: Callable[[NodeEvent], None], clock: Callable[[], float]
) -> None:
    """Record each job that ended, why one waits, and each that somebody had queued again.

    Raises QueueError.
    """
    still_open = queue.open_keys()
    put_off = {row.job: row.put_off for row in queue.put_off()}
    changed: dict[str, list[SeriesRecord]] = defaultdict(list)
    for record in ledger.present():
        for series in record.series:
            after = _noted(_outcome(series, still_open, queue, clock), put_off)
            if after is not series:
                changed[record.study].append(after)
            if after.state != series.state:
                _tell_of(f"{record.study}/{after.place}", after, tell)
    if changed:
        with ledger.alone():  # meanwhile other series of these studies may have been sent
            ledger.put(*(_with_all(ledger, study, series) for study, series in changed.items()))


def _with_all(ledger: Ledger, study: str, series: Iterable[SeriesRecord]) -> StudyRecord:
    """A study as it is now, with some of its series changed."""
    record = ledger.study(study)
    assert record is not None
    return reduce(StudyRecord.with_series, series, record)


def _noted(series: SeriesRecord, put_off: Mapping[str, str]) -> SeriesRecord:
    """With why its job waits, if it does; kept while the job is tried again."""
    why = put_off.get(series.job, "")
    if series.state != "queued" or why in ("", series.reason):
        return series
    return replace(series, reason=why)


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
        return replace(series, state="sending", reason="", done=clock())
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
