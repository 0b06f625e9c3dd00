"""A batch in worker processes, one or more per device; a study goes to one that has room."""

import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from ...engine.devices import Device, in_a_process_of_its_own, with_half_the_memory
from ...engine.errors import EngineError
from ...io.files.parts import remove_leftovers
from ..events import DeviceOpened, Event, StudyDone, Worked
from ..report.report import Failure
from ..results.manifest import Manifest, ManifestEntry
from ..results.record_folder import OutputPlace
from ..results.resume import PlannedStudy
from ..retries import TRIES
from . import messages
from .messages import BatchNews, BatchOrder
from .outcomes import BatchEvents
from .pipe_worker import PipeWorker
from .pipeline import concurrency_of
from .process import WorkerProcess, device_of, ending, launch, process_names
from .source import BatchStudies, JobKind
from .supervisor import Restart, Supervisor
from .worker import LAST_MOMENT

_MOST_IN_VAIN = TRIES + 2
"""Workers of a device that may end in vain one after another.

More than the workers that one study can crash, first together with others and then alone.
"""


def pipe_workers(devices: Sequence[Device], kind: JobKind, place: OutputPlace) -> list[PipeWorker]:
    """Return a worker for each device, which may be named several times.

    place: output place of the manifest.
    """
    names = process_names(device.name for device in devices)
    return [
        PipeWorker(
            name=name,
            kind=replace(kind, checks_whole=name == names[0]),
            device=in_a_process_of_its_own(with_half_the_memory(device) if kind.back else device),
            place=place,
            concurrency=concurrency_of(device, sharing=len(devices)),
        )
        for name, device in zip(names, devices, strict=True)
    ]


class StartedWorkers(Protocol):
    """Worker processes that were started before their batch."""

    def take(self, job: PipeWorker, /) -> WorkerProcess[Any, Any] | None:
        """Send a worker its job, and return it; None if none of its name is left."""
        ...


@dataclass(slots=True)
class _AtWork:
    """State of a process.

    claimed: its claimed studies by name. finished: number of studies. has_device: whether its
    device has opened. trouble: the error it reported as its last message.
    """

    claimed: dict[str, PlannedStudy] = field(default_factory=dict[str, PlannedStudy])
    finished: int = 0
    has_device: bool = False
    trouble: str | None = None


class SharedBatch:
    """Owner of the worker processes of a batch.

    Studies of a process that dies go to another one, alone, to find out which of them was the
    cause. The process is replaced if its device had opened, unless too many die on that device one
    after another. studies: studies to translate. processes: at least one for each device.
    manifest: manifest of the output folder. spares: workers that were started already; with them,
    no worker's end is awaited: the command may end before they have closed their GPUs, or they are
    kept for the next batch. opened: names of devices whose opening was reported before; it is
    reported once for each device, not for each process.
    """

    def __init__(
        self,
        studies: BatchStudies,
        processes: Sequence[PipeWorker],
        manifest: Manifest,
        spares: StartedWorkers | None = None,
        opened: Collection[str] = (),
    ) -> None:
        self.outcomes = studies.outcomes
        self._studies = studies
        self._manifest = manifest
        self._at_work = {process.name: _AtWork() for process in processes}
        self._asking: deque[str] = deque()
        self._opened = {*opened}
        self._awaits_ends = spares is None
        self._trouble = ""
        self._is_stopped = False
        self._events = BatchEvents(self.outcomes)
        launches = {process.name: partial(_launched, process, spares) for process in processes}
        self._supervisor: Supervisor[BatchOrder, BatchNews] = Supervisor(
            launches, self._handle, self._on_end, _MOST_IN_VAIN
        )
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def run(self) -> Iterator[Event]:
        """Yield all events until the last study is over."""
        self._thread.start()
        yield from self._events.listen()

    def stop(self) -> None:
        """Start no more studies; those that the networks have finished are still stored."""
        self._is_stopped = True
        self._supervisor.post(lambda: self._end(messages.StopWork()))

    def rest(self, seconds: float = threading.TIMEOUT_MAX) -> Iterator[Event]:
        """Yield the events that follow a stop, for at most `seconds`."""
        return self._events.listen(seconds)

    def abort(self) -> None:
        """Store nothing more, end all processes, and remove partly written results."""
        self._supervisor.post(self._abort)
        if self._thread.is_alive():
            self._thread.join()
        remove_leftovers(self._manifest.output)

    def _supervise(self) -> None:
        try:
            self._supervisor.run()
            self._fail_waiting()
            self._events.end()
        except BaseException as error:
            self._events.fail(error)

    def _abort(self) -> None:
        self._is_stopped = True
        self._end(messages.StopStoring())
        self._supervisor.kill_in(LAST_MOMENT)

    def _end(self, order: messages.StopWork | messages.StopStoring) -> None:
        """Stop all workers, including those that wait for studies that others may release."""
        self._supervisor.stop(order)
        self._dispatch()

    def _handle(self, process: str, news: BatchNews) -> None:
        match news:
            case messages.StudyRequested():
                self._asking.append(process)
                self._dispatch()
            case messages.ResultMade(entry):
                self._supervisor.send(process, messages.ResultRecorded(self._record(entry)))
            case messages.Ended(trouble):
                self._at_work[process].trouble = trouble
                if not (trouble or self._awaits_ends):  # in trouble, a successor needs the GPU
                    self._supervisor.let_go(process)
            case messages.Happened(events):
                for event in events:
                    self._note(process, event)

    def _on_end(self, process: str, status: int, _seconds: float) -> Restart:
        """Requeue the studies that a process had claimed, unless the batch stops."""
        dead, self._at_work[process] = self._at_work[process], _AtWork()
        self._asking = deque(other for other in self._asking if other != process)
        self._trouble = dead.trouble or _death(process, status)
        if not self._is_stopped:
            claimed = dead.claimed
            counts = dead.has_device
            for planned in self._studies.requeue(
                claimed.values(), self._trouble, claimed, counts=counts
            ):
                self._fail(planned)
        if dead.claimed:
            remove_leftovers(self._manifest.output)
        may_open = dead.has_device or dead.trouble is None
        is_needed = self._studies.any_waiting and not self._is_stopped
        self._dispatch()
        if not (may_open and is_needed):
            return "none"
        return "at once" if dead.finished else "in vain"

    def _record(self, entry: ManifestEntry) -> OSError | None:
        self._studies.recorded.add(entry.output)
        try:
            self._manifest.append(entry)
        except OSError as error:
            return error
        return None

    def _note(self, process: str, event: Event) -> None:
        worker = self._at_work[process]
        match event:
            case DeviceOpened():
                worker.has_device = True
                if device_of(process) in self._opened:
                    return
                self._opened.add(device_of(process))
            case Worked(span):
                event = Worked(replace(span, track=f"{process}: {span.track}"))
            case StudyDone(row):
                worker.claimed.pop(row.name, None)
                worker.finished += 1
            case _:
                pass
        self._events.report(event)
        if isinstance(event, StudyDone):
            self._dispatch()

    def _dispatch(self) -> None:
        """Send waiting studies to workers that request one.

        Send the end of the batch once no claimed study is left that might be requeued.
        """
        if not self._is_stopped:
            self._asking = deque(one for one in self._asking if not self._assign_one(one))
        if self._is_stopped or not any(one.claimed for one in self._at_work.values()):
            while self._asking:
                self._supervisor.send(self._asking.popleft(), messages.StudyAssigned(None))

    def _assign_one(self, process: str) -> bool:
        planned = self._studies.take(self._at_work[process].claimed)
        if planned:
            self._supervisor.send(process, messages.StudyAssigned(planned))
        return planned is not None

    def _fail(self, planned: PlannedStudy) -> None:
        failure = Failure("engine", self._trouble, None)
        for each in (*planned.aliases, planned):
            row = replace(each.opening_row, status="failed", failure=failure)
            self._events.report(StudyDone(row))

    def _fail_waiting(self) -> None:
        """Fail all waiting studies, as no worker is left."""
        if self._is_stopped or not self._studies.any_waiting:
            return
        if not self.outcomes.any_ended:
            raise EngineError(self._trouble)
        for planned in self._studies.drain():
            self._fail(planned)


def _launched(
    process: PipeWorker, spares: StartedWorkers | None
) -> WorkerProcess[BatchOrder, BatchNews]:
    spare = spares.take(process) if spares else None
    return spare or launch(process, device=device_of(process.name))


def _death(process: str, status: int) -> str:
    return (
        f"The process for {process} ended in the middle of its work ({ending(status)}); see "
        "the system's log for memory or driver errors."
    )
