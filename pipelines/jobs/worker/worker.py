"""One worker process: does jobs as `translate` does its studies, as many beside each other."""

import signal
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import FrameType

from ....engine.errors import DeviceUnavailableError, EngineError
from ....io.errors import ScanError
from ...errors import OutputFolderError, QueueLostError, SettingsError
from ...execution.batch import LAST_MOMENT, PATIENCE
from ...execution.stages import DeviceLostError, opening_row
from ...execution.study_pipeline import Conveyor
from ...progress.events import Event, StudyDone
from ...report.report import Failure, StudyReport
from ...results.resume import PlannedStudy
from ..queue.job import StudyJob
from .client import PAUSE_SECONDS, Desk, Order
from .messages import End, Tell, Waiting, WorkerSettings
from .workshop import Workshop, failed, row_of

TICK_SECONDS = 0.2

_FAULTS = (ScanError, EngineError, OutputFolderError, SettingsError, OSError)
"""What ends one job before it is begun with, and no other."""


class Worker:
    """Does jobs in this thread, which must be the process's main one, and the threads it starts.

    Jobs that differ in their study only travel on one conveyor: it takes the next one when it has
    room to read it, and ends when there is none. A job that may have killed a worker goes alone.
    """

    def __init__(
        self, desk: Desk, workshop: Workshop, settings: WorkerSettings, tell: Tell
    ) -> None:
        self.desk = desk
        self._workshop = workshop
        self._settings = settings
        self._tell = tell
        self._conveyor: Conveyor | None = None
        self._on_it: dict[str, Order] = {}
        self._next: Order | None = None
        self._hurries = self._is_shaken = False
        self._stopped: SimpleQueue[None] = SimpleQueue()  # may be put into by a signal's handler
        self._waits_for: str | None = ""

    def stop(self) -> None:
        """Start no further job."""
        self.desk.close()
        self._stopped.put(None)

    def hurry(self) -> None:
        """Put back what is not almost done, and end."""
        self._hurries = True
        self.stop()

    def begin_afresh(self) -> None:
        """As `hurry`, but to be replaced."""
        self._is_shaken = True
        self.hurry()

    def leave(self, order: Order) -> None:
        """Let go of one job, which is not ours any more; for it to be sure, say so repeatedly."""
        conveyor = self._conveyor
        if conveyor and self._on_it.get(order.job.study) is order:
            conveyor.leave(order.job.study)

    def run(self) -> End:
        """Work until stopped. Raises QueueError or DeviceUnavailableError."""
        while self.desk.is_open:
            try:
                order, self._next = self._next or self.desk.take(), None
                if order is None and self._settings.until_empty and not self.desk.others_work():
                    return "empty"
            except QueueLostError as error:
                self._wait(str(error))
                continue
            if order is None:
                self._wait(self.desk.hindrance())
            else:
                self._waits_for = ""
                self._work_from(order)
        for order in self.desk.in_hand():
            self.desk.hand_in(order, _interrupted(order))
        return "shaken" if self._is_shaken else "stopped"

    def _wait(self, reason: str | None) -> None:
        if reason != self._waits_for:
            self._tell(Waiting(reason))
            self._waits_for = reason
        self._workshop.rest()
        with suppress(Empty):
            self._stopped.get(timeout=PAUSE_SECONDS)

    def _work_from(self, order: Order) -> None:
        """Do a job, and then those that can follow it on its conveyor."""
        planned = self._planned(order)
        if planned is None:
            return
        try:
            task = self._workshop.task(order.job, self._may_begin)
        except DeviceUnavailableError:
            self.desk.hand_in(order, _interrupted(order))
            raise
        except _FAULTS as error:
            self.desk.hand_in(order, failed(order.job, error))
            return
        studies = [planned] if order.claim.alone else self._studies(planned, order.job)
        self._conveyor = Conveyor(task, studies, self._workshop.lanes())
        try:
            self._carry(self._conveyor)
        except DeviceLostError as error:
            self._conveyor.stop()
            self._conveyor.cut()
            self._blame(error)
        finally:
            self._conveyor = None

    def _planned(self, order: Order) -> PlannedStudy | None:
        """What is to be done on a conveyor about a job; None if it has ended without one."""
        try:
            planned = self._workshop.plan(order.job)
        except _FAULTS as error:
            self.desk.hand_in(order, failed(order.job, error))
            return None
        if planned.action != "translate":
            self.desk.hand_in(order, opening_row(planned))
            return None
        self._on_it[order.job.study] = order
        return planned

    def _studies(self, first: PlannedStudy, job: StudyJob) -> Iterator[PlannedStudy]:
        """Called by the conveyor's readers, one at a time."""
        yield first
        while order := self._following(job):
            planned = self._planned(order)
            if planned:
                yield planned

    def _following(self, job: StudyJob) -> Order | None:
        """The next job that fits; None once nothing is left to wait for, or one does not fit."""
        while True:
            order = None
            with suppress(QueueLostError):
                order = self.desk.take()
            if order is None:
                if not self.desk.in_hand() or not self.desk.is_open:
                    return None
                self.desk.wait_for_a_change()
            elif order.claim.alone or order.job.study in self._on_it or not order.job.is_like(job):
                self._next = order
                return None
            else:
                return order

    def _may_begin(self, study: str) -> bool:
        return self.desk.may_start(self._on_it[study])

    def _carry(self, conveyor: Conveyor) -> None:
        conveyor.start()
        while not conveyor.is_over and not self._hurries:
            self._hear(conveyor.rest(TICK_SECONDS))
        if self._hurries:
            conveyor.stop()
            self._hear(conveyor.rest(PATIENCE))
            conveyor.cut()
            self._hear(conveyor.rest(LAST_MOMENT))

    def _hear(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, StudyDone):
                row = event.row
                self.desk.hand_in(self._on_it.pop(row.name), row)
                if row.failure and row.failure.stage == "infer":
                    self._end_shaken()

    def _blame(self, error: DeviceLostError) -> None:
        """A job that had the device alone is at fault; among several nobody can tell."""
        self._end_shaken()
        orders = list(self._on_it.values())
        if len(orders) == 1:
            failure = Failure("engine", str(error), "infer")
            row = replace(row_of(orders[0].job), status="failed", failure=failure)
            self.desk.hand_in(orders[0], row)
        else:
            self.desk.put_apart(orders)

    def _end_shaken(self) -> None:
        self._is_shaken = True
        self.desk.close()


@contextmanager
def stopped_by_signals(worker: Worker) -> Generator[None]:
    """SIGTERM stops the worker after its jobs, SIGUSR2 at once.

    Ctrl-C reaches every process of a terminal; only the parent acts on it.
    """

    def act(number: int, _frame: FrameType | None) -> None:
        match number:
            case signal.SIGTERM:
                worker.stop()
            case signal.SIGUSR2:
                worker.hurry()
            case _:
                pass

    numbers = signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted(order: Order) -> StudyReport:
    return replace(row_of(order.job), status="interrupted")
