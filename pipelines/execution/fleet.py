"""A batch shared by several processes, one a device: studies go to whoever has room for one."""

import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from time import monotonic
from typing import Any

from ...engine.errors import EngineError
from ...io.files.parts import remove_leftovers
from ..progress.events import DeviceOpened, Event, StudyDone, TilesDone, Worked
from ..report.report import Failure, StudyReport
from ..results.manifest import Entry, Manifest
from ..results.resume import PlannedStudy
from ..stopwatch import Stage
from .batch import LAST_MOMENT
from .stages import opening_row
from .worker import Answered, Cut, Ended, FromWorker, Given, Recorded, Setup, Stop, ToWorker, Wanted
from .worker import command as worker_command

_TRIES = 2
"""Workers that may die over a study before it is held to be the cause."""

_IN_VAIN = 4
"""Workers of a device that may die one after another, none with a study finished."""


@dataclass(slots=True, eq=False)
class Worker:
    """A process and what it has in hand. finished: studies; trouble: what it said at its end."""

    setup: Setup
    process: "subprocess.Popen[bytes]"
    connection: "Connection[ToWorker, FromWorker]"
    in_hand: dict[str, PlannedStudy] = field(default_factory=dict[str, PlannedStudy])
    finished: int = 0
    has_device: bool = False
    trouble: str | None = None

    def send(self, message: ToWorker) -> None:
        """Tell it something; what a dead worker is told is lost."""
        with suppress(OSError):
            self.connection.send(message)


class Fleet:
    """Workers and the studies among them; stands where a `Conveyor` stands for one device.

    Studies of a worker that dies go to another one, alone, to see which of them was the cause. The
    worker is replaced if its device had opened, unless too many die there one after another.
    suspects: studies over which a process died already.

    What happens is taken note of in a thread of its own, so that an interrupt of the thread that
    listens may cost it an event, but no row.
    """

    def __init__(
        self,
        setups: Sequence[Setup],
        studies: Sequence[PlannedStudy],
        manifest: Manifest,
        suspects: Collection[str] = (),
    ) -> None:
        self._setups = setups
        self._waiting = deque(studies)
        self._manifest = manifest
        self._workers: list[Worker] = []
        self._hungry: deque[Worker] = deque()
        self._deaths = Counter[str](suspects)
        self._in_vain = Counter[str]()
        self._opened = set[str]()
        self._recorded: set[str] = set()
        self._trouble = ""
        self._rows: dict[str, StudyReport] = {}
        self._begun: dict[str, dict[Stage, float]] = {}
        self._stopped = threading.Event()
        self._heard: SimpleQueue[Event | BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._manage, name="workers", daemon=True)
        self._is_over = False

    def run(self) -> Iterator[Event]:
        """Everything that happens until the last study is over."""
        for setup in self._setups:
            self._start(setup)
        self._thread.start()
        while not self._is_over:
            yield from self._told(self._heard.get())

    def stop(self) -> None:
        """Begin nothing more; what the networks have done with is still stored."""
        self._stopped.set()
        for worker in self._workers.copy():
            worker.send(Stop())

    def rest(self, seconds: float) -> Iterator[Event]:
        """What still happens after a stop, for so long."""
        end = monotonic() + seconds
        while not self._is_over and (left := end - monotonic()) > 0:
            try:
                yield from self._told(self._heard.get(timeout=left))
            except Empty:
                return

    def cut(self) -> None:
        """End all workers, and remove what they may have been storing."""
        for worker in self._workers.copy():
            worker.send(Cut())
        end = monotonic() + LAST_MOMENT
        for worker in self._workers.copy():
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(end - monotonic(), 0))
            worker.process.kill()
            worker.process.wait()
        remove_leftovers(self._manifest.output)

    def row(self, planned: PlannedStudy) -> StudyReport | None:
        """What became of a study, if it was begun with."""
        name = str(planned.study.name)
        if name in self._rows or name not in self._begun:
            return self._rows.get(name)
        stages = self._begun[name]
        row = replace(opening_row(planned), status="interrupted", stages=stages)
        return replace(row, seconds=sum(stages.values()))

    def _told(self, heard: Event | BaseException | None) -> Iterator[Event]:
        if isinstance(heard, BaseException):
            raise heard
        if heard is None:
            self._is_over = True
        else:
            yield heard

    def _start(self, setup: Setup) -> None:
        ours, theirs = Pipe()
        descriptor = theirs.fileno()
        with TemporaryFile() as orders:  # through a pipe it would wait for the process to read it
            for order in (sys.path, setup):
                pickle.dump(order, orders)
            orders.seek(0)
            process = subprocess.Popen(
                worker_command(descriptor),
                pass_fds=(descriptor,),
                stdin=orders,
                start_new_session=True,
            )
        theirs.close()
        connection: Any = ours
        worker = Worker(setup, process, connection)
        self._workers.append(worker)
        if self._stopped.is_set():
            worker.send(Stop())

    def _manage(self) -> None:
        try:
            while self._workers:
                ready = wait([worker.connection for worker in self._workers])
                for worker in self._workers.copy():
                    if worker.connection in ready:
                        self._attend(worker)
            self._give_up()
            self._heard.put(None)
        except BaseException as error:
            self._heard.put(error)

    def _attend(self, worker: Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        match message:
            case Wanted():
                self._hungry.append(worker)
                self._hand_out()
            case Recorded(entry):
                worker.send(Answered(self._record(entry)))
            case Ended(trouble):
                worker.trouble = trouble
            case _:
                self._note(worker, message)

    def _record(self, entry: Entry) -> OSError | None:
        self._recorded.add(entry.output)
        try:
            self._manifest.append(entry)
        except OSError as error:
            return error
        return None

    def _note(self, worker: Worker, event: Event) -> None:
        match event:
            case DeviceOpened():
                worker.has_device = True
                if worker.setup.name in self._opened:
                    return
                self._opened.add(worker.setup.name)
            case TilesDone(study, 0, _):
                self._begun[study] = {}
            case Worked(span):
                if span.study in self._begun:
                    spent = self._begun[span.study]
                    spent[span.stage] = spent.get(span.stage, 0.0) + span.seconds
                event = Worked(replace(span, lane=f"{worker.setup.name}: {span.lane}"))
            case StudyDone(row):
                self._rows[row.name] = row
                worker.in_hand.pop(row.name, None)
                worker.finished += 1
                self._in_vain[worker.setup.name] = 0
            case _:
                pass
        self._heard.put(event)
        if isinstance(event, StudyDone):
            self._hand_out()

    def _hand_out(self) -> None:
        """Give waiting studies to hungry workers, and the end once nobody's can come back."""
        if not self._stopped.is_set():
            self._hungry = deque(worker for worker in self._hungry if not self._fed(worker))
        if self._stopped.is_set() or not any(worker.in_hand for worker in self._workers):
            while self._hungry:
                self._hungry.popleft().send(Given(None))

    def _fed(self, worker: Worker) -> bool:
        """Whether there was a study for it; one that a worker died over is worked on alone."""
        if any(name in self._deaths for name in worker.in_hand):
            return False
        for planned in self._waiting:
            name = str(planned.study.name)
            if not worker.in_hand or name not in self._deaths:
                self._waiting.remove(planned)
                worker.in_hand[name] = planned
                worker.send(Given(planned))
                return True
        return False

    def _bury(self, worker: Worker) -> None:
        """What a worker had in hand goes to others, unless a stop was the end of it."""
        worker.connection.close()
        worker.process.wait()
        self._workers.remove(worker)
        self._hungry = deque(other for other in self._hungry if other is not worker)
        self._trouble = worker.trouble or _death(worker)
        if not self._stopped.is_set():
            self._blame(worker)
        if worker.in_hand:
            remove_leftovers(self._manifest.output)
        if self._waiting and self._is_worth_replacing(worker) and not self._stopped.is_set():
            self._start(worker.setup)
        self._hand_out()

    def _blame(self, worker: Worker) -> None:
        for name, planned in reversed(worker.in_hand.items()):
            if worker.has_device:
                self._deaths[name] += 1
            if self._deaths[name] < _TRIES:
                again = planned.begun_again(self._trouble) if name in self._begun else planned
                self._waiting.appendleft(
                    replace(again, replaces=planned.replaces or name in self._recorded)
                )
            else:
                self._fail(planned)

    def _is_worth_replacing(self, worker: Worker) -> bool:
        """Not where it said itself that it gets no device."""
        if not worker.finished:
            self._in_vain[worker.setup.name] += 1
        may_open = worker.has_device or worker.trouble is None
        return may_open and self._in_vain[worker.setup.name] < _IN_VAIN

    def _fail(self, planned: PlannedStudy) -> None:
        failure = Failure("engine", self._trouble, None)
        row = replace(opening_row(planned), status="failed", failure=failure)
        self._rows[row.name] = row
        self._heard.put(StudyDone(row))

    def _give_up(self) -> None:
        """Nobody is left: what still waits cannot be done."""
        if self._stopped.is_set() or not self._waiting:
            return
        if not self._rows:
            raise EngineError(self._trouble)
        while self._waiting:
            self._fail(self._waiting.popleft())


def _death(worker: Worker) -> str:
    code = worker.process.returncode
    cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return (
        f"The process for {worker.setup.name} ended in the middle of its work ({cause}); see the "
        "system's log for memory or driver errors."
    )
