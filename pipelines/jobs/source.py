"""Source of a worker's jobs from the queue: claimed, planned, and acknowledged as they end."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from ...engine.errors import DeviceUnavailableError, EngineError
from ...io.errors import ScanError
from ...io.files.atomic import refused
from ..errors import OutputFolderError, QueueError, QueueLostError, SettingsError
from ..program import program_version
from ..report.codec import job_row
from ..report.report import Failure, StudyReport, failure_of
from ..results.manifest import Manifest
from ..results.resume import ADDS, PlannedStudy
from ..retries import Once, crash_counts
from ..run.source import JobKind, JobSource
from .events import (
    JobDeferred,
    JobEnded,
    JobStarted,
    NothingLeft,
    OnEvent,
    Waiting,
    WorkerSettings,
)
from .planner import JobPlanner
from .queue.claims import Claims
from .queue.job import Claim, StudyJob
from .queue.schedule import SchedulingClass, StartWindow

Answer = TypeVar("Answer")

PAUSE_SECONDS = 1.0
"""Pause between two requests to a queue that has no job, or does not answer."""

_FAULTS = (ScanError, EngineError, OutputFolderError, SettingsError, OSError)
"""Errors that end only one job, before it starts."""


class Outage:
    """Outage of the queue, reported once until the queue answers again; any thread may call."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._outage, self._failures = Once(), 0
        self._lock = threading.Lock()

    def ask(self, request: Callable[[], Answer]) -> Answer:
        """Return the queue's answer, which ends the outage, unless a later request failed already.

        Raises QueueLostError.
        """
        before = self._failures
        answer = request()
        with self._lock:
            if self._failures == before:
                self._outage.passed()
        return answer

    def retry(self, request: Callable[[], Answer]) -> Answer:
        """Return the answer to a request, which is repeated until the queue answers."""
        while True:
            try:
                return self.ask(request)
            except QueueLostError as error:
                self.wait(error)

    def wait(self, error: QueueLostError) -> None:
        """Report the outage unless that was done, and pause."""
        with self._lock:
            self._failures += 1
            if self._outage.is_new("outage"):
                self._on_event(Waiting(str(error)))
        time.sleep(PAUSE_SECONDS)


class QueueSource(JobSource):
    """Source of jobs that differ in their study only, as long as such jobs follow each other.

    A job that may have crashed a worker runs alone. A job that was reclaimed and claimed again is
    claimed twice, under two tokens. hindrance: returns why no job may start now, whatever the queue
    contains, or None. needs_restart: whether a failure may have harmed the process. is_empty:
    whether the worker ended because nothing is left.
    """

    def __init__(
        self,
        claims: Claims,
        planner: JobPlanner,
        settings: WorkerSettings,
        on_event: OnEvent,
        hindrance: Callable[[], str | None],
        outage: Outage,
    ) -> None:
        self.needs_restart = self.is_empty = False
        self._claims = claims
        self._planner = planner
        self._settings = settings
        self._on_event = on_event
        self._hindrance = hindrance
        self._outage = outage
        self._is_open = True
        self._claimed: dict[str, Claim] = {}
        self._claiming, self._job_ended = threading.Lock(), threading.Condition()
        self._in_flight: dict[str, Claim] = {}
        self._like: Claim | None = None
        self._first: PlannedStudy | None = None
        self._next: Claim | None = None
        self._deferred_batches: set[str] = set()
        self._planned_again: set[str] = set()
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._waits = Once()
        self._may_tune = False

    @property
    def record(self) -> Manifest:
        """Manifest of the output folder of the current jobs."""
        return self._planner.manifest

    def close(self) -> None:
        """Take no further job."""
        self._is_open = False
        self._stopped.put(None)

    def restart(self) -> None:
        """Take no further job; the process is to be replaced."""
        self.needs_restart = True
        self.close()

    def claimed(self) -> tuple[Claim, ...]:
        """Return the claims whose end is not recorded: jobs in flight, and one that may wait."""
        with self._job_ended:
            return tuple(self._claimed.values())

    def has_in_flight(self, claim: Claim) -> bool:
        """Return whether a claimed job is in flight in this worker."""
        return self._in_flight.get(claim.work.study) is claim

    def next_kind(self) -> JobKind | None:
        """Wait for a job that can start; None once closed, or if nothing is left to wait for.

        Raises QueueError or DeviceUnavailableError.
        """
        while self._is_open:
            try:
                claim, self._next = self._next or self._claim(), None
                if claim is None and self._settings.until_empty and self._is_drained():
                    self.is_empty = True
                    return None
            except QueueLostError as error:
                self._waits.passed()
                self._planner.close_folder()
                self._outage.wait(error)
                continue
            if claim is None:
                self._wait(self._hindrance())
                continue
            self._waits.passed()
            if kind := self._begun(claim):
                return kind
        return None

    def take(self) -> PlannedStudy | None:
        """Return the job that was waited for, then those that can follow it on its pipeline."""
        first, self._first = self._first, None
        while first is None and self._like:
            claim = self._following(self._like)
            if claim is None:
                self._like = None
            else:
                first = self._planned(claim)
        return first

    def may_begin(self, study: str) -> bool:
        """Return whether nothing hinders a job, and its start window is still open."""
        scheduling = self._in_flight[study].scheduling
        if not self._is_open or self._hindrance():
            return False
        with suppress(QueueLostError):
            if self._claims.is_paused():
                return False
        return _is_open(scheduling)

    def finish(self, row: StudyReport) -> None:
        """Acknowledge a job with its row.

        A job whose result appeared meanwhile is planned once more, as another worker may have
        stored it for another batch.
        """
        claim = self._in_flight.pop(row.name)
        if row.failure and row.failure.kind == "occupied" and claim.job not in self._planned_again:
            self._planned_again.add(claim.job)
            row = _interrupted(claim)
        self._acknowledge(claim, row)
        if row.failure and row.failure.stage == "infer" and not row.failure.passes:
            self.restart()

    def reclaim(self, why: str) -> None:
        """Fail the job over which the device was lost; of several jobs, retry each alone."""
        self.restart()
        claims = list(self._in_flight.values())
        if not crash_counts(len(claims)):
            tokens = [claim.token for claim in claims]
            self._outage.retry(lambda: self._claims.reclaim(tokens))
            for claim in claims:
                self._release(claim)
            return
        failure = Failure("engine", why, "infer")
        for claim in claims:
            row = replace(_row_of(claim.work), status="failed", failure=failure)
            self._acknowledge(claim, row)

    def release_all(self) -> None:
        """Take no further job, and acknowledge all as interrupted, as none of them is the cause.

        A thread of the pipeline may still be planning jobs, or waiting for the answer to a claim.
        """
        self.close()
        with self._claiming:
            claims = self.claimed()
        for claim in claims:
            self._acknowledge(claim, _interrupted(claim))

    def _claim(self) -> Claim | None:
        """Claim and return the most urgent job that may start now. Raises QueueLostError."""
        with self._claiming:
            return self._claim_readable()

    def _claim_readable(self) -> Claim | None:
        """Claim a job as `_claim`; end those that cannot be read, or that crashed too many workers,
        on the way.
        """
        while (claim := self._claim_any()) is not None:
            if claim.tries > self._settings.tries:
                self._outage.retry(lambda claim=claim: self._claims.dead_letter(claim))
                self._on_event(JobEnded(claim.job, claim.study, None))
                continue
            self._on_event(JobStarted(claim.job, claim.study))
            try:
                _ = claim.work
            except QueueError as error:
                failure = Failure("unsupported", str(error), None)
                self._end(claim, StudyReport("", Path(), Path(), "failed", failure=failure))
                continue
            with self._job_ended:
                self._claimed[claim.token] = claim
            return claim
        return None

    def _claim_any(self) -> Claim | None:
        if not self._is_open or self._hindrance():
            return None

        def first() -> Claim | None:
            classes = filter(_is_open, self._claims.scheduling_classes())
            claims = (self._claims.claim(scheduling) for scheduling in classes)
            return next(filter(None, claims), None)

        return self._outage.ask(first)

    def _is_drained(self) -> bool:
        """Return whether nothing more is to come, and report it. Raises QueueLostError."""
        left = self._claims.open_jobs()
        waits = self._settings.waits
        if any((waits and not job.is_held) or job.state == "running" for job in left):
            return False
        self._on_event(NothingLeft(left, self._claims.is_paused()))
        return True

    def _wait(self, reason: str | None) -> None:
        """Report why no job starts, unless that was done, and pause.

        If nothing hinders, the time is used to find faster tactics, until none are left to try.
        """
        if self._waits.is_new(reason or "no job"):
            with suppress(QueueLostError):
                event = Waiting(reason)
                if not reason:
                    event = Waiting(None, self._claims.open_jobs(), self._claims.is_paused())
                self._on_event(event)
        self._planner.close_folder()
        if self._may_tune and not reason:
            until = time.monotonic() + PAUSE_SECONDS
            self._planner.tune(until, lambda: self._is_open)
            self._may_tune = time.monotonic() >= until
        with suppress(Empty):
            self._stopped.get(timeout=PAUSE_SECONDS)

    def _begun(self, claim: Claim) -> JobKind | None:
        """Plan a job and open its model; return its kind, or None if it has ended."""
        self._first = self._planned(claim)
        if self._first is None:
            return None
        self._like = None if claim.alone else claim
        self._may_tune = True
        try:
            return self._planner.kind(claim.work)
        except DeviceUnavailableError:
            self._acknowledge(claim, _interrupted(claim))
            raise
        except _FAULTS as error:
            self._acknowledge(claim, _failed(claim, error))
            return None

    def _planned(self, claim: Claim) -> PlannedStudy | None:
        """Return the planned work on a job in a pipeline; None if it has ended without one."""
        try:
            planned = self._planner.plan(claim.work)
        except _FAULTS as error:
            self._acknowledge(claim, _failed(claim, error))
            return None
        if planned.action not in ("translate", *ADDS):
            self._acknowledge(claim, planned.opening_row)
            return None
        self._in_flight[claim.work.study] = claim
        return planned

    def _following(self, like: Claim) -> Claim | None:
        """Return the next job of the kind; None if nothing is left to wait for, or one differs."""
        while True:
            claim = None
            with suppress(QueueLostError):
                claim = self._claim()
            if claim is None:
                if not self.claimed() or not self._is_open:
                    return None
                with self._job_ended:
                    self._job_ended.wait(PAUSE_SECONDS)
                continue
            is_other = claim.work.study in self._in_flight or not claim.work.is_like(like.work)
            if claim.alone or is_other:
                self._next = claim
                return None
            return claim

    def _acknowledge(self, claim: Claim, row: StudyReport) -> None:
        self._end(claim, row)
        self._release(claim)

    def _release(self, claim: Claim) -> None:
        with self._job_ended:
            self._claimed.pop(claim.token, None)  # another thread may have ended it
            self._job_ended.notify_all()

    def _end(self, claim: Claim, row: StudyReport) -> None:
        """Record the end of a job with its row.

        An interrupted job goes back to its place in the queue, and one that failed for a passing
        reason is deferred.
        """
        if row.failure and row.failure.passes:
            self._defer(claim, f"{row.failure.kind}: {row.failure.reason}")
            return
        self._deferred_batches.discard(claim.batch)
        if row.status == "interrupted":
            self._outage.retry(lambda: self._claims.release([claim.token]))
        else:
            result = {"row": job_row(row), "program": program_version()}
            well = row.status != "failed"
            self._outage.retry(lambda: self._claims.acknowledge(claim, result, well=well))
        self._on_event(JobEnded(claim.job, claim.study, row))

    def _defer(self, claim: Claim, why: str) -> None:
        self._outage.retry(lambda: self._claims.defer(claim, why))
        is_reported = claim.batch in self._deferred_batches
        self._deferred_batches.add(claim.batch)
        self._on_event(JobDeferred(claim.job, claim.study, "" if is_reported else why))


def _is_open(scheduling: SchedulingClass) -> bool:
    try:
        return not scheduling.window or StartWindow.parse(scheduling.window).is_open(datetime.now())
    except SettingsError:
        return False  # made by a program with other kinds of windows


def _row_of(job: StudyJob) -> StudyReport:
    """Return the row of a job about which nothing else is known."""
    return StudyReport(
        name=job.study, source=Path(job.files[0]), output=job.target, status="up to date"
    )


def _interrupted(claim: Claim) -> StudyReport:
    return replace(_row_of(claim.work), status="interrupted")


def _failed(claim: Claim, error: Exception) -> StudyReport:
    """Return the row of a job that could not start."""
    if isinstance(error, OSError):
        error = refused(f"{error.filename or 'A file'} cannot be used", error)
    return replace(_row_of(claim.work), status="failed", failure=failure_of(error, None))
