"""Complete studies to jobs of the queue; the same study looked at twice is one and the same job."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ...engine.errors import EngineError
from ...io.channels import other_results
from ..errors import PipelineError
from ..jobs.queue.job import StudyJob
from ..jobs.queue.queue import Queue
from ..jobs.submission import Submission, jobs_of
from .arriving import Arriving
from .events import Held, LeftOut, NodeEvent, Queued
from .gaps import Gap
from .inbox import Inbox
from .ledger import Ledger, SeriesRecord, StudyRecord
from .routes import Route
from .study_name import StudyName


@dataclass(frozen=True, slots=True)
class _Looked:
    """A study when its objects were looked at.

    objects: their names. since: when the last one came. before: what was known of it. gap: what it
    lacks.
    """

    study: StudyName
    objects: tuple[str, ...]
    since: float
    before: StudyRecord | None
    gap: Gap

    @property
    def is_as_before(self) -> bool:
        """Whether nothing of it has changed: to send it again and break off is no news."""
        if self.before is None or self.before.objects != digest_of(self.objects):
            return False
        known = self.before.gap
        is_mended = known.broke_off and not self.gap.broke_off
        return self.gap.refused == known.refused and not is_mended

    @property
    def remark(self) -> str:
        """What results say of it as a source."""
        return self.gap.remark(len(self.objects))


class Submitter:
    """Makes jobs of studies. results: the folder of all results, one below it a route and day."""

    def __init__(
        self,
        inbox: Inbox,
        ledger: Ledger,
        arriving: Arriving,
        results: Path,
        tell: Callable[[NodeEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._inbox, self._ledger, self._arriving = inbox, ledger, arriving
        self._results, self._tell, self._clock = results, tell, clock

    def due(self) -> dict[StudyName, float]:
        """Held studies that wait no longer, with the moment since when they were held."""
        now = self._clock()
        held = {StudyName.parse(each.study): each for each in self._ledger.present() if each.held}
        return {
            study: record.held
            for study, record in held.items()
            # Before `held` if the clock was set back.
            if not (record.held <= now < record.until) or self._inbox.is_released(study)
            if not self._arriving.is_busy(study)
        }

    def submit(self, route: Route, studies: Mapping[StudyName, float], queue: Queue) -> None:
        """Queue what is new in studies of one route; all of them are on record then.

        What was left out of a study may be taken by now, as its route may say other things.
        Raises QueueError, EngineError, SettingsError or OSError, and then some are not.
        """
        by_day: dict[str, list[_Looked]] = defaultdict(list)
        for study, since in studies.items():
            objects, gap = self._inbox.objects(study), self._inbox.gap(study)
            looked = _Looked(study, objects, since, self._ledger.study(str(study)), gap)
            before = looked.before
            if not objects:
                continue
            if not before or not looked.is_as_before or before.left_out or before.held:
                if held := self._held(route, looked):
                    self._hold(looked, *held)
                else:
                    by_day[study.day].append(looked)
            elif before.emptied:
                # It came again, and is known.
                self._ledger.change(before.study, lambda now: replace(now, emptied=0.0))
        for day, looked in by_day.items():
            self._submit_all(route, output_of(self._results, route.title, day), looked, queue)

    def _held(self, route: Route, looked: _Looked) -> tuple[float, float] | None:
        """Since when and until when a study waits for what it lacks; None if it does not."""
        gap, before, now = looked.gap, looked.before, self._clock()
        takes_part = route.request.options.allow_uneven and not gap.broke_off
        if not gap or takes_part or self._inbox.is_released(looked.study):
            return None
        since = min(looked.since, now)
        if before and looked.is_as_before:
            if not before.held:
                return None  # it was let go like this
            since = before.held if before.held <= now else now
        until = since + route.hold
        return (since, until) if now < until else None

    def _hold(self, looked: _Looked, since: float, until: float) -> None:
        with self._ledger.alone():
            record = self._record(looked, (), self._clock(), ())
            record = replace(record, held=since, until=until)
            if not self._is_news(record):
                return
            self._ledger.put(record)
        self._tell(Held(record.study, looked.gap.figures(record.images), until))

    def _submit_all(
        self, route: Route, output: Path, looked: Sequence[_Looked], queue: Queue
    ) -> None:
        """If one of the studies is such that nothing can be made of it, the others go on."""
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
            with self._ledger.alone():
                record = self._record(looked[0], (reason,), self._clock(), ())
                self._ledger.put(record)
            self._tell(LeftOut(record.study, reason))

    def _submit_together(
        self, route: Route, output: Path, looked: Sequence[_Looked], queue: Queue
    ) -> None:
        inputs = tuple(self._inbox.folder(one.study) for one in looked)
        found = jobs_of(replace(route.request, inputs=inputs, output=output))
        series = {one.study: list(_new_series(one, found)) for one in looked}
        jobs = [job for each in series.values() for job, _ in each]
        submitted = queue.submit(
            jobs,
            route.scheduling,
            name=f"node {route.title}",
            established=found.established,
            received={
                record.key: record.received for each in series.values() for _, record in each
            },
        )
        now = self._clock()
        with self._ledger.alone():  # meanwhile series of before may have been sent
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
            self._ledger.put(*(record for _, record in news))
        for one, record in news:
            self._tell_of(one, record)
            for job in _superseded(one.before, record):
                queue.cancel(job)

    def _is_news(self, record: StudyRecord) -> bool:
        """Whether a record differs from what is known by more than when it was looked at."""
        known = self._ledger.study(record.study)
        return known is None or replace(record, looked=known.looked) != known

    def _record(
        self, looked: _Looked, left_out: tuple[str, ...], now: float, new: Sequence[SeriesRecord]
    ) -> StudyRecord:
        """The record of a study as it is now, with new series."""
        before = self._ledger.study(str(looked.study))
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
        """Whether a part of a result is at its destination, so that the rest must follow."""
        return bool(self._ledger.confirmed(f"{study}/{series.place}"))

    def _tell_of(self, looked: _Looked, record: StudyRecord) -> None:
        earlier = {one.label: one.images for one in (looked.before.series if looked.before else ())}
        told = looked.before.rounds if looked.before else 0
        for one in record.series:
            if one.round == record.rounds > told:
                before = earlier.get(one.label, 0)
                name = f"{record.study}/{one.place}"
                self._tell(Queued(name, one.job, one.images, before, one.remark))
        if looked.before and looked.before.emptied and looked.before.objects != record.objects:
            self._tell(LeftOut(record.study, _EMPTIED))
        told_before = looked.before.left_out if looked.before else ()
        for reason in record.left_out:
            if reason not in told_before:
                self._tell(LeftOut(record.study, reason))


def _superseded(before: StudyRecord | None, now: StudyRecord) -> set[str]:
    """Jobs whose results nobody waits for any more, as their series have changed."""
    waiting = {one.job for one in (before.series if before else ()) if one.state == "queued"}
    return waiting - {one.job for one in now.series}


_EMPTIED = (
    "it was sent on and removed before, so only what came since is here; if a series has grown, "
    "send all of it again"
)


def output_of(results: Path, route: str, day: str) -> Path:
    """The folder of results of a route's studies that began to arrive on a day."""
    return results / route / day


def digest_of(names: Iterable[str]) -> str:
    """A name of a set of objects."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:32]


def _new_series(looked: _Looked, found: Submission) -> Iterator[tuple[StudyJob, SeriesRecord]]:
    """The jobs of a study that was not asked for so before, with their records."""
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
                others=tuple(other.name for other in other_results(name, found.made)),
                remark=looked.remark,
            ),
        )


def _received(job: StudyJob) -> tuple[float, float]:
    """When the first of its objects was written, and the last."""
    written = [Path(file).stat().st_mtime for file in job.files]
    return min(written), max(written)


def _left_out(study: StudyName, found: Submission, *, is_alone: bool) -> tuple[str, ...]:
    """What of a study becomes no job, in words. is_alone: names do not begin with its own then."""
    told = [
        f"{PurePosixPath(name).name}: {reason}"
        for name, reason in found.refused.items()
        if is_alone or PurePosixPath(name).parts[0] == study.name
    ]
    places = [(skip, {skip.path.name, skip.path.parent.name}) for skip in found.skipped]
    return (*told, *(skip.reason for skip, names in places if study.name in names))
