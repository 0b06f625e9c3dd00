"""What is done with one study at each stage of its way, and how it leaves when it fails."""

import threading
import traceback
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from ...engine.cuda.plan_cache import Progress
from ...engine.errors import CudaError, EngineError
from ...engine.generator import AnyGenerator
from ...engine.model.model import Model
from ...engine.options import Precision
from ...engine.recovery import SharedGenerator, shared_generator
from ...io.errors import ScanError
from ...io.file_headers import read_grid
from ...io.volume import Volume
from ...io.writing import map_beside
from ..cycle.way_back import BackTask, LedBack, WayBack, host_bytes, plan_back
from ..errors import PreparationError
from ..host.arrays import HostArrays
from ..host.memory import PeakMeters
from ..opening import maps_memory
from ..progress.events import Event, StudyDone, StudyStarted, TilesDone, Worked, unit_of
from ..report.failures import failure_of
from ..report.report import StudyReport
from ..results.aliases import alias_note, states_again
from ..results.input_files import InputFiles
from ..results.manifest import FileState, content_of
from ..results.resume import PlannedStudy, preview_of, result_files
from ..results.room import Room
from ..results.storing import Store
from ..results.written_ahead import WrittenAhead
from ..settings import TranslateOptions, TranslateSettings
from ..stopwatch import Span, Stopwatch
from ..study.finished_preview import preview_from_files
from ..study.plan import StudyPlan, model_extents
from ..study.translation import (
    InferredStudy,
    OnTiles,
    OpenModel,
    PreparedStudy,
    Translated,
    finish_study,
    infer_spread,
    infer_study,
    plan_read_study,
    prepare_study,
    read_study,
)
from ..study.verification import (
    StudyVerifier,
    check_verified,
    study_verifier,
    volume_again_bytes,
)
from ..study.volume_at_once import make_ready
from .concurrency import CommitBarrier, StoppedError, WeightedSemaphore, running_in_background

Made = TypeVar("Made")
OpenGenerator: TypeAlias = Callable[[Precision, Progress], AbstractContextManager[AnyGenerator]]
"""Opens the network in some precision, and tells of the search for plans."""
ShareGenerator: TypeAlias = Callable[[Progress], AbstractContextManager[SharedGenerator]]
"""Lets the threads of a batch have the network, which tells of the search for plans."""
ShareVerifier: TypeAlias = Callable[[Model], AbstractContextManager[StudyVerifier]]
"""Lets them have what computes tiles again."""


def verifier_of_a_batch(model: Model) -> AbstractContextManager[StudyVerifier]:
    """What computes tiles again for one batch only."""
    return study_verifier(model, maps_memory)


def opened_for_a_batch(
    open_generator: OpenGenerator, precisions: Collection[Precision] = ()
) -> ShareGenerator:
    """The network of one batch only. precisions: which there are on the device."""
    return lambda progress: shared_generator(
        lambda precision: open_generator(precision, progress), precisions
    )


@dataclass(frozen=True, slots=True)
class StudyTask:
    """What is done with every study.

    options: with none left open. hands_over: whether the study over which a device is lost is left
    to another process. back: what leads results back; None where no cycle check is asked for.
    may_begin: asked about each study, by its name, when the network could begin with it. model:
    with its card. share_generator: opens the network; None where no study is to be translated.
    store: where results go. share_verifier: what computes tiles of the model's results again.
    room: there, if something is known of it from studies before these.
    """

    model: Model
    options: TranslateOptions
    share_generator: ShareGenerator | None
    store: Store
    hands_over: bool = False
    may_begin: Callable[[str], bool] = lambda _: True
    share_verifier: ShareVerifier = verifier_of_a_batch
    back: BackTask | None = None
    room: Room | None = None

    @property
    def settings(self) -> TranslateSettings:
        """What changes its results."""
        return self.options.settings()

    @property
    def precision(self) -> Precision:
        """In which the network starts."""
        return self.settings.precision


@dataclass(slots=True)
class StudyProgress:
    """A study under way. inputs: its files before they were read. held: bytes that it was given.

    planned: what is to be done. row: what is known of the outcome. watch: seconds of its stages.
    hashed: waits until the files are hashed, and gives their states. ahead: what of its result is
    written while that is made.
    """

    planned: PlannedStudy
    row: StudyReport
    watch: Stopwatch
    inputs: tuple[FileState, ...] = ()
    held: int = 0
    hashed: Callable[[], tuple[FileState, ...]] = tuple
    ahead: WrittenAhead | None = None

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
        if self.ahead is not None:
            self.ahead.leave()
            self.ahead = None

    def take_inputs(self) -> None:
        """Have the files' states. Raises ScanError, also if a file changed before it was hashed."""
        self.watch.stage = "read"
        self.inputs = self.hashed()
        self.row = replace(self.row, source_content=content_of(self.inputs))

    def timed(self, row: StudyReport) -> StudyReport:
        """A row with the seconds so far."""
        return replace(row, seconds=self.watch.total(), stages=dict(self.watch.seconds))


class LeftError(Exception):
    """A study is left where it stands, since nobody wants it any more."""


class DeviceLostError(BaseException):
    """The device is of no more use to this process; what is under way is left to another."""


Loaded: TypeAlias = tuple[StudyProgress, PreparedStudy] | StudyDone
Inferred: TypeAlias = tuple[StudyProgress, InferredStudy | LedBack] | StudyDone
Finished: TypeAlias = tuple[StudyProgress, Translated] | StudyDone


class StudyStages:
    """Called by the threads of a pipeline, each study by one at a time.

    Everything returns a study that goes on, with its ticket, or one that is over. memory: host
    bytes. tell: what hears the events. commits: what results pass.
    """

    def __init__(
        self,
        task: StudyTask,
        memory: WeightedSemaphore,
        tell: Callable[[Event], None],
        commits: CommitBarrier,
    ) -> None:
        self._task = task
        self._commits = commits
        self._memory = memory
        self._arrays = HostArrays()
        self._room = task.room or Room(task.store.record.place.output)
        # Each study's preparation takes several cores, and the network waits for the first only.
        self._preparing = threading.Lock()
        self._tell = tell
        self._peaks = PeakMeters()
        self._stopped = threading.Event()
        self._left: set[str] = set()
        self._aliases: dict[str, tuple[PlannedStudy, ...]] = {}

    def stop(self) -> None:
        """End all that is not stored yet at its next tile, or where it waits for memory."""
        self._stopped.set()
        self._memory.close()

    def leave(self, study: str) -> None:
        """Let a study end, interrupted, at its next tile or stage."""
        self._left.add(study)

    def load(self, planned: PlannedStudy) -> Loaded:
        """Read and prepare a study, once there is memory for it; if nothing is due, it is over."""
        row = planned.opening_row
        self._left.discard(row.name)  # said of it when it was here before
        if planned.action == "keep":
            return StudyDone(replace(row, preview=self._preview_of(planned)))
        if planned.action == "refuse":
            return StudyDone(row)
        if planned.action == "preview":
            return self._with_preview(planned, row)
        self._peaks.enter(row.name)
        self._aliases[row.name] = planned.aliases
        self._tell(StudyStarted(planned))
        ticket = StudyProgress(planned, row, Stopwatch(row.name, self._record))
        return self._attempt(ticket, lambda: self._prepare(ticket))

    def _with_preview(self, planned: PlannedStudy, row: StudyReport) -> StudyDone:
        """Draw the preview of a result that is up to date; the network has no part in it."""
        self._peaks.enter(row.name)
        self._tell(StudyStarted(planned))
        ticket = StudyProgress(planned, row, Stopwatch(row.name, self._record))
        drawn = self._attempt(ticket, lambda: self._draw(ticket))
        return drawn if isinstance(drawn, StudyDone) else self._done(*drawn)

    def _draw(self, ticket: StudyProgress) -> StudyReport:
        task, planned, watch = self._task, ticket.planned, ticket.watch
        task.store.record.place.check()
        picture = preview_from_files(
            planned.study,
            planned.targets,
            task.model.card,
            task.options,
            watch,
            self._arrays.empty,
            ticket.row.warning,
        )
        with watch.time("write"):
            task.store.put_preview(planned, picture, self._commits)
        return replace(ticket.row, preview=self._preview_of(planned), drawn=True)

    def make_ready(self, planned: PlannedStudy, generator: SharedGenerator | None) -> None:
        """Let the network take the memory for a volume while that is read.

        What is in the way of it is told of the study itself, once it is read. The slices of a DICOM
        series tell their grid no sooner.
        """
        scan = planned.study.channels[0]
        if generator is None or scan.format == "dicom":
            return
        with suppress(ScanError, PreparationError, EngineError):
            grid = read_grid(scan)
            i, j, k = grid.extents[:3]
            extents = model_extents((i, j, k), grid.affine, self._task.model.card)
            generator.do(lambda network: make_ready(network, extents), self._task.precision)

    def infer(
        self, loaded: Loaded, generator: SharedGenerator | None, way_back: WayBack | None = None
    ) -> Inferred:
        """Run the network on a study, and on its result the one that leads back, if any does."""
        if isinstance(loaded, StudyDone):
            return loaded
        if generator is None:
            raise RuntimeError("A study is to be translated, and no network was to be opened.")
        ticket, study = loaded
        if not self._task.may_begin(ticket.row.name):
            self.leave(ticket.row.name)

        unit = unit_of(study.prepared.plan)

        def on_tiles(done: int, total: int) -> None:
            self._tell(TilesDone(ticket.row.name, done, total, unit))
            self._check_wanted(ticket)
            if self._stopped.is_set():
                raise StoppedError

        if way_back is None:
            return self._attempt(ticket, lambda: self._infer(ticket, study, generator, on_tiles))
        return self._attempt(
            ticket, lambda: self._forth_and_back(ticket, study, generator, way_back, on_tiles)
        )

    def finish(self, inferred: Inferred, verifier: StudyVerifier) -> Finished:
        """Bring a study back onto its scan's grid."""
        if isinstance(inferred, StudyDone):
            return inferred
        ticket, study = inferred
        return self._attempt(ticket, lambda: self._finish(ticket, study, verifier))

    def store(self, finished: Finished) -> None:
        """Write a study's result, and its row; before that, those of its aliases."""
        if isinstance(finished, StudyDone):
            last, aliases = finished, self._sharing_the_fate_of(finished.row)
        else:
            ticket, made = finished
            stored = self._attempt(ticket, lambda: self._store(ticket, made))
            aliases = [self._store_again(ticket, made, each) for each in ticket.planned.aliases]
            last = stored if isinstance(stored, StudyDone) else self._done(*stored)
        for done in (*aliases, last):
            self._tell(done)

    def _sharing_the_fate_of(self, row: StudyReport) -> list[StudyDone]:
        """What becomes of the aliases of a study that has no new result."""
        return [
            StudyDone(replace(alias.opening_row, status=row.status, failure=row.failure))
            for alias in self._aliases.pop(row.name, ())
        ]

    def _store_again(
        self, ticket: StudyProgress, made: Translated, alias: PlannedStudy
    ) -> StudyDone:
        """Store the result of a study for another name of it."""
        notes = *ticket.row.notes, alias_note(ticket.planned.study)
        row = replace(alias.opening_row, notes=notes, cycle=ticket.row.cycle)
        again = StudyProgress(alias, row, Stopwatch(row.name, self._record))
        self._peaks.enter(row.name)
        self._tell(StudyStarted(alias))

        def store() -> StudyReport:
            again.inputs = states_again(alias.study, ticket.inputs)
            return replace(self._store(again, made), tiles=0)

        stored = self._attempt(again, store)
        return stored if isinstance(stored, StudyDone) else self._done(*stored)

    def _prepare(self, ticket: StudyProgress) -> PreparedStudy:
        task, study, watch = self._task, ticket.planned.study, ticket.watch
        task.store.record.place.check()  # before hours are spent on what could not be stored
        self._room.check(study.files)
        files = InputFiles(study)
        with running_in_background(files.states) as states:
            with files.unchanged():
                scans = read_study(study, task.options, watch, self._arrays.empty)
            ticket.row = replace(ticket.row, notes=(*ticket.row.notes, *scans.notes))
            plan = plan_read_study(scans, task.model, task.options, watch)
            self._take_memory(ticket, self._needed(scans.volumes[0], plan))
            with self._preparing:
                prepared = prepare_study(
                    scans, plan, task.model, task.options, watch, self._arrays.empty
                )
            ticket.row = replace(ticket.row, notes=(*ticket.row.notes, *prepared.notes))
            ticket.hashed = states  # which takes longer than to read; only what is stored needs it
        return prepared

    def _needed(self, volume: Volume, plan: StudyPlan) -> int:
        back, options = self._task.back, self._task.options
        again = volume_again_bytes(plan, options.verify)
        if back is None:
            return plan.footprint.peak + again
        return again + host_bytes(volume, plan, plan_back(volume, back.model, options), options)

    def _take_memory(self, ticket: StudyProgress, needed: int) -> None:
        ticket.held = needed
        if not self._memory.acquire(needed):
            raise StoppedError

    def _infer(
        self,
        ticket: StudyProgress,
        study: PreparedStudy,
        generator: SharedGenerator,
        on_tiles: OnTiles,
    ) -> InferredStudy:
        task, watch, empty = self._task, ticket.watch, self._arrays.empty
        self._room.check(ticket.planned.study.files)  # studies are read ahead
        mirrored, told = None, list[str]()

        def opened(network: AnyGenerator) -> OpenModel:
            return OpenModel(task.model, network, task.options)

        if task.options.spread:
            # By itself: what a mirrored patch needs of precision must not change the result.
            of_flips = generator.do(
                lambda network: infer_spread(study, opened(network), watch, on_tiles, empty),
                task.precision,
            )
            mirrored = of_flips.result
            told += [f"of its spread: {note}" for note in (*of_flips.notes, *mirrored.notes)]
        outcome = generator.do(
            lambda network: infer_study(
                study,
                opened(network),
                watch,
                on_tiles,
                empty,
                mirrored,
                partial(self._begin_to_store, ticket),
            ),
            task.precision,
        )
        notes = *ticket.row.notes, *told, *outcome.notes, *outcome.result.notes
        ticket.row = replace(ticket.row, notes=notes)
        return replace(outcome.result, precision=outcome.precision)

    def _begin_to_store(self, ticket: StudyProgress, made: Volume) -> Callable[[int], None]:
        ticket.leave_ahead()  # of a try in another precision
        ticket.ahead = self._task.store.begin(ticket.planned, made, self._commits)
        return ticket.ahead.on_rows if ticket.ahead else _unheard

    def _forth_and_back(
        self,
        ticket: StudyProgress,
        study: PreparedStudy,
        generator: SharedGenerator,
        way_back: WayBack,
        on_tiles: OnTiles,
    ) -> LedBack:
        """As `_infer`, with the result finished and led back; what is left takes no network."""
        returning = way_back.plan(study).steps

        def on_way_forth(done: int, total: int) -> None:
            on_tiles(done, total + returning)

        def on_way_back(done: int, total: int) -> None:
            passed = self._task.options.passes * study.prepared.plan.steps
            on_tiles(passed + done, passed + total)

        inferred = self._infer(ticket, study, generator, on_way_forth)
        led = way_back.lead(
            inferred, self._task.precision, ticket.watch, on_way_back, self._arrays.empty
        )
        ticket.row = replace(ticket.row, notes=(*ticket.row.notes, *led.notes))
        return led

    def _compared(self, ticket: StudyProgress, led: LedBack) -> InferredStudy:
        """A study with its cycle error in the row."""
        returned = led.compared(ticket.watch, self._arrays.empty)
        notes = *ticket.row.notes, *filter(None, [returned.error.note])
        ticket.row = replace(ticket.row, notes=notes, cycle=returned.error)
        return returned.inferred

    def _finish(
        self, ticket: StudyProgress, made: InferredStudy | LedBack, verifier: StudyVerifier
    ) -> Translated:
        task, watch = self._task, ticket.watch
        ticket.take_inputs()
        study = self._compared(ticket, made) if isinstance(made, LedBack) else made
        if task.options.verify:
            verified = verifier.verify(study, task.options, ticket.row.name, watch)
            ticket.row = replace(ticket.row, verified=verified)
            check_verified(verified)
        finished = finish_study(
            study, task.model, task.options, watch, self._arrays.empty, ticket.row.warning
        )
        ticket.row = replace(ticket.row, notes=(*ticket.row.notes, *finished.notes))
        return finished

    def _store(self, ticket: StudyProgress, made: Translated) -> StudyReport:
        with ticket.watch.time("write"), self._room.taken(ticket.planned.study.files):
            outputs = self._task.store.put(
                ticket.planned, made, ticket.inputs, self._commits, ticket.row.cycle, ticket.ahead
            )
        return replace(
            ticket.row,
            status="translated",
            voxels=made.volumes[0].voxels.size,
            tiles=made.tiles,
            preview=self._preview_of(ticket.planned),
            seams=made.seams,
            maps=tuple(map_beside(ticket.planned.target, each.mark.kind) for each in made.maps),
            spread=made.spread,
            source_content=content_of(ticket.inputs),
            output_content=content_of(result_files(outputs, ticket.planned.target)),
        )

    def _preview_of(self, planned: PlannedStudy) -> Path | None:
        return preview_of(planned.target) if self._task.options.preview else None

    def _attempt(
        self, ticket: StudyProgress, stage: Callable[[], Made]
    ) -> tuple[StudyProgress, Made] | StudyDone:
        """The one place that keeps a study's failure, of any kind, from the rest of the batch.

        Only text leaves it: the exception itself would keep the study's arrays alive.
        """
        try:
            with ticket.kept():
                self._check_wanted(ticket)
                return ticket, stage()
        except LeftError:
            return self._done(ticket, replace(ticket.row, status="interrupted"))
        except Exception as error:
            if self._commits.is_shut:
                raise StoppedError from error
            if self._task.hands_over and isinstance(error, CudaError) and error.is_sticky:
                raise DeviceLostError(str(error)) from error
            trace = "".join(traceback.format_exception(error))
            failure = failure_of(error, ticket.watch.stage)
        return self._done(ticket, replace(ticket.row, status="failed", failure=failure), trace)

    def drop(self, inferred: Inferred | Finished) -> None:
        """Leave a study that will not be stored any more."""
        if not isinstance(inferred, StudyDone):
            inferred[0].leave_ahead()

    def _check_wanted(self, ticket: StudyProgress) -> None:
        if ticket.row.name in self._left:
            raise LeftError

    def _done(self, ticket: StudyProgress, row: StudyReport, trace: str | None = None) -> StudyDone:
        self._memory.release(ticket.held)
        row = replace(ticket.timed(row), peak_memory=self._peaks.leave(row.name))
        return StudyDone(row, trace)

    def _record(self, span: Span) -> None:
        self._tell(Worked(span))


def _unheard(_slices: int) -> None:
    pass
