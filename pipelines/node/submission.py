"""Submission of complete studies as jobs, and the outcomes of these jobs.

A study that is examined twice becomes the same job.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from pathlib import Path, PurePosixPath

from ...engine.errors import EngineError
from ...io.channels import other_results
from ..errors import PipelineError
from ..jobs.queue.job import OPEN, Interval, StudyJob
from ..jobs.queue.queue import Queue, QueueLink
from ..jobs.submission import Submission, jobs_of
from ..jobs.summary import suspicion_of
from .context import NodeContext
from .events import Failed, Held, LeftOut, NodeEvent, Queued, SeriesTranslated
from .inbox import Inbox
from .reception import IncomingStudies
from .records import Gap, SeriesRecord, StudyName, StudyRecord, digest_of, output_of
from .routes import Route

LOOK_SECONDS, SELDOM_SECONDS = 1.0, 10.0
"""Seconds between two reads of the queue while it has jobs of the node, and while there are only
failed ones, which a user may queue again."""


@dataclass(frozen=True, slots=True)
class _Examined:
    """Study at the time of its examination.

    objects: names of its files. since: time of the last change. before: earlier record. gap: what
    it lacks.
    """

    study: StudyName
    objects: tuple[str, ...]
    since: float
    before: StudyRecord | None
    gap: Gap

    @property
    def is_as_before(self) -> bool:
        """Whether it is unchanged; a repeated transfer that broke off is no change."""
        if self.before is None or self.before.objects != digest_of(self.objects):
            return False
        known = self.before.gap
        is_completed = known.broke_off and not self.gap.broke_off
        return self.gap.refused == known.refused and not is_completed

    @property
    def remark(self) -> str:
        """Note on an incomplete source in its results."""
        return self.gap.remark(len(self.objects))


class Submitter:
    """Submitter of studies as jobs."""

    def __init__(self, node: NodeContext, inbox: Inbox, incoming: IncomingStudies) -> None:
        self._node, self._inbox, self._incoming = node, inbox, incoming
        self._store = node.store

    def due(self) -> dict[StudyName, float]:
        """Return held studies whose hold is over, with the time at which it began."""
        now = self._node.clock()
        held = {StudyName.parse(each.study): each for each in self._store.present() if each.held}
        return {
            study: record.held
            for study, record in held.items()
            # `now` is before `held` if the clock was set back.
            if not (record.held <= now < record.until) or self._inbox.is_released(study)
            if not self._incoming.is_busy(study)
        }

    def submit(self, route: Route, studies: Mapping[StudyName, float], queue: Queue) -> None:
        """Submit what is new in studies of one route, and record all of them.

        Parts that were omitted before may be accepted now, if the route has changed. Raises
        QueueError, EngineError, SettingsError or OSError; then some are not recorded.
        """
        by_day: dict[str, list[_Examined]] = defaultdict(list)
        for study, since in studies.items():
            objects, gap = self._inbox.objects(study), self._inbox.gap(study)
            looked = _Examined(study, objects, since, self._store.study(str(study)), gap)
            before = looked.before
            if not objects:
                continue
            if not before or not looked.is_as_before or before.left_out or before.held:
                if held := self._held(route, looked):
                    self._hold(looked, *held)
                else:
                    by_day[study.day].append(looked)
            elif before.emptied:
                # Received again after its removal, without a change.
                self._store.change(before.study, lambda now: replace(now, emptied=0.0))
        for day, looked in by_day.items():
            self._submit_all(route, output_of(self._node.results, route.title, day), looked, queue)

    def _held(self, route: Route, looked: _Examined) -> tuple[float, float] | None:
        """Return start and end of the hold of an incomplete study, or None for no hold."""
        gap, before, now = looked.gap, looked.before, self._node.clock()
        takes_part = route.request.options.allow_uneven and not gap.broke_off
        if not gap or takes_part or self._inbox.is_released(looked.study):
            return None
        since = min(looked.since, now)
        if before and looked.is_as_before:
            if not before.held:
                return None  # its hold has ended before
            since = before.held if before.held <= now else now
        until = since + route.hold
        return (since, until) if now < until else None

    def _hold(self, looked: _Examined, since: float, until: float) -> None:
        with self._store.alone():
            record = self._record(looked, (), self._node.clock(), ())
            record = replace(record, held=since, until=until)
            if not self._is_news(record):
                return
            self._store.put(record)
        self._node.emit(Held(record.study, looked.gap.figures(record.images), until))

    def _submit_all(
        self, route: Route, output: Path, looked: Sequence[_Examined], queue: Queue
    ) -> None:
        """Submit studies together; if one cannot be examined, submit the others without it."""
        try:
            self._submit_together(route, output, looked, queue)
        except (PipelineError, EngineError, OSError):
            raise
        except Exception as error:
            if len(looked) > 1:
                for one in looked:
                    self._submit_all(route, output, [one], queue)
                return
            reason = f"it cannot be examined ({type(error).__name__})"
            with self._store.alone():
                record = self._record(looked[0], (reason,), self._node.clock(), ())
                self._store.put(record)
            self._node.emit(LeftOut(record.study, reason))

    def _submit_together(
        self, route: Route, output: Path, looked: Sequence[_Examined], queue: Queue
    ) -> None:
        inputs = tuple(self._inbox.folder(one.study) for one in looked)
        found = jobs_of(replace(route.request, inputs=inputs, output=output))
        series = {one.study: list(_new_series(one, found)) for one in looked}
        jobs = [job for each in series.values() for job, _ in each]
        night = datetime.fromtimestamp(self._node.clock())
        submitted = queue.submit(
            jobs,
            route.scheduling,
            name=route.batch.name(night) or f"node {route.title}",
            route=route.title,
            joins=f"node {route.title} {route.batch.period(night)}",
            established=found.established,
            reference=found.reference,
            received={
                record.key: record.received for each in series.values() for _, record in each
            },
        )
        now = self._node.clock()
        with self._store.alone():  # earlier series may have been sent meanwhile
            records = [
                self._record(
                    one,
                    _left_out(one.study, found, is_alone=len(looked) == 1),
                    now,
                    [
                        replace(record, job=submitted.jobs[record.key], queued=now)
                        for _, record in series[one.study]
                    ],
                )
                for one in looked
            ]
            news = [
                (one, record)
                for one, record in zip(looked, records, strict=True)
                if self._is_news(record)
            ]
            self._store.put(*(record for _, record in news))
        for one, record in news:
            self._emit_news(one, record)
            for job in _superseded(one.before, record):
                queue.cancel(job)

    def _is_news(self, record: StudyRecord) -> bool:
        """Whether a record differs from the stored one by more than the time of examination."""
        known = self._store.study(record.study)
        return known is None or replace(record, looked=known.looked) != known

    def _record(
        self, looked: _Examined, left_out: tuple[str, ...], now: float, new: Sequence[SeriesRecord]
    ) -> StudyRecord:
        """Return the current record of a study with new series."""
        before = self._store.study(str(looked.study))
        labels = {one.label for one in new}
        kept = [
            one
            for one in (before.series if before else ())
            if one.label not in labels or one.state == "sent" or self._is_begun(looked.study, one)
        ]
        return StudyRecord(
            study=str(looked.study),
            objects=digest_of(looked.objects),
            images=len(looked.objects),
            arrived=before.arrived if before and not before.emptied else looked.since,
            looked=now,
            rounds=(before.rounds if before else 0) + bool(new),
            series=(*kept, *new),
            left_out=left_out,
            refused=looked.gap.refused,
            broke_off=looked.gap.broke_off,
        )

    def _is_begun(self, study: StudyName, series: SeriesRecord) -> bool:
        """Whether part of a result was sent, so that the rest must follow."""
        return bool(self._store.confirmed(f"{study}/{series.place}"))

    def _emit_news(self, looked: _Examined, record: StudyRecord) -> None:
        earlier = {one.label: one.images for one in (looked.before.series if looked.before else ())}
        reported = looked.before.rounds if looked.before else 0
        for one in record.series:
            if one.round == record.rounds > reported:
                before = earlier.get(one.label, 0)
                name = f"{record.study}/{one.place}"
                self._node.emit(Queued(name, one.job, one.images, before, one.remark))
        if looked.before and looked.before.emptied and looked.before.objects != record.objects:
            self._node.emit(LeftOut(record.study, _EMPTIED))
        reported_before = looked.before.left_out if looked.before else ()
        for reason in record.left_out:
            if reason not in reported_before:
                self._node.emit(LeftOut(record.study, reason))


def _superseded(before: StudyRecord | None, now: StudyRecord) -> set[str]:
    """Return jobs to cancel because their series have changed."""
    waiting = {one.job for one in (before.series if before else ()) if one.state == "queued"}
    return waiting - {one.job for one in now.series}


_EMPTIED = (
    "it was sent and removed before, so only later images are here; if a series has grown, send "
    "all of it again"
)


def _new_series(looked: _Examined, found: Submission) -> Iterator[tuple[StudyJob, SeriesRecord]]:
    """Yield jobs of a study that were not submitted before, with their records."""
    rounds = looked.before.rounds + 1 if looked.before else 1
    remarks = {looked.remark} if looked.gap.refused else {looked.remark, ""}
    known = {
        (one.label, one.files)
        for one in (looked.before.series if looked.before else ())
        if one.remark in remarks
    }
    for job in found.jobs:
        if Path(job.files[0]).parent.name != looked.study.name:
            continue
        name = PurePosixPath(job.study)
        label = name.name
        files = digest_of(Path(file).name for file in job.files)
        if (label, files) in known:
            continue
        place = f"{looked.study.name}/{rounds}/{label}"
        job = replace(job, study=place, incomplete=looked.remark)
        yield (
            job,
            SeriesRecord(
                label,
                rounds,
                files,
                len(job.files),
                "",
                job.key(),
                received=_received(job),
                others=tuple(other.name for other in other_results(name, found.outputs)),
                remark=looked.remark,
                model=job.model_sha256,
            ),
        )


def _received(job: StudyJob) -> tuple[float, float]:
    """Return the times at which its first and its last object were written."""
    written = [Path(file).stat().st_mtime for file in job.files]
    return min(written), max(written)


def _left_out(study: StudyName, found: Submission, *, is_alone: bool) -> tuple[str, ...]:
    """Return why parts of a study become no job. is_alone: whether names omit the study's."""
    refused = [
        f"{PurePosixPath(name).name}: {reason}"
        for name, reason in found.refused.items()
        if is_alone or PurePosixPath(name).parts[0] == study.name
    ]
    places = [(skip, {skip.path.name, skip.path.parent.name}) for skip in found.skipped]
    return (*refused, *(skip.reason for skip, names in places if study.name in names))


class QueueSync:
    """Synchronisation of job states between the queue and the store."""

    def __init__(self, node: NodeContext, link: QueueLink) -> None:
        self._node, self._store, self._link = node, node.store, link
        self._looked = 0.0
        self._lock = threading.Lock()
        self._sent = {
            one.job: (one.begun, one.sent)
            for record in self._store.present()
            for one in record.series
            if one.sent and not one.rejects
        }

    def note(self) -> None:
        """Record job outcomes, unless the queue was read just now. Raises QueueError."""
        states = {one.state for record in self._store.present() for one in record.series}
        pause = LOOK_SECONDS if "queued" in states else SELDOM_SECONDS
        since = self._node.clock() - self._looked
        is_early = 0 <= since < pause  # < 0 after the clock was set back
        if states & {"queued", "failed"} and not is_early:
            self._note_outcomes(self._link.queue())
            self._looked = self._node.clock()

    def sent(self, job: str, interval: Interval) -> None:
        """Remember from when to when a job's result was sent; thread-safe."""
        with self._lock:
            self._sent[job] = interval

    def report_sent(self) -> None:
        """Write these times to the queue, after a restart all of them again. Raises QueueError."""
        for job, interval in list(self._sent.items()):
            self._link.queue().record_sent(job, interval)
            with self._lock:
                del self._sent[job]

    def _note_outcomes(self, queue: Queue) -> None:
        """Record jobs that ended, reasons for waiting, and jobs queued again by a user."""
        still_open = queue.open_keys()
        deferred = {row.job: row.deferred for row in queue.deferred()}
        now = self._node.clock()
        changed: dict[str, list[SeriesRecord]] = defaultdict(list)
        ended: list[NodeEvent] = []
        for record in self._store.present():
            for series in record.series:
                after = _noted(_outcome(series, still_open, queue, now), deferred)
                if after is not series:
                    changed[record.study].append(after)
                if after.state != series.state:
                    ended += _events(f"{record.study}/{after.place}", after, queue)
        if changed:
            with self._store.alone():  # other series of these studies may have been sent meanwhile
                self._store.put(*(self._with_all(*each) for each in changed.items()))
        for event in ended:
            self._node.emit(event)

    def _with_all(self, study: str, series: Iterable[SeriesRecord]) -> StudyRecord:
        """Return the current record of a study with some series changed."""
        record = self._store.study(study)
        assert record is not None
        return reduce(StudyRecord.with_series, series, record)


def _events(name: str, series: SeriesRecord, queue: Queue) -> Iterator[NodeEvent]:
    """Yield the event of a job that ended, with a judgement of its result."""
    if series.state == "sending":
        [row] = queue.jobs(series.job) or [None]
        yield SeriesTranslated(name, suspicion_of(row).note if row else "")
    elif series.state == "failed":
        yield Failed(name, series.reason)


def _noted(series: SeriesRecord, deferred: Mapping[str, str]) -> SeriesRecord:
    """Add why the job waits, if it does; the reason stays while the job is retried."""
    why = deferred.get(series.job, "")
    if series.state != "queued" or why in ("", series.reason):
        return series
    return replace(series, reason=why)


def _outcome(
    series: SeriesRecord, still_open: Mapping[str, str], queue: Queue, now: float
) -> SeriesRecord:
    """Return the updated series, or the same object if nothing changed."""
    if series.state == "failed" and series.key in still_open:
        return replace(series, state="queued", reason="", job=still_open[series.key])
    if series.state != "queued" or series.key in still_open:
        return series
    [row] = queue.jobs(series.job) or [None]
    if row is None:
        reason = "its job is no longer in the queue"
        return replace(series, state="failed", reason=reason, done=now)
    if row.state in OPEN:
        return series
    if row.state == "done":
        return replace(series, state="sending", reason="", done=now)
    reason = row.reason or "it was cancelled"
    return replace(series, state="failed", reason=reason, done=now)
