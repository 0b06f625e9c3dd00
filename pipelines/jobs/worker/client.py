"""Client of the queue, by which a worker claims and acknowledges jobs."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...errors import QueueError, QueueLostError, SettingsError
from ...program import program_version
from ...report.codec import job_row
from ...report.report import Failure, StudyReport
from ..queue.claims import Claims
from ..queue.job import Claim, OpenJobs, StudyJob
from ..queue.schedule import SchedulingClass, StartWindow
from .messages import JobEnded, JobPutOff, JobStarted, Tell, Waiting, WorkerSettings

PAUSE_SECONDS = 1.0
"""Pause between two requests to a queue that has no job, or does not answer."""


@dataclass(frozen=True, slots=True)
class TakenJob:
    """Claimed job.

    claim: this worker's claim on it. job: the decoded job.
    """

    claim: Claim
    job: StudyJob


class Outage:
    """Outage of the queue, reported once until the queue answers again; any thread may call.

    failures: number of requests without an answer.
    """

    def __init__(self, tell: Tell) -> None:
        self.failures = 0
        self._tell = tell
        self._is_told = False
        self._lock = threading.Lock()

    def wait(self, error: QueueLostError) -> None:
        """Report the outage unless that was done, and pause."""
        with self._lock:
            self.failures += 1
            if not self._is_told:
                self._is_told = True
                self._tell(Waiting(str(error)))
        time.sleep(PAUSE_SECONDS)

    def end(self, failures: int) -> None:
        """End the outage, unless it failed again since the answered request.

        failures: number of failures when that request was made.
        """
        with self._lock:
            self._is_told = self._is_told and failures != self.failures


class JobClient:
    """Client of one worker, with its claimed jobs whose end is not recorded; any thread may call.

    A job that was reclaimed and claimed again is there twice, under two tokens.
    hindrance: returns why no job may start now, whatever the queue contains, or None. outage:
    outage of the queue.
    """

    def __init__(
        self,
        claims: Claims,
        settings: WorkerSettings,
        tell: Tell,
        hindrance: Callable[[], str | None],
    ) -> None:
        self.hindrance = hindrance
        self.is_open = True
        self._claims = claims
        self._tries = settings.tries
        self._tell = tell
        self.outage = Outage(tell)
        self._in_hand: dict[str, TakenJob] = {}
        self._waiting: set[str] = set()
        self._changed = threading.Condition()

    def close(self) -> None:
        """Let no job start from now on."""
        self.is_open = False

    def in_hand(self) -> tuple[TakenJob, ...]:
        """Return the claimed jobs: those in flight, and any that waits for them."""
        with self._changed:
            return tuple(self._in_hand.values())

    def wait_for_a_change(self) -> None:
        """Wait until a job is acknowledged, at most PAUSE_SECONDS."""
        with self._changed:
            self._changed.wait(PAUSE_SECONDS)

    def left(self) -> tuple[OpenJobs, ...]:
        """Return the open jobs that this worker may take. Raises QueueLostError."""
        return self._claims.open_jobs()

    def is_paused(self) -> bool:
        """Return whether no job of any batch may start. Raises QueueLostError."""
        return self._claims.is_paused()

    def take(self) -> TakenJob | None:
        """Claim and return the most urgent job that may start now. Raises QueueLostError.

        Jobs that cannot be read, or that crashed too many workers, are ended on the way.
        """
        while (claim := self._claim()) is not None:
            if claim.tries > self._tries:
                self._record(lambda claim=claim: self._claims.dead_letter(claim))
                self._tell(JobEnded(claim.job, claim.study, None))
                continue
            self._tell(JobStarted(claim.job, claim.study))
            try:
                taken = TakenJob(claim, StudyJob.from_json(claim.payload))
            except QueueError as error:
                failure = Failure("unsupported", str(error), None)
                self._end(claim, StudyReport("", Path(), Path(), "failed", failure=failure))
                continue
            with self._changed:
                self._in_hand[claim.token] = taken
            return taken
        return None

    def may_start(self, taken: TakenJob) -> bool:
        """Return whether a job that was claimed earlier may still start."""
        if not self.is_open or self.hindrance():
            return False
        try:
            return taken.claim.scheduling in self._open_classes()
        except QueueLostError:
            return _is_open(taken.claim.scheduling)

    def hand_in(self, taken: TakenJob, row: StudyReport) -> None:
        """Acknowledge a job with its row.

        An interrupted job goes back to its place in the queue, and one that failed for a passing
        reason is deferred.
        """
        self._end(taken.claim, row)
        self._let_go(taken)

    def retry_alone(self, jobs: Sequence[TakenJob]) -> None:
        """Put jobs back, one of which has harmed the device; each will run alone."""
        tokens = [taken.claim.token for taken in jobs]
        self._record(lambda: self._claims.reclaim(tokens))
        for taken in jobs:
            self._let_go(taken)

    def _let_go(self, taken: TakenJob) -> None:
        with self._changed:
            del self._in_hand[taken.claim.token]
            self._changed.notify_all()

    def _claim(self) -> Claim | None:
        if not self.is_open or self.hindrance():
            return None
        failures = self.outage.failures
        taken = (self._claims.take(scheduling) for scheduling in self._open_classes())
        claim = next(filter(None, taken), None)
        self.outage.end(failures)
        return claim

    def _open_classes(self) -> list[SchedulingClass]:
        return [
            scheduling for scheduling in self._claims.scheduling_classes() if _is_open(scheduling)
        ]

    def _end(self, claim: Claim, row: StudyReport) -> None:
        if row.failure and row.failure.passes:
            self._put_off(claim, f"{row.failure.kind}: {row.failure.reason}")
            return
        self._waiting.discard(claim.batch)
        if row.status == "interrupted":
            self._record(lambda: self._claims.put_back([claim.token]))
        else:
            result = {"row": job_row(row), "program": program_version()}
            well = row.status != "failed"
            self._record(lambda: self._claims.acknowledge(claim, result, well=well))
        self._tell(JobEnded(claim.job, claim.study, row))

    def _put_off(self, claim: Claim, why: str) -> None:
        self._record(lambda: self._claims.defer(claim, why))
        is_known = claim.batch in self._waiting
        self._waiting.add(claim.batch)
        self._tell(JobPutOff(claim.job, claim.study, "" if is_known else why))

    def _record(self, step: Callable[[], object]) -> None:
        """Record the end of a job in the queue, retrying until the queue answers."""
        while True:
            failures = self.outage.failures
            try:
                step()
            except QueueLostError as error:
                self.outage.wait(error)
            else:
                return self.outage.end(failures)


def _is_open(scheduling: SchedulingClass) -> bool:
    try:
        return not scheduling.window or StartWindow.parse(scheduling.window).is_open(datetime.now())
    except SettingsError:
        return False  # made by a program with other kinds of windows
