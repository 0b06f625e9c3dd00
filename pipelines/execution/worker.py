"""One of several processes that share a batch, each with a device of its own.

A worker asks for a study whenever it has room to read one, tells what happens, and has its results
recorded by the process that holds the manifest. When that process is gone, so is the worker.
"""

import os
import pickle
import signal
import sys
import threading
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TypeAlias, cast

from ...engine.cuda.plan_cache import Progress
from ...engine.errors import EngineError
from ...engine.generator import Generator
from ...engine.model.model import Model
from ...engine.options import Precision
from ..progress.events import DeviceOpened, Event
from ..results.manifest import Entry, Place, Recipe
from ..results.resume import PlannedStudy
from ..results.storing import Store
from ..settings import Extras, TranslateSettings
from .stages import DeviceLostError, OpenGenerator, Task
from .study_pipeline import Conveyor, Lanes


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker needs to know. open_generator: picklable, with the device in it."""

    name: str
    model: Model
    settings: TranslateSettings
    open_generator: OpenGenerator
    precisions: tuple[Precision, ...]
    place: Place
    recipe: Recipe
    extras: Extras
    lanes: Lanes


@dataclass(frozen=True, slots=True)
class Wanted:
    """To the holder: a study is wanted."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """To the holder: an entry is to be recorded."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Ended:
    """To the holder: the worker is done. trouble: one sentence if that is before its time."""

    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """To the worker: a study, or None if there are no more."""

    planned: PlannedStudy | None


@dataclass(frozen=True, slots=True)
class Answered:
    """To the worker: how recording went."""

    error: OSError | None


@dataclass(frozen=True, slots=True)
class Stop:
    """To the worker: begin nothing more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """To the worker: store nothing more."""


FromWorker: TypeAlias = Event | Wanted | Recorded | Ended
ToWorker: TypeAlias = Given | Answered | Stop | Cut


class Line:
    """The connection to the holder of the manifest, for all threads of a worker."""

    def __init__(self, connection: "Connection[FromWorker, ToWorker]", place: Place) -> None:
        self.place = place
        self._connection = connection
        self._sending, self._recording = threading.Lock(), threading.Lock()
        self._given: SimpleQueue[PlannedStudy | None] = SimpleQueue()
        self._answers: SimpleQueue[OSError | None] = SimpleQueue()

    def send(self, message: FromWorker) -> None:
        """Tell the holder something."""
        with self._sending:
            self._connection.send(message)

    def studies(self) -> abc.Iterator[PlannedStudy]:
        """Studies as they are given out."""
        while True:
            self.send(Wanted())
            planned = self._given.get()
            if planned is None:
                return
            yield planned

    def append(self, entry: Entry) -> None:
        """Have an entry recorded, on disk before this returns. Raises OSError."""
        with self._recording:
            self.send(Recorded(entry))
            error = self._answers.get()
        if error:
            raise error

    def receive(self, stop: abc.Callable[[], None], cut: abc.Callable[[], None]) -> None:
        """Take what the holder says; without a holder, end the process on the spot."""
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            match message:
                case Given(planned):
                    self._given.put(planned)
                case Answered(error):
                    self._answers.put(error)
                case Stop():
                    stop()
                case Cut():
                    cut()


def work(connection: "Connection[FromWorker, ToWorker]", setup: Setup) -> None:
    """Translate what is given out until there is no more."""
    line = Line(connection, setup.place)
    store = Store(line, setup.recipe, setup.model.card)

    @contextmanager
    def opened(precision: Precision, progress: Progress) -> abc.Generator[Generator]:
        with setup.open_generator(precision, progress) as generator:
            line.send(DeviceOpened(generator.device))  # before a study can end the process
            yield generator

    task = Task(
        model=setup.model,
        settings=setup.settings,
        open_generator=opened,
        store=store,
        precisions=setup.precisions,
        extras=setup.extras,
        hands_over=True,
    )
    conveyor = Conveyor(task, line.studies(), setup.lanes)
    orders = conveyor.stop, conveyor.cut
    threading.Thread(target=line.receive, args=orders, daemon=True).start()
    trouble = None
    try:
        for event in conveyor.run():
            line.send(event)
    except (EngineError, DeviceLostError) as error:
        trouble = str(error)
    line.send(Ended(trouble))


def main() -> None:
    """The process; its argument is the descriptor of the connection, its input a path and a setup.

    Signals are the holder's business, which stops its workers in order or is gone: a terminal's
    reach no worker, as each has a session of its own, and a service manager's are passed over.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection = cast("Connection[FromWorker, ToWorker]", Connection(int(sys.argv[1])))
    sys.path[:] = pickle.load(sys.stdin.buffer)
    work(connection, pickle.load(sys.stdin.buffer))
    sys.stderr.flush()
    os._exit(0)


def command(descriptor: int) -> list[str]:
    """What starts a worker, with this interpreter and nothing of the working directory."""
    start = "from cuda_cyclegan.pipelines.execution.worker import main; main()"
    return [sys.executable, "-P", "-c", start, str(descriptor)]
