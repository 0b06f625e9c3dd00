"""One worker process: does jobs as `translate` does its studies, as many beside each other."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from ....engine.errors import DeviceUnavailableError, EngineError
from ....io.errors import ScanError
from ...errors import OutputFolderError, QueueLostError, SettingsError
from ...events import Event, StudyDone
from ...execution.batch import LAST_MOMENT, PATIENCE
from ...execution.study_pipeline import StudyPipeline
from ...execution.under_way import DeviceLostError
from ...host.thread_limits import is_out_of_threads
from ...report.report import Failure, StudyReport
from ...results.resume import ADDS, PlannedStudy
from ...worker_processes.retry import is_blamed
from ..queue.job import StudyJob
from .client import PAUSE_SECONDS, JobClient, TakenJob
from .messages import NothingLeft, Tell, Waiting, WorkerEnd, WorkerSettings
from .warm_device import WarmDevice, failed, row_of

TICK_SECONDS = 0.2

_FAULTS = (ScanError, EngineError, OutputFolderError, SettingsError, OSError)
"""What ends one job before it is begun with, and no other."""


class JobWorker:
    """Does jobs in this thread and those that it starts.

    Jobs that differ in their study only travel on one pipeline: it takes the next one when it has
    room to read it, and ends when there is none. A job that may have killed a worker goes alone.
    """

    def __init__(
        self, jobs: JobClient, device: WarmDevice, settings: WorkerSettings, tell: Tell
    ) -> None:
        self.jobs = jobs
        self._device = device
        self._settings = settings
        self._tell = tell
        self._pipeline: StudyPipeline | None = None
        self._on_it: dict[str, TakenJob] = {}
        self._next: TakenJob | None = None
        self._stops_at_once = self._needs_restart = False
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._waits_for: str | None = ""

    def stop(self) -> None:
        """Start no further job."""
        self.jobs.close()
        self._stopped.put(None)

    def stop_at_once(self) -> None:
        """Put back what is not almost done, and end."""
        self._stops_at_once = True
        self.stop()

    def restart(self) -> None:
        """As `stop_at_once`, but to be replaced."""
        self._needs_restart = True
        self.stop_at_once()

    def leave(self, taken: TakenJob) -> None:
        """Let go of one job, which is not ours any more; for it to be sure, say so repeatedly."""
        pipeline = self._pipeline
        if pipeline and self._on_it.get(taken.job.study) is taken:
            pipeline.leave(taken.job.study)

    def run(self) -> WorkerEnd:
        """Work until stopped. Raises QueueError or DeviceUnavailableError."""
        while self.jobs.is_open:
            try:
                taken, self._next = self._next or self.jobs.take(), None
                if taken is None and self._settings.until_empty and self._is_empty():
                    return "empty"
            except QueueLostError as error:
                self._waits_for = ""
                self._device.close_folder()
                self.jobs.outage.wait(error)
                continue
            if taken is None:
                self._wait(self.jobs.hindrance())
            else:
                self._waits_for = ""
                with self._put_back_without_threads():
                    self._work_from(taken)
        for taken in self.jobs.in_hand():
            self.jobs.hand_in(taken, _interrupted(taken))
        return "restart" if self._needs_restart else "stopped"

    def _outlook(self) -> Waiting:
        return Waiting(None, self.jobs.left(), self.jobs.is_paused())

    def _is_empty(self) -> bool:
        """Whether nothing more is to come, which is told then. Raises QueueLostError."""
        left = self.jobs.left()
        if any(self._settings.waits or job.state == "running" for job in left):
            return False
        self._tell(NothingLeft(left, self.jobs.is_paused()))
        return True

    def _wait(self, reason: str | None) -> None:
        if reason != self._waits_for:
            with suppress(QueueLostError):
                self._tell(Waiting(reason) if reason else self._outlook())
            self._waits_for = reason
        self._device.close_folder()
        with suppress(Empty):
            self._stopped.get(timeout=PAUSE_SECONDS)

    @contextmanager
    def _put_back_without_threads(self) -> Generator[None]:
        """Put back what is in hand if the system starts no more threads, and let the process end:
        none of the studies is to blame, and another process may find it otherwise.
        """
        try:
            yield
        except RuntimeError as error:
            if is_out_of_threads(error):
                for taken in self.jobs.in_hand():
                    self.jobs.hand_in(taken, _interrupted(taken))
            raise

    def _work_from(self, taken: TakenJob) -> None:
        """Do a job, and then those that can follow it on its pipeline."""
        planned = self._planned(taken)
        if planned is None:
            return
        try:
            task = self._device.task(taken.job, self._may_begin)
        except DeviceUnavailableError:
            self.jobs.hand_in(taken, _interrupted(taken))
            raise
        except _FAULTS as error:
            self.jobs.hand_in(taken, failed(taken.job, error))
            return
        studies = [planned] if taken.claim.alone else self._studies(planned, taken.job)
        self._pipeline = StudyPipeline(task, studies, self._device.concurrency())
        try:
            self._carry(self._pipeline)
        except DeviceLostError as error:
            self._pipeline.stop()
            self._pipeline.abort()
            self._blame(error)
        except RuntimeError:
            self._pipeline.stop()
            self._pipeline.abort()
            raise
        finally:
            self._pipeline = None

    def _planned(self, taken: TakenJob) -> PlannedStudy | None:
        """What is to be done on a pipeline about a job; None if it has ended without one."""
        try:
            planned = self._device.plan(taken.job)
        except _FAULTS as error:
            self.jobs.hand_in(taken, failed(taken.job, error))
            return None
        if planned.action not in ("translate", *ADDS):
            self.jobs.hand_in(taken, planned.opening_row)
            return None
        self._on_it[taken.job.study] = taken
        return planned

    def _studies(self, first: PlannedStudy, job: StudyJob) -> Iterator[PlannedStudy]:
        """Called by the pipeline's readers, one at a time."""
        yield first
        while taken := self._following(job):
            planned = self._planned(taken)
            if planned:
                yield planned

    def _following(self, job: StudyJob) -> TakenJob | None:
        """The next job that fits; None once nothing is left to wait for, or one does not fit."""
        while True:
            taken = None
            with suppress(QueueLostError):
                taken = self.jobs.take()
            if taken is None:
                if not self.jobs.in_hand() or not self.jobs.is_open:
                    return None
                self.jobs.wait_for_a_change()
            elif taken.claim.alone or taken.job.study in self._on_it or not taken.job.is_like(job):
                self._next = taken
                return None
            else:
                return taken

    def _may_begin(self, study: str) -> bool:
        return self.jobs.may_start(self._on_it[study])

    def _carry(self, pipeline: StudyPipeline) -> None:
        pipeline.start()
        while not pipeline.is_over and not self._stops_at_once:
            self._hear(pipeline.rest(TICK_SECONDS))
        if self._stops_at_once:
            pipeline.stop()
            self._hear(pipeline.rest(PATIENCE))
            pipeline.abort()
            self._hear(pipeline.rest(LAST_MOMENT))

    def _hear(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, StudyDone):
                row = event.row
                self.jobs.hand_in(self._on_it.pop(row.name), row)
                if row.failure and row.failure.stage == "infer" and not row.failure.passes:
                    self._end_for_restart()

    def _blame(self, error: DeviceLostError) -> None:
        """Of several jobs nobody can tell which is at fault."""
        self._end_for_restart()
        taken = list(self._on_it.values())
        if not is_blamed(len(taken)):
            self.jobs.retry_alone(taken)
            return
        failure = Failure("engine", str(error), "infer")
        for blamed in taken:
            row = replace(row_of(blamed.job), status="failed", failure=failure)
            self.jobs.hand_in(blamed, row)

    def _end_for_restart(self) -> None:
        self._needs_restart = True
        self.jobs.close()


def _interrupted(taken: TakenJob) -> StudyReport:
    return replace(row_of(taken.job), status="interrupted")
