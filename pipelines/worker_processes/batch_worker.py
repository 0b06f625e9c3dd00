"""One of several processes that share a batch, each with a device of its own.

A worker asks for a study whenever it has room to read one, tells what happens, and has its results
recorded by the process that holds the manifest. When that process is gone, so is the worker.
"""

import os
import threading
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from ...engine.errors import EngineError
from ...engine.generator import AnyGenerator
from ...engine.model.model_file import Model
from ...engine.options import Precision, Progress
from ..cycle import BackTask
from ..events import DeviceOpened
from ..execution.network_opening import OpenGenerator, opened_for_a_batch
from ..execution.stages import StudyTask
from ..execution.study_pipeline import Concurrency, StudyPipeline
from ..execution.under_way import DeviceLostError
from ..host.processes import release_output
from ..results.manifest import ManifestEntry, Recipe
from ..results.record_folder import OutputPlace
from ..results.resume import PlannedStudy
from ..results.sidecar import SidecarMaker
from ..results.storing import Record, Store
from ..settings import TranslateOptions
from .launch import Channel
from .messages import (
    BatchNews,
    BatchOrder,
    Ended,
    ResultMade,
    ResultRecorded,
    StopStoring,
    StopWork,
    StudyGiven,
    StudyWanted,
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker needs to know.

    name: of the device, as the process counts that starts the worker. model: with its card.
    options: with none left open. open_generator: picklable, with the device in it as the worker
    counts. precisions: which there are on it. place: of the manifest.
    recipe: what results are made with. concurrency: this worker's part of the machine. back: the
    model that leads results back, and open_back: as open_generator, for that; None without one.
    """

    name: str
    model: Model
    options: TranslateOptions
    open_generator: OpenGenerator
    precisions: tuple[Precision, ...]
    place: OutputPlace
    recipe: Recipe
    concurrency: Concurrency
    back: Model | None = None
    open_back: OpenGenerator | None = None

    def task(self, record: Record, open_generator: OpenGenerator | None) -> StudyTask:
        """What is done with every study, each recorded there; without a network, if need be."""
        share = open_generator and opened_for_a_batch(open_generator, self.precisions)
        back = None
        if self.back and self.open_back:
            share_back = opened_for_a_batch(self.open_back, self.precisions)
            back = BackTask(self.back, share_back)
        return StudyTask(
            model=self.model,
            options=self.options,
            share_generator=share,
            store=Store(
                record,
                self.recipe,
                self.model.card,
                SidecarMaker.of(self.model.card, self.model.sha256, self.options),
            ),
            hands_over=True,
            back=back,
        )


class BatchClient:
    """What all threads of a worker have from the process that holds studies and manifest."""

    def __init__(self, channel: Channel[BatchNews, BatchOrder], place: OutputPlace) -> None:
        self.place = place
        self._channel = channel
        self._recording = threading.Lock()
        self._given: SimpleQueue[PlannedStudy | None] = SimpleQueue()
        self._answers: SimpleQueue[OSError | None] = SimpleQueue()

    def studies(self) -> abc.Iterator[PlannedStudy]:
        """Studies as they are given out."""
        while True:
            self._channel.send(StudyWanted())
            planned = self._given.get()
            if planned is None:
                return
            yield planned

    def append(self, entry: ManifestEntry) -> None:
        """Have an entry recorded, on disk before this returns. Raises OSError."""
        with self._recording:
            self._channel.send(ResultMade(entry))
            error = self._answers.get()
        if error:
            raise error

    def obey(self, pipeline: StudyPipeline) -> None:
        """Take what the supervisor says; without one, end the process on the spot."""
        while True:
            try:
                order = self._channel.receive()
            except EOFError:
                os._exit(1)
            match order:
                case StudyGiven(planned):
                    self._given.put(planned)
                case ResultRecorded(error):
                    self._answers.put(error)
                case StopWork():
                    pipeline.stop()
                case StopStoring():
                    pipeline.abort()


def work(setup: Setup, channel: Channel[BatchNews, BatchOrder]) -> None:
    """Translate what is given out until there is no more."""
    client = BatchClient(channel, setup.place)

    @contextmanager
    def opened(precision: Precision, progress: Progress) -> abc.Generator[AnyGenerator]:
        with setup.open_generator(precision, progress) as generator:
            channel.send(DeviceOpened(generator.device))  # before a study can end the process
            yield generator

    pipeline = StudyPipeline(setup.task(client, opened), client.studies(), setup.concurrency)
    threading.Thread(target=client.obey, args=(pipeline,), daemon=True).start()
    trouble = None
    try:
        for event in pipeline.run():
            channel.send(event)
    except (EngineError, DeviceLostError) as error:
        trouble = str(error)
    if trouble is None:
        release_output()
    channel.send(Ended(trouble))
