"""Study in flight: its row, its memory, and how it ends, successfully or not."""

import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...engine.errors import CudaError
from ..events import Event, StudyDone, StudyStarted, Worked
from ..host.memory import PeakMeters, require_memory
from ..report.report import failure_of
from ..results.file_states import FileState, content_of
from ..results.resume import PlannedStudy
from ..results.storing import DiskSpace, Store
from ..results.written_ahead import WrittenAhead, WrittenSeries
from ..stopwatch import Span, Stopwatch
from ..study.volumes import StudyVolumes, notes_of_volumes
from ..whole_check import WholeCheck
from .concurrency import CommitBarrier, StoppedError, WeightedSemaphore
from .host_arrays import HostArrays
from .source import JobKind
from .stop_requests import StopRequests, StudyCancelledError


class DeviceLostError(BaseException):
    """Raised when this process can no longer use its device; another takes over its studies."""


@dataclass(frozen=True, slots=True)
class PipelineResources:
    """Resources that the studies of a pipeline share.

    kind: kind of its jobs. store: store of the results. disk_space: space for them. memory:
    semaphore of host bytes, which a study holds until it ends. on_event: callback for events.
    commits: barrier that results pass. requests: requests to end studies. whole_check: comparison
    of a first study with its whole volume. peaks: meters of the studies' memory. arrays: memory of
    large arrays.
    """

    kind: JobKind
    store: Store
    disk_space: DiskSpace
    memory: WeightedSemaphore
    on_event: Callable[[Event], None]
    commits: CommitBarrier
    requests: StopRequests
    whole_check: WholeCheck
    peaks: PeakMeters = field(default_factory=PeakMeters)
    arrays: HostArrays = field(default_factory=HostArrays)

    def record(self, span: Span) -> None:
        """Report a span of work."""
        self.on_event(Worked(span))


class StudyProgress:
    """Progress of one study; one thread at a time works on it.

    planned: the planned work. row: report row so far. timer: timer of its stages, in seconds.
    inputs: states of its files before they were read. hashed: waits until the files are hashed, and
    returns their states. ahead: results that are written while they are computed; series: the same
    for a series. volumes: reader of its scans, once reading has begun. ends: once it is over, what
    to report, its aliases first.
    """

    def __init__(self, planned: PlannedStudy, resources: PipelineResources) -> None:
        self.planned = planned
        self.row = planned.opening_row
        self.timer = Stopwatch(self.row.name, resources.record)
        self.inputs: tuple[FileState, ...] = ()
        self.hashed: Callable[[], tuple[FileState, ...]] = tuple
        self.ahead: tuple[WrittenAhead, ...] = ()
        self.series: tuple[WrittenSeries, ...] = ()
        self.volumes: StudyVolumes | None = None
        self.ends: tuple[StudyDone, ...] = ()
        self._resources = resources
        self._held = 0
        self._noted: list[tuple[int, str]] = []
        self._trace: str | None = None

    @property
    def is_series(self) -> bool:
        """Whether the study has several volumes, which are translated one by one."""
        return self.volumes is not None and self.volumes.is_series

    def begin(self) -> None:
        """Measure the study's memory from now on, and report its start."""
        self._resources.peaks.start(self.row.name)
        self._resources.on_event(StudyStarted(self.planned))

    def take_memory(self, foreseen: int) -> None:
        """Wait for the memory estimated from the study's headers, in bytes. Raises StoppedError."""
        self._held = foreseen
        if not self._resources.memory.acquire(foreseen):
            raise StoppedError

    def adjust_memory(self, needed: int) -> None:
        """Change the acquired memory to what the study needs, in bytes, once it is read.

        Raises StudyCancelledError, StoppedError, and PreparationError if there can never be so many
        bytes.
        """
        require_memory(needed)
        self._resources.memory.exchange(self._held, needed)
        self._held = needed
        self.check()

    def check(self) -> None:
        """Raise StudyCancelledError or StoppedError if the study should not continue."""
        self._resources.requests.check(self.row.name)

    def stage(self, work: Callable[[], None]) -> bool:
        """Run a stage of the study; return False after a failure of any kind, which is in the row.

        The only place that isolates the rest of the batch from a study's failure. Only the text of
        an exception is kept: the exception itself would keep the study's arrays alive.
        """
        try:
            with self._kept():
                self._resources.requests.check_cancelled(self.row.name)
                work()
            return True
        except StudyCancelledError:
            self.row = replace(self.row, status="interrupted")
        except Exception as error:
            if self._resources.commits.is_shut:
                raise StoppedError from error
            if isinstance(error, CudaError) and error.is_sticky:
                raise DeviceLostError(str(error)) from error
            self._trace = "".join(traceback.format_exception(error))
            volume = self.volumes.current if self.volumes else ""
            failure = failure_of(error, self.timer.stage, volume)
            self.row = replace(self.row, status="failed", failure=failure)
        return False

    def end(self, aliases: Iterable[StudyDone] = ()) -> None:
        """End the study with its row so far, and release its memory."""
        if self.volumes:
            self.volumes.close()
        self._resources.memory.release(self._held)
        peak = self._resources.peaks.finish(self.row.name)
        seconds, stages = self.timer.total(), dict(self.timer.seconds)
        row = replace(self.row, seconds=seconds, stages=stages, peak_memory=peak)
        self.ends = (*aliases, StudyDone(row, self._trace))

    def discard_ahead(self) -> None:
        """Remove what was written ahead for a result that will not be stored."""
        for ahead in self.ahead:
            ahead.cancel()
        self.ahead = self.series = ()

    def take_inputs(self) -> None:
        """Wait for the files' states. Raises ScanError, also if a file changed before hashing."""
        self.timer.stage = "read"
        self.inputs = self.hashed()
        self.row = replace(self.row, source_content=content_of(self.inputs))

    def note(self, *notes: str) -> None:
        """Add notes for the user on the study, or on the volume that was read last."""
        if self.volumes is None or not self.volumes.is_series:
            self.row = replace(self.row, notes=(*self.row.notes, *notes))
            return
        self._noted += [(self.volumes.number, note) for note in notes]
        on_volumes = notes_of_volumes(self._noted, self.volumes.count)
        self.row = replace(self.row, notes=(*self.planned.opening_row.notes, *on_volumes))

    @property
    def notes_of_translation(self) -> tuple[str, ...]:
        """Notes beyond those with which the study was found, and that of its cycle error, which
        later runs judge again.
        """
        known = {*self.planned.opening_row.notes, self.row.cycle.note if self.row.cycle else ""}
        return tuple(note for note in self.row.notes if note not in known)

    @contextmanager
    def _kept(self) -> Generator[None]:
        """Keep the results written ahead, unless the block fails."""
        try:
            yield
        except BaseException:
            self.discard_ahead()
            raise
