"""Studies under way: what is known of each, and how it leaves, done or not."""

import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ...engine.errors import CudaError
from ..events import Event, StudyDone, StudyStarted, Worked
from ..host.memory import PeakMeters, require_memory
from ..report.report import StudyReport, failure_of
from ..results.manifest import FileState, content_of
from ..results.resume import PlannedStudy
from ..results.written_ahead import WrittenAhead, WrittenSeries
from ..stopwatch import Span, Stopwatch
from ..study.translator import Translated
from ..study.volumes import StudyVolumes, notes_of_volumes
from .concurrency import CommitBarrier, StoppedError, WeightedSemaphore

Made = TypeVar("Made")


@dataclass(slots=True)
class StudyProgress:
    """A study under way. inputs: its files before they were read. held: bytes that it was given.

    planned: what is to be done. row: what is known of the outcome. watch: seconds of its stages.
    hashed: waits until the files are hashed, and gives their states. ahead: what of its results is
    written while they are made; series: the same of a series. volumes: by which its scans are read,
    once that has begun. made: of the volumes of a series that are handed on to be written, the
    first without its voxels, with the tiles of all.
    """

    planned: PlannedStudy
    row: StudyReport
    watch: Stopwatch
    inputs: tuple[FileState, ...] = ()
    held: int = 0
    hashed: Callable[[], tuple[FileState, ...]] = tuple
    ahead: tuple[WrittenAhead, ...] = ()
    series: tuple[WrittenSeries, ...] = ()
    volumes: StudyVolumes | None = None
    made: Translated | None = None
    _noted: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def is_series(self) -> bool:
        """Whether it has several volumes, which are translated one by one."""
        return self.volumes is not None and self.volumes.is_series

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep what is written ahead of the result, unless the block fails."""
        try:
            yield
        except BaseException:
            self.leave_ahead()
            raise

    def leave_ahead(self) -> None:
        """Remove what was written ahead of a result that will not be stored."""
        for ahead in self.ahead:
            ahead.leave()
        self.ahead = self.series = ()

    def take_inputs(self) -> None:
        """Have the files' states. Raises ScanError, also if a file changed before it was hashed."""
        self.watch.stage = "read"
        self.inputs = self.hashed()
        self.row = replace(self.row, source_content=content_of(self.inputs))

    def note(self, *notes: str) -> None:
        """What a user should know of it, or of the volume that was read last."""
        if self.volumes is None or not self.volumes.is_series:
            self.row = replace(self.row, notes=(*self.row.notes, *notes))
            return
        self._noted += [(self.volumes.number, note) for note in notes]
        on_volumes = notes_of_volumes(self._noted, self.volumes.count)
        self.row = replace(self.row, notes=(*self.planned.opening_row.notes, *on_volumes))

    def timed(self, row: StudyReport) -> StudyReport:
        """A row with the seconds so far."""
        return replace(row, seconds=self.watch.total(), stages=dict(self.watch.seconds))


class LeftError(Exception):
    """A study is left where it stands, since nobody wants it any more."""


class DeviceLostError(BaseException):
    """The device is of no more use to this process; what is under way is left to another."""


class StudiesUnderWay:
    """Called by the threads of a pipeline, each study by one at a time.

    memory: host bytes, which a study holds until it leaves. tell: what hears the events. commits:
    what results pass.
    """

    def __init__(
        self,
        memory: WeightedSemaphore,
        tell: Callable[[Event], None],
        commits: CommitBarrier,
    ) -> None:
        self._memory = memory
        self._tell = tell
        self._commits = commits
        self._peaks = PeakMeters()
        self._is_stopped = False
        self._left: set[str] = set()

    def stop(self) -> None:
        """End all that is not stored yet at its next tile, or where it waits for memory."""
        self._is_stopped = True
        self._memory.close()

    def leave(self, study: str) -> None:
        """Let a study end, interrupted, at its next tile or stage."""
        self._left.add(study)

    def want(self, study: str) -> None:
        """Have a study again that was left when it was here before."""
        self._left.discard(study)

    def begin(self, planned: PlannedStudy, row: StudyReport) -> StudyProgress:
        """Start a study, of which a row is known so far."""
        self._peaks.enter(row.name)
        self._tell(StudyStarted(planned))
        return StudyProgress(planned, row, Stopwatch(row.name, self._record))

    def take_memory(self, progress: StudyProgress, foreseen: int) -> None:
        """Wait until a study may have what its headers let expect. Raises StoppedError."""
        progress.held = foreseen
        if not self._memory.acquire(foreseen):
            raise StoppedError

    def settle_memory(self, progress: StudyProgress, needed: int) -> None:
        """Have a study hold what it needs in the end, once it is read.

        Raises LeftError, StoppedError, and PreparationError if there never will be so many bytes.
        """
        require_memory(needed)
        self._memory.exchange(progress.held, needed)
        progress.held = needed
        self.check(progress)

    def check(self, progress: StudyProgress) -> None:
        """Raise LeftError or StoppedError if a study is not to be gone on with."""
        self._check_wanted(progress)
        if self._is_stopped:
            raise StoppedError

    def stage(
        self, progress: StudyProgress, work: Callable[[], Made]
    ) -> tuple[StudyProgress, Made] | StudyDone:
        """The one place that keeps a study's failure, of any kind, from the rest of the batch.

        Only text leaves it: the exception itself would keep the study's arrays alive.
        """
        try:
            with progress.kept():
                self._check_wanted(progress)
                return progress, work()
        except LeftError:
            return self._done(progress, replace(progress.row, status="interrupted"))
        except Exception as error:
            if self._commits.is_shut:
                raise StoppedError from error
            if isinstance(error, CudaError) and error.is_sticky:
                raise DeviceLostError(str(error)) from error
            trace = "".join(traceback.format_exception(error))
            volume = progress.volumes.at_hand if progress.volumes else ""
            failure = failure_of(error, progress.watch.stage, volume)
        return self._done(progress, replace(progress.row, status="failed", failure=failure), trace)

    def over(self, last: tuple[StudyProgress, StudyReport] | StudyDone) -> StudyDone:
        """A study behind its last stage, which gave its row."""
        return last if isinstance(last, StudyDone) else self._done(*last)

    def _check_wanted(self, progress: StudyProgress) -> None:
        if progress.row.name in self._left:
            raise LeftError

    def _done(
        self, progress: StudyProgress, row: StudyReport, trace: str | None = None
    ) -> StudyDone:
        if progress.volumes:
            progress.volumes.close()
        self._memory.release(progress.held)
        row = replace(progress.timed(row), peak_memory=self._peaks.leave(row.name))
        return StudyDone(row, trace)

    def _record(self, span: Span) -> None:
        self._tell(Worked(span))
