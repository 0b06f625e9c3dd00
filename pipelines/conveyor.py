"""Studies through three stages at the same time: one is read, one translated, one stored."""

import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeAlias, TypeVar

from ..engine.cpu import Generator as Network
from ..engine.model import Model
from .events import DeviceOpened, Event, StudyDone, StudyStarted, TilesDone, Worked
from .failures import failure_of
from .footprint import footprint
from .manifest import FileState
from .memory import PeakMeters
from .plan import PlannedStudy
from .report import StudyReport
from .room import Room
from .settings import TranslateSettings
from .stopwatch import Span, Stopwatch
from .storing import Store, input_states
from .study_run import (
    InferredStudy,
    PreparedStudy,
    Translated,
    Translator,
    finish_study,
    infer_study,
    prepare_study,
    read_study,
)

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Lanes:
    """How much is under way at a time, besides the one study in the network.

    host_bytes: what all studies may hold together; one that needs more is worked on alone.
    readers, writers: threads, each with one study at most.
    """

    host_bytes: int
    readers: int = 1
    writers: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What is done with every study."""

    model: Model
    settings: TranslateSettings
    open_generator: Callable[[], AbstractContextManager[Network]]
    store: Store


@dataclass(slots=True)
class Ticket:
    """A study under way. inputs: its files before they were read. held: bytes that it was given."""

    planned: PlannedStudy
    row: StudyReport
    watch: Stopwatch
    inputs: tuple[FileState, ...] = ()
    held: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    """The last that a thread has to say. error: what ended it before its time."""

    error: BaseException | None = None


class StoppedError(BaseException):
    """Ends a thread that nobody waits for any more."""


Loaded: TypeAlias = tuple[Ticket, PreparedStudy] | StudyDone
Inferred: TypeAlias = tuple[Ticket, InferredStudy] | StudyDone


class Conveyor:
    """Threads that carry studies from file to file.

    A study that fails travels on as its row, so rows come in the order of the studies as long as
    there is one reader and one writer. The threads are daemons: who cannot wait for them may
    leave, since under a result's name nothing but a whole file ever appears.
    """

    def __init__(self, task: Task, studies: Iterable[PlannedStudy], lanes: Lanes) -> None:
        self._task = task
        self._studies = iter(studies)
        self._next_study = threading.Lock()
        self._lanes = lanes
        self._ahead, self._behind = Room(lanes.readers), Room(lanes.writers)
        self._memory = Room(lanes.host_bytes)
        self._peaks = PeakMeters()
        self._stopped, self._cut = threading.Event(), threading.Event()
        self._loaded: SimpleQueue[Loaded | None] = SimpleQueue()
        self._inferred: SimpleQueue[Inferred | None] = SimpleQueue()
        self._heard: SimpleQueue[Event | Over] = SimpleQueue()
        self._storing = lanes.writers
        self._threads = [
            *self._workers("read", lanes.readers, self._read_all),
            *self._workers("infer", 1, self._infer_all),
            *self._workers("write", lanes.writers, self._store_all),
        ]

    def run(self) -> Iterator[Event]:
        """Everything that happens until the last study is over; raises what ended a thread."""
        for thread in self._threads:
            thread.start()
        while self._storing:
            yield from self._told(self._heard.get())
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Begin nothing more; what the network has done with is still stored."""
        self._stopped.set()
        for room in (self._ahead, self._behind, self._memory):
            room.close()
        self._loaded.put(None)
        for _ in range(self._lanes.writers):
            self._inferred.put(None)

    def rest(self, seconds: float) -> Iterator[Event]:
        """What still happens after a stop, for so long."""
        end = monotonic() + seconds
        while self._storing and (left := end - monotonic()) > 0:
            try:
                yield from self._told(self._heard.get(timeout=left))
            except Empty:
                return

    def cut(self) -> bool:
        """Store nothing more; whether something may be half-stored now."""
        self._cut.set()
        return self._storing > 0

    def _told(self, heard: Event | Over) -> Iterator[Event]:
        if not isinstance(heard, Over):
            yield heard
        elif heard.error is None:
            self._storing -= 1
        elif not isinstance(heard.error, StoppedError):
            raise heard.error

    def _workers(
        self, name: str, count: int, work: Callable[[], None]
    ) -> Generator[threading.Thread]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._heard.put(Over(error))

        for number in range(count):
            own = f"{name} {number + 1}" if count > 1 else name
            yield threading.Thread(target=run, name=own, daemon=True)

    def _read_all(self) -> None:
        while self._ahead.take():
            with self._next_study:
                planned = next(self._studies, None)
            if planned is None:
                break
            self._loaded.put(self._load(planned))
        self._loaded.put(None)

    def _load(self, planned: PlannedStudy) -> Loaded:
        row = opening_row(planned)
        if planned.action != "translate":
            return StudyDone(row)
        self._peaks.enter(row.name)
        self._heard.put(StudyStarted(planned))
        ticket = Ticket(planned, row, Stopwatch(row.name, self._record))
        return self._attempt(ticket, lambda: self._prepare(ticket))

    def _prepare(self, ticket: Ticket) -> PreparedStudy:
        task, study, watch = self._task, ticket.planned.study, ticket.watch
        with watch.time("read"):
            ticket.inputs = input_states(study)
        volume = read_study(study, task.settings, watch)
        with watch.time("prepare"):
            needed = footprint(volume, task.model.card, task.settings.patch).peak
        ticket.held = needed
        if not self._memory.take(needed):
            raise StoppedError
        return prepare_study(volume, task.model, task.settings, watch)

    def _infer_all(self) -> None:
        task, reading = self._task, self._lanes.readers
        with task.open_generator() as generator:
            self._heard.put(DeviceOpened(generator.device))
            translator = Translator(task.model, generator, task.settings)
            while reading and not self._stopped.is_set():
                reading -= not self._infer_next(translator)
        for _ in range(self._lanes.writers):
            self._inferred.put(None)

    def _infer_next(self, translator: Translator) -> bool:
        """Whether there was something to take; a reader's end is nothing."""
        loaded = self._loaded.get()
        self._ahead.give()
        if loaded is None:
            return False
        inferred = loaded if isinstance(loaded, StudyDone) else self._infer(translator, *loaded)
        if self._behind.take():
            self._inferred.put(inferred)
        return True

    def _infer(self, translator: Translator, ticket: Ticket, study: PreparedStudy) -> Inferred:
        tell = self._tell_tiles(ticket)
        return self._attempt(ticket, lambda: infer_study(study, translator, ticket.watch, tell))

    def _tell_tiles(self, ticket: Ticket) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            self._heard.put(TilesDone(ticket.row.name, done, total))
            if self._stopped.is_set():
                raise StoppedError

        return tell

    def _store_all(self) -> None:
        while self._store_next():
            pass
        self._heard.put(Over())

    def _store_next(self) -> bool:
        finished = self._finish_next()
        if finished is None:
            return False
        if not isinstance(finished, StudyDone):
            ticket, made = finished
            stored = self._attempt(ticket, lambda: self._store(ticket, made))
            finished = stored if isinstance(stored, StudyDone) else self._done(*stored)
        self._heard.put(finished)
        self._behind.give()
        return True

    def _finish_next(self) -> tuple[Ticket, Translated] | StudyDone | None:
        """The next result as a volume, without the arrays that it was made from."""
        inferred = self._inferred.get()
        if inferred is None or self._cut.is_set():
            return None
        if isinstance(inferred, StudyDone):
            return inferred
        ticket, study = inferred
        return self._attempt(ticket, lambda: finish_study(study, self._task.model, ticket.watch))

    def _store(self, ticket: Ticket, made: Translated) -> StudyReport:
        with ticket.watch.time("write"):
            self._task.store.put(ticket.planned, made.volume, ticket.inputs)
        return replace(
            ticket.row, status="translated", voxels=made.volume.voxels.size, tiles=made.tiles
        )

    def _attempt(
        self, ticket: Ticket, stage: Callable[[], Made]
    ) -> tuple[Ticket, Made] | StudyDone:
        """The one place that keeps a study's failure, of any kind, from the rest of the batch.

        Only text leaves it: the exception itself would keep the study's arrays alive.
        """
        try:
            return ticket, stage()
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            failure = failure_of(error, ticket.watch.stage)
        return self._done(ticket, replace(ticket.row, status="failed", failure=failure), trace)

    def _done(self, ticket: Ticket, row: StudyReport, trace: str | None = None) -> StudyDone:
        self._memory.give(ticket.held)
        row = replace(
            row,
            seconds=ticket.watch.total(),
            stages=dict(ticket.watch.seconds),
            peak_memory=self._peaks.leave(row.name),
        )
        return StudyDone(row, trace)

    def _record(self, span: Span) -> None:
        self._heard.put(Worked(span))


def opening_row(planned: PlannedStudy) -> StudyReport:
    """A study's row before anything was done about it; the last one too, if nothing is due."""
    row = StudyReport(
        name=str(planned.study.name),
        source=planned.study.files[0],
        output=planned.target,
        status="up to date",
    )
    if planned.refusal:
        return replace(row, status="failed", failure=planned.refusal)
    return row if planned.action == "keep" else replace(row, due=planned.reason)
