"""Studies in flight: the state of each, its input files, and how it ends, successfully or not."""

import os
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ...engine.errors import CudaError
from ...io.errors import ScanError, UnreadableScanError
from ...io.reading import causes_named
from ...io.volume import Study
from ..events import Event, StudyDone, StudyStarted, Worked
from ..host.memory import PeakMeters, require_memory
from ..report.report import StudyReport, failure_of
from ..results.file_states import FileState, content_of
from ..results.resume import PlannedStudy
from ..results.written_ahead import WrittenAhead, WrittenSeries
from ..stopwatch import Span, Stopwatch
from ..study.translator import Translated
from ..study.volumes import StudyVolumes, notes_of_volumes
from .concurrency import CommitBarrier, StoppedError, WeightedSemaphore

Output = TypeVar("Output")


@dataclass(slots=True)
class StudyProgress:
    """Study in flight. inputs: states of its files before they were read. held: acquired bytes.

    planned: the planned work. row: report row so far. timer: timer of its stages, in seconds.
    hashed: waits until the files are hashed, and returns their states. ahead: results that are
    written while they are computed; series: the same for a series. volumes: reader of its scans,
    once reading has begun. translated: for a series with volumes passed on for writing, the first
    of them without its voxels, with the patch count of all.
    """

    planned: PlannedStudy
    row: StudyReport
    timer: Stopwatch
    inputs: tuple[FileState, ...] = ()
    held: int = 0
    hashed: Callable[[], tuple[FileState, ...]] = tuple
    ahead: tuple[WrittenAhead, ...] = ()
    series: tuple[WrittenSeries, ...] = ()
    volumes: StudyVolumes | None = None
    translated: Translated | None = None
    _noted: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def is_series(self) -> bool:
        """Whether the study has several volumes, which are translated one by one."""
        return self.volumes is not None and self.volumes.is_series

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep the results written ahead, unless the block fails."""
        try:
            yield
        except BaseException:
            self.discard_ahead()
            raise

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

    def timed(self, row: StudyReport) -> StudyReport:
        """Return a copy of a row with the timings so far, in seconds."""
        return replace(row, seconds=self.timer.total(), stages=dict(self.timer.seconds))


class InputFiles:
    """Files of a study as they were when this object was created. Any thread may call."""

    def __init__(self, study: Study) -> None:
        """Record the marks of the files. Raises ScanError."""
        self._study = study
        self._marks = self._marks_now()

    def states(self, go_on: Callable[[], None]) -> tuple[FileState, ...]:
        """Return the files' states with hashes. Raises ScanError, also if they changed meanwhile.

        go_on: called now and then; an exception that it raises ends the work.
        """
        with self.unchanged(), causes_named(self._study.files[0]):
            states = tuple(FileState.of(file, go_on=go_on) for file in self._study.files)
        for file, mark, state in zip(self._study.files, self._marks, states, strict=True):
            # Only this detects a replaced file with the same size and date.
            _require_unchanged(mark.st_ctime_ns == state.changed_ns, file)
        return states

    def confirmed(self, states: Sequence[FileState]) -> tuple[FileState, ...]:
        """Return the states, after checking that the files still have them once all is read.

        A file whose name, owner or permissions changed meanwhile is hashed again. Raises ScanError.
        """
        return states_again(self._study, states)

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Check at the end of the block that the files are unchanged.

        Raises UnreadableScanError if they changed, in place of any ScanError that this caused.
        """
        try:
            yield
        except ScanError as error:
            self._check(error)
            raise
        self._check(None)

    def _check(self, cause: ScanError | None) -> None:
        for file, was, now in zip(self._study.files, self._marks, self._marks_now(), strict=True):
            is_same = (was.st_size, was.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
            _require_unchanged(is_same, file, cause)

    def _marks_now(self) -> list[os.stat_result]:
        with causes_named(self._study.files[0]):
            return [file.stat() for file in self._study.files]


def states_again(study: Study, known: Iterable[FileState]) -> tuple[FileState, ...]:
    """Return the current states of a study's files; known: earlier ones, also under other names.

    A file whose marks differ is hashed again. Raises ScanError, also if the content of one changed.
    """
    with causes_named(study.files[0]):
        pairs = list(zip(study.files, known, strict=True))
        states = tuple(replace(state, name=file.name).again(file) for file, state in pairs)
    for now, (file, was) in zip(states, pairs, strict=True):
        _require_unchanged(now.sha256 == was.sha256, file)
    return states


def _require_unchanged(is_same: bool, file: Path, cause: ScanError | None = None) -> None:
    """Raise UnreadableScanError unless a file is the same as before."""
    if not is_same:
        raise UnreadableScanError(
            f"{file} changed while it was read; translate it again when it is complete."
        ) from cause


class StudyCancelledError(Exception):
    """Raised in a study that was cancelled, to end it where it is."""


class DeviceLostError(BaseException):
    """Raised when this process can no longer use its device; another takes over its studies."""


class StudiesInFlight:
    """Studies in flight of a pipeline, whose threads work on each study one at a time.

    memory: host bytes, which a study holds until it ends. on_event: callback for events. commits:
    barrier that results pass.
    """

    def __init__(
        self,
        memory: WeightedSemaphore,
        on_event: Callable[[Event], None],
        commits: CommitBarrier,
    ) -> None:
        self._memory = memory
        self._on_event = on_event
        self._commits = commits
        self._peaks = PeakMeters()
        self._is_stopped = False
        self._cancelled: set[str] = set()

    def stop(self) -> None:
        """End all unstored studies at their next patch, or while they wait for memory."""
        self._is_stopped = True
        self._memory.close()

    def cancel(self, study: str) -> None:
        """Cancel a study, which ends as interrupted at its next patch or stage."""
        self._cancelled.add(study)

    def uncancel(self, study: str) -> None:
        """Accept a study again that was cancelled earlier."""
        self._cancelled.discard(study)

    def begin(self, planned: PlannedStudy, row: StudyReport) -> StudyProgress:
        """Start a study with its report row so far."""
        self._peaks.start(row.name)
        self._on_event(StudyStarted(planned))
        return StudyProgress(planned, row, Stopwatch(row.name, self._record))

    def take_memory(self, progress: StudyProgress, foreseen: int) -> None:
        """Wait for the memory estimated from a study's headers, in bytes. Raises StoppedError."""
        progress.held = foreseen
        if not self._memory.acquire(foreseen):
            raise StoppedError

    def adjust_memory(self, progress: StudyProgress, needed: int) -> None:
        """Change a study's acquired memory to what it needs, in bytes, once it is read.

        Raises StudyCancelledError, StoppedError, and PreparationError if there can never be so many
        bytes.
        """
        require_memory(needed)
        self._memory.exchange(progress.held, needed)
        progress.held = needed
        self.check(progress)

    def check(self, progress: StudyProgress) -> None:
        """Raise StudyCancelledError or StoppedError if a study should not continue."""
        self._check_cancelled(progress)
        if self._is_stopped:
            raise StoppedError

    def stage(
        self, progress: StudyProgress, work: Callable[[], Output]
    ) -> tuple[StudyProgress, Output] | StudyDone:
        """Run a stage of a study and turn its failure, of any kind, into a report row.

        The only place that isolates the rest of the batch from a study's failure. Only the text of
        an exception is kept: the exception itself would keep the study's arrays alive.
        """
        try:
            with progress.kept():
                self._check_cancelled(progress)
                return progress, work()
        except StudyCancelledError:
            return self._done(progress, replace(progress.row, status="interrupted"))
        except Exception as error:
            if self._commits.is_shut:
                raise StoppedError from error
            if isinstance(error, CudaError) and error.is_sticky:
                raise DeviceLostError(str(error)) from error
            trace = "".join(traceback.format_exception(error))
            volume = progress.volumes.current if progress.volumes else ""
            failure = failure_of(error, progress.timer.stage, volume)
        return self._done(progress, replace(progress.row, status="failed", failure=failure), trace)

    def over(self, last: tuple[StudyProgress, StudyReport] | StudyDone) -> StudyDone:
        """Return the end of a study after its last stage, which returned its row."""
        return last if isinstance(last, StudyDone) else self._done(*last)

    def _check_cancelled(self, progress: StudyProgress) -> None:
        if progress.row.name in self._cancelled:
            raise StudyCancelledError

    def _done(
        self, progress: StudyProgress, row: StudyReport, trace: str | None = None
    ) -> StudyDone:
        if progress.volumes:
            progress.volumes.close()
        self._memory.release(progress.held)
        row = replace(progress.timed(row), peak_memory=self._peaks.finish(row.name))
        return StudyDone(row, trace)

    def _record(self, span: Span) -> None:
        self._on_event(Worked(span))
