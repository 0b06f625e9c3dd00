"""One worker process: takes jobs while it may, does them, and records how they ended."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import FrameType

from .errors import QueueError, QueueLostError, SettingsError
from .events import Event
from .job_talk import End, JobEnded, JobStarted, Tell, Waiting, WorkerSettings
from .job_watch import Watch
from .queue_claims import Claims
from .queue_job import StudyJob
from .queue_state import Claim, Lane
from .report import Failure, StudyReport
from .report_json import program_version
from .study_row import to_json
from .windows import Window
from .workshop import Workshop, row_of

POLL_SECONDS = 1.0


class Worker:
    """Does jobs one after another in this thread, which must be the process's main one.

    hindrance: asked before each job; why none may start now, or None.
    """

    def __init__(
        self,
        claims: Claims,
        workshop: Workshop,
        settings: WorkerSettings,
        tell: Tell,
        hindrance: Callable[[], str | None],
    ) -> None:
        self._claims = claims
        self._workshop = workshop
        self._settings = settings
        self._tell = tell
        self._hindrance = hindrance
        self._stop = threading.Event()
        self._at_work = False
        self._waits_for: str | None = ""

    def stop(self) -> None:
        """Take no further job."""
        self._stop.set()

    def interrupt(self) -> None:
        """Leave the job at hand; to be called in the main thread."""
        if self._at_work:
            raise KeyboardInterrupt

    def run(self, watch: Watch) -> End:
        """Work until stopped. Raises QueueError or DeviceUnavailableError."""
        while not self._stop.is_set():
            try:
                claim = self._next()
                if claim is None and self._settings.until_empty and not self._claims.workers():
                    return "empty"
            except QueueLostError as error:
                self._wait(str(error))
                continue
            if claim is None:
                self._wait(self._hindrance())
                continue
            self._waits_for = ""
            if self._finished_shaken(claim, watch):
                return "shaken"
        return "stopped"

    def _next(self) -> Claim | None:
        if self._hindrance():
            return None
        now = datetime.now()
        lanes = [lane for lane in self._claims.lanes() if _is_open(lane, now)]
        return next((claim for lane in lanes if (claim := self._claims.take(lane))), None)

    def _wait(self, reason: str | None) -> None:
        if reason != self._waits_for:
            self._tell(Waiting(reason))
            self._waits_for = reason
        self._workshop.rest()
        self._stop.wait(POLL_SECONDS)

    def _finished_shaken(self, claim: Claim, watch: Watch) -> bool:
        """Do a job; whether the process should be replaced before the next one."""
        if claim.tries > self._settings.tries:
            self._record(lambda: self._claims.give_up(claim))
            self._tell(JobEnded(claim.job, None))
            return False
        self._tell(JobStarted(claim.job))
        with watch.over(claim):
            row = self._row(claim)
        if row.status == "interrupted":
            self._record(lambda: self._claims.hand_back(claim))
        else:
            result = {"row": to_json(row), "program": program_version()}
            well = row.status != "failed"
            self._record(lambda: self._claims.end(claim, result, well=well))
        self._tell(JobEnded(claim.job, row))
        return row.failure is not None and row.failure.stage == "infer"

    def _row(self, claim: Claim) -> StudyReport:
        try:
            job = StudyJob.from_json(claim.payload)
        except QueueError as error:
            failure = Failure("unsupported", str(error), None)
            return StudyReport("", Path(), Path(), "failed", failure=failure)
        try:
            self._at_work = True
            row = self._workshop.do(job, _ignore)
            self._at_work = False
        except KeyboardInterrupt:  # between the job's last step and this line
            row = replace(row_of(job), status="interrupted")
        finally:
            self._at_work = False
        return row

    def _record(self, step: Callable[[], object]) -> None:
        """Tell the queue what became of a job, for as long as it takes."""
        while True:
            try:
                step()
                return
            except QueueLostError as error:
                self._tell(Waiting(str(error)))
                self._stop.wait(POLL_SECONDS)


@contextmanager
def stopped_by_signals(worker: Worker) -> Generator[None]:
    """SIGTERM stops the worker after its job, SIGUSR2 at once; SIGUSR1 interrupts the job at hand.

    Ctrl-C reaches every process of a terminal; only the parent acts on it.
    """

    def act(number: int, _frame: FrameType | None) -> None:
        match number:
            case signal.SIGTERM:
                worker.stop()
            case signal.SIGUSR1:
                worker.interrupt()
            case signal.SIGUSR2:
                worker.stop()
                worker.interrupt()
            case _:
                pass

    numbers = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_open(lane: Lane, now: datetime) -> bool:
    try:
        return not lane.window or Window.parse(lane.window).is_open(now)
    except SettingsError:
        return False  # made by a program that knows other windows


def _ignore(_event: Event) -> None: ...
