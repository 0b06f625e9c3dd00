"""Source of a worker's jobs from the queue: claimed, planned, and acknowledged as they end."""

from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from ....engine.errors import DeviceUnavailableError, EngineError
from ....io.errors import ScanError
from ...errors import OutputFolderError, QueueLostError, SettingsError
from ...report.report import Failure, StudyReport
from ...results.manifest import Manifest
from ...results.resume import ADDS, PlannedStudy
from ...run.blame import is_blamed
from ...run.source import JobKind
from .client import PAUSE_SECONDS, JobClient, TakenJob
from .messages import NothingLeft, Tell, Waiting, WorkerSettings
from .planner import JobPlanner, failed, row_of

_FAULTS = (ScanError, EngineError, OutputFolderError, SettingsError, OSError)
"""Errors that end only one job, before it starts."""


class QueueSource:
    """Source of jobs that differ in their study only, as long as such jobs follow each other.

    A job that may have crashed a worker runs alone. needs_restart: whether a failure may have
    harmed the process. is_empty: whether the worker ended because nothing is left.
    """

    def __init__(
        self, jobs: JobClient, planner: JobPlanner, settings: WorkerSettings, tell: Tell
    ) -> None:
        self.jobs = jobs
        self.needs_restart = self.is_empty = False
        self._planner = planner
        self._settings = settings
        self._tell = tell
        self._at_work: dict[str, TakenJob] = {}
        self._like: TakenJob | None = None
        self._first: PlannedStudy | None = None
        self._next: TakenJob | None = None
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._waits_for: str | None = ""

    @property
    def record(self) -> Manifest:
        """Manifest of the output folder of the current jobs."""
        return self._planner.manifest

    def close(self) -> None:
        """Take no further job."""
        self.jobs.close()
        self._stopped.put(None)

    def has_at_work(self, taken: TakenJob) -> bool:
        """Return whether a claimed job is in flight in this worker."""
        return self._at_work.get(taken.job.study) is taken

    def next_kind(self) -> JobKind | None:
        """Wait for a job that can start; None once closed, or if nothing is left to wait for.

        Raises QueueError or DeviceUnavailableError.
        """
        while self.jobs.is_open:
            try:
                taken, self._next = self._next or self.jobs.take(), None
                if taken is None and self._settings.until_empty and self._is_empty():
                    self.is_empty = True
                    return None
            except QueueLostError as error:
                self._waits_for = ""
                self._planner.close_folder()
                self.jobs.outage.wait(error)
                continue
            if taken is None:
                self._wait(self.jobs.hindrance())
                continue
            self._waits_for = ""
            if kind := self._begun(taken):
                return kind
        return None

    def take(self) -> PlannedStudy | None:
        """Return the job that was waited for, then those that can follow it on its pipeline."""
        first, self._first = self._first, None
        while first is None and self._like:
            taken = self._following(self._like)
            if taken is None:
                self._like = None
            else:
                first = self._planned(taken)
        return first

    def may_begin(self, study: str) -> bool:
        """Return whether the start window of a job is still open."""
        return self.jobs.may_start(self._at_work[study])

    def finish(self, row: StudyReport) -> None:
        """Acknowledge a job with its row."""
        self.jobs.hand_in(self._at_work.pop(row.name), row)
        if row.failure and row.failure.stage == "infer" and not row.failure.passes:
            self._end_for_restart()

    def put_back(self, why: str) -> None:
        """Fail the job over which the device was lost; of several jobs, retry each alone."""
        self._end_for_restart()
        taken = list(self._at_work.values())
        if not is_blamed(len(taken)):
            self.jobs.retry_alone(taken)
            return
        failure = Failure("engine", why, "infer")
        for blamed in taken:
            row = replace(row_of(blamed.job), status="failed", failure=failure)
            self.jobs.hand_in(blamed, row)

    def hand_back(self) -> None:
        """Acknowledge all jobs as interrupted, as none of them is the cause."""
        for taken in self.jobs.in_hand():
            self.jobs.hand_in(taken, _interrupted(taken))

    def _outlook(self) -> Waiting:
        return Waiting(None, self.jobs.left(), self.jobs.is_paused())

    def _is_empty(self) -> bool:
        """Return whether nothing more is to come, and report it. Raises QueueLostError."""
        left = self.jobs.left()
        waits = self._settings.waits
        if any((waits and not job.is_held) or job.state == "running" for job in left):
            return False
        self._tell(NothingLeft(left, self.jobs.is_paused()))
        return True

    def _wait(self, reason: str | None) -> None:
        if reason != self._waits_for:
            with suppress(QueueLostError):
                self._tell(Waiting(reason) if reason else self._outlook())
            self._waits_for = reason
        self._planner.close_folder()
        with suppress(Empty):
            self._stopped.get(timeout=PAUSE_SECONDS)

    def _begun(self, taken: TakenJob) -> JobKind | None:
        """Plan a job and open its model; return its kind, or None if it has ended."""
        self._first = self._planned(taken)
        if self._first is None:
            return None
        self._like = None if taken.claim.alone else taken
        try:
            return self._planner.kind(taken.job)
        except DeviceUnavailableError:
            self.jobs.hand_in(taken, _interrupted(taken))
            raise
        except _FAULTS as error:
            self.jobs.hand_in(taken, failed(taken.job, error))
            return None

    def _planned(self, taken: TakenJob) -> PlannedStudy | None:
        """Return the planned work on a job in a pipeline; None if it has ended without one."""
        try:
            planned = self._planner.plan(taken.job)
        except _FAULTS as error:
            self.jobs.hand_in(taken, failed(taken.job, error))
            return None
        if planned.action not in ("translate", *ADDS):
            self.jobs.hand_in(taken, planned.opening_row)
            return None
        self._at_work[taken.job.study] = taken
        return planned

    def _following(self, like: TakenJob) -> TakenJob | None:
        """Return the next job of the kind; None if nothing is left to wait for, or one differs."""
        while True:
            taken = None
            with suppress(QueueLostError):
                taken = self.jobs.take()
            if taken is None:
                if not self.jobs.in_hand() or not self.jobs.is_open:
                    return None
                self.jobs.wait_for_a_change()
                continue
            is_other = taken.job.study in self._at_work or not taken.job.is_like(like.job)
            if taken.claim.alone or is_other:
                self._next = taken
                return None
            return taken

    def _end_for_restart(self) -> None:
        self.needs_restart = True
        self.jobs.close()


def _interrupted(taken: TakenJob) -> StudyReport:
    return replace(row_of(taken.job), status="interrupted")
