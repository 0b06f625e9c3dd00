"""Pipeline of three concurrent stages: one study is read, one translated, one stored."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic

from ...engine.cores import usable_cores
from ...engine.devices import Device
from ...engine.generator import SharedGenerator
from ...engine.whole_volume import VOLUMES_AT_A_TIME
from ...io.files.parts import remove_parts_of_this_process
from ..cycle import BackTranslator
from ..events import DeviceOpened, Event, opening_event
from ..host.memory import available_memory
from ..results.resume import PlannedStudy
from ..results.storing import DiskSpace
from ..whole_check import WholeCheck
from .concurrency import CommitBarrier, StoppedError, WeightedSemaphore
from .in_flight import DeviceLostError, PipelineResources
from .networks import Networks, maps_memory
from .outcomes import BatchEvents, Outcomes
from .source import JobKind, JobSource
from .stop_requests import StopRequests
from .study_run import StudyRun, make_network_ready

_TUNED_SHARE = 0.1
"""Time for further tuning at the end of a batch, as a share of the network's time on the batch."""

_LEAST_TUNING = 1.0
"""Seconds for further tuning below which there is none: the result of a single scan comes first."""

_READ, _INFER, _WRITE = "read", "infer", "write"
"""Names of the threads; several of one kind are numbered."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Limits of what is in flight at a time.

    host_bytes: memory of all studies together; a study that needs more is processed alone.
    readers, networks, writers: threads, each with one study at most. Two network threads keep a GPU
    busy: one study's patches are computed while the last rows of another are copied to the host.
    """

    host_bytes: int
    readers: int = 1
    networks: int = 1
    writers: int = 1


def concurrency_of(device: Device, sharing: int = 1) -> Concurrency:
    """Return the share of this machine for one of `sharing` devices.

    Memory is at most half of what is free. In ONNX Runtime the network needs all cores, so one
    study is read and one stored concurrently. A GPU needs many threads, most of them readers: one
    thread decompresses a file, several compress one.
    """
    memory = available_memory() // (2 * sharing)
    if device.kind != "cuda":
        return Concurrency(memory)
    cores = usable_cores() // sharing
    readers, writers = min(6, cores * 3 // 8), min(4, cores // 4)
    return Concurrency(memory, readers=max(1, readers), networks=2, writers=max(1, writers))


class StudyPipeline:
    """Threads that process studies from file to file.

    A failed study passes on as its row, so rows come in the order of the studies as long as there
    is one reader and one writer. The threads are daemons, so that the process may exit without
    them: only complete files ever appear under a result's name.
    """

    def __init__(
        self,
        kind: JobKind,
        source: JobSource,
        networks: Networks,
        concurrency: Concurrency,
        disk_space: DiskSpace,
        outcomes: Outcomes,
    ) -> None:
        self._kind, self._source, self._networks = kind, source, networks
        self._next_study = threading.Lock()
        self._concurrency = concurrency
        self._ahead, self._behind = (
            WeightedSemaphore(concurrency.readers),
            WeightedSemaphore(concurrency.writers),
        )
        self._loaded: SimpleQueue[PlannedStudy | StudyRun | None] = SimpleQueue()
        self._inferred: SimpleQueue[StudyRun | None] = SimpleQueue()
        self._events = BatchEvents(outcomes, (StoppedError,))
        self._requests, self._commits = StopRequests(), CommitBarrier()
        self._memory = WeightedSemaphore(concurrency.host_bytes)
        self._resources = PipelineResources(
            kind=kind,
            store=kind.store(source.record),
            disk_space=disk_space,
            memory=self._memory,
            on_event=self._events.report,
            commits=self._commits,
            requests=self._requests,
            whole_check=WholeCheck(kind.model, kind.options, maps_memory),
        )
        self._is_announced = kind.options.inference == "patches"
        self._reading, self._storing = concurrency.readers, concurrency.writers
        self._counting = threading.Lock()
        self._verifier = networks.verifier(kind.model)
        self._threads = [
            *self._workers(_READ, concurrency.readers, self._read_all),
            *self._workers(_INFER, 1, self._infer_all),
            *self._workers(
                _WRITE, concurrency.writers, self._store_all, self._end_with_last_writer
            ),
        ]

    @property
    def is_over(self) -> bool:
        """Whether all events have been delivered."""
        return self._events.is_over

    def start(self) -> None:
        """Start all threads, whose events `rest` yields."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the end of all threads."""
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Start no more studies; those that the network has finished are still stored."""
        self._events.expected = StoppedError, DeviceLostError
        self._requests.stop()
        self._memory.close()
        self._ahead.close()
        self._behind.close()
        self._loaded.put(None)
        self._end_writers()

    def cancel(self, study: str) -> None:
        """Cancel a study, which ends as interrupted at its next patch or stage; others continue."""
        self._requests.cancel(study)

    def rest(self, seconds: float = threading.TIMEOUT_MAX) -> Iterator[Event]:
        """Yield the remaining events for at most `seconds`; raise the error that ended a thread."""
        return self._events.listen(seconds)

    def abort(self) -> None:
        """Store nothing more, and remove partly written results; no part appears from then on."""
        self._commits.shut()
        remove_parts_of_this_process(self._source.record.place.output)

    def _workers(
        self,
        name: str,
        count: int,
        work: Callable[[], None],
        then: Callable[[], None] = lambda: None,
    ) -> Generator[threading.Thread]:
        """Yield the threads of a kind, not started.

        then: called after the work, also when it failed and the error was reported.
        """

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._events.fail(error)
            then()

        for number in range(1, count + 1):
            own = name if count == 1 else f"{name} {number}"
            yield threading.Thread(target=run, name=own, daemon=True)

    def _read_all(self) -> None:
        while self._ahead.acquire():
            with self._next_study:
                planned = self._source.take()
                if planned and planned.action == "translate" and not self._is_announced:
                    self._is_announced = True
                    self._loaded.put(planned)
            if planned is None:
                break
            self._loaded.put(self._load(planned))
        self._loaded.put(None)

    def _load(self, planned: PlannedStudy) -> StudyRun:
        run = StudyRun(planned, self._resources)
        run.load()
        return run

    def _infer_all(self) -> None:
        kind = self._kind
        if not kind.opens:
            self._infer(None, None)
            self._end_writers()
            return
        opening = self._networks.use(*kind.uses, progress=self._tune)
        with opening as (generator, *others), self._loss_reported():
            self._events.report(DeviceOpened(generator.open(kind.precision)))
            back_translator = None
            if kind.back:
                [returning] = others
                returning.open(kind.precision)
                back_translator = BackTranslator(kind.model, kind.back, returning, kind.options)
            begin = monotonic()
            self._infer_with(generator, back_translator)
            seconds = _TUNED_SHARE * (monotonic() - begin)
            for used in (generator, *others) if seconds >= _LEAST_TUNING else ():
                self._tune_further(used, seconds)
        self._end_writers()

    def _tune_further(self, generator: SharedGenerator, seconds: float) -> None:
        """Leave a network some time to find faster tactics for later starts, unless stopped."""

        def progress(what: str, share: float | None) -> None:
            if self._requests.is_stopped:
                raise StoppedError
            self._tune(what, share)

        with suppress(StoppedError):
            generator.tune(monotonic() + seconds, progress)

    def _infer_with(
        self, generator: SharedGenerator, back_translator: BackTranslator | None
    ) -> None:
        threads = self._concurrency.networks
        if threads > 1 and self._kind.options.inference == "volume":
            threads = VOLUMES_AT_A_TIME
        others = list(
            self._workers(
                f"{_INFER} more",
                threads - 1,
                lambda: self._infer(generator, back_translator),
            )
        )
        for other in others:
            other.start()
        self._infer(generator, back_translator)
        for other in others:
            other.join()

    @contextmanager
    def _loss_reported(self) -> Generator[None]:
        """Report a lost device before it is closed, as closing it may then never end."""
        try:
            yield
        except DeviceLostError as error:
            self._events.fail(error)
            raise

    def _tune(self, what: str, share: float | None) -> None:
        self._events.report(opening_event(what, share))

    def _infer(
        self, generator: SharedGenerator | None, back_translator: BackTranslator | None
    ) -> None:
        while (run := self._next_loaded(generator)) is not None:
            if not (run.is_over or self._source.may_begin(run.name)):
                self._requests.cancel(run.name)
            run.infer(generator, self._verifier, back_translator)
            if not (self._behind.acquire() and self._is_taken(run)):
                run.drop()
            del run  # its voxels would stay while the next study is awaited

    def _is_taken(self, run: StudyRun) -> bool:
        """Queue a study if a writer is left to take it, and return whether one is."""
        with self._counting:
            if self._storing:
                self._inferred.put(run)
            return bool(self._storing)

    def _next_loaded(self, generator: SharedGenerator | None) -> StudyRun | None:
        """Return the next study; None for each caller once all readers are done.

        The first volume of whole-volume inference is announced before it is read.
        """
        while not self._requests.is_stopped:
            loaded = self._loaded.get()
            if isinstance(loaded, PlannedStudy):
                make_network_ready(loaded, self._kind, generator)
                continue
            if loaded is not None:
                self._ahead.release()
                return loaded
            with self._counting:
                self._reading -= 1
                if self._reading <= 0:
                    self._loaded.put(None)
                    break
        return None

    def _store_all(self) -> None:
        while (run := self._finish_next()) is not None:
            run.store()
            del run  # its voxels would stay while the next study is awaited
            self._behind.release()

    def _end_with_last_writer(self) -> None:
        with self._counting:
            self._storing -= 1
            is_last = not self._storing
        if is_last:
            self._drop_remaining()
            self._networks.end_verifying()
            self._events.end()

    def _drop_remaining(self) -> None:
        """Drop studies that were queued after the None with which a stop ends the writers."""
        while not self._inferred.empty():
            if (run := self._inferred.get()) is not None:
                run.drop()

    def _finish_next(self) -> StudyRun | None:
        run = self._inferred.get()
        if run is None:
            return None
        if self._commits.is_shut:
            run.drop()
            return None
        run.finish(self._verifier)
        return run

    def _end_writers(self) -> None:
        for _ in range(self._concurrency.writers):
            self._inferred.put(None)
