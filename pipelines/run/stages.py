"""Work on one study at each stage of the pipeline."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod
from typing import TypeAlias

from ...engine.errors import EngineError
from ...engine.generator import SharedGenerator
from ...io.errors import ScanError
from ...io.reading import read_grid
from ...io.volume import Volume
from ...io.writing import map_beside
from ..cycle import BackTranslated, BackTranslator, host_bytes, plan_back
from ..errors import PreparationError
from ..events import Event, StudyDone, TilesDone, unit_of
from ..report.report import StudyReport
from ..results.file_states import content_of
from ..results.resume import ADDS, PlannedStudy, alias_note, result_states
from ..results.storing import DiskSpace
from ..study.inference import make_ready
from ..study.measures import worst
from ..study.plan import StudyPlan, model_extents
from ..study.translator import (
    InferredStudy,
    OnPatches,
    PreparedStudy,
    StudyTranslator,
    Translated,
)
from ..study.verify import StudyVerifier, check_verified, verified_together, volume_again_bytes
from ..study.volumes import StudyVolumes, look_at_study
from ..whole_check import WholeCheck
from .concurrency import CommitBarrier, StoppedError, WeightedSemaphore, running_in_background
from .host_arrays import HostArrays
from .in_flight import InputFiles, StudiesInFlight, StudyProgress, states_again
from .networks import maps_memory
from .source import JobKind, JobSource

Loaded: TypeAlias = tuple[StudyProgress, list[PreparedStudy]] | StudyDone
"""The consumer removes the study from the list, so that no other reference keeps it alive."""
Inferred: TypeAlias = tuple[StudyProgress, InferredStudy | BackTranslated] | StudyDone
Finished: TypeAlias = tuple[StudyProgress, Translated] | StudyDone


class StudyStages:
    """Stages of a pipeline, whose threads work on each study one at a time.

    Each stage returns a study that continues, with its progress, or one that is over. memory:
    semaphore of host bytes. on_event: callback for events. commits: barrier that results pass.
    """

    def __init__(
        self,
        kind: JobKind,
        source: JobSource,
        disk_space: DiskSpace,
        memory: WeightedSemaphore,
        on_event: Callable[[Event], None],
        commits: CommitBarrier,
    ) -> None:
        self._kind, self._source = kind, source
        self._results = kind.store(source.record)
        self._commits = commits
        self._in_flight = StudiesInFlight(memory, on_event, commits)
        self._arrays = HostArrays()
        self._whole_check = WholeCheck(kind.model, kind.options, maps_memory)
        self._disk_space = disk_space
        self._on_event = on_event
        self._aliases: dict[str, tuple[PlannedStudy, ...]] = {}

    def stop(self) -> None:
        """End all unstored studies at their next patch, or while they wait for memory."""
        self._in_flight.stop()

    def cancel(self, study: str) -> None:
        """Cancel a study, which ends as interrupted at its next patch or stage."""
        self._in_flight.cancel(study)

    def load(self, planned: PlannedStudy) -> Loaded:
        """Read and prepare a study, once there is memory; it is over if nothing is pending."""
        row = planned.opening_row
        self._in_flight.uncancel(row.name)
        if planned.action == "keep":
            return StudyDone(replace(row, preview=planned.picture, sidecars=planned.sidecars))
        if planned.action == "refuse":
            return StudyDone(row)
        if planned.action in ADDS:
            return self._with_more_beside(planned, row)
        self._aliases[row.name] = planned.aliases
        progress = self._in_flight.begin(planned, row)
        return self._in_flight.stage(progress, lambda: [self._prepare(progress)])

    def _with_more_beside(self, planned: PlannedStudy, row: StudyReport) -> StudyDone:
        """Write the files that an up-to-date result lacks, without the network."""
        progress = self._in_flight.begin(planned, row)
        done = self._in_flight.stage(progress, lambda: self._put_beside(progress))
        return self._in_flight.over(done)

    def _put_beside(self, progress: StudyProgress) -> StudyReport:
        planned, timer = progress.planned, progress.timer
        self._results.record.place.check()
        picture = self._picture(progress) if planned.action == "preview" else None
        with timer.time("write"):
            self._results.put_beside(planned, picture, self._commits)
        return replace(
            progress.row,
            preview=planned.picture,
            drawn=picture is not None,
            sidecars=planned.sidecars,
        )

    def _picture(self, progress: StudyProgress) -> bytes:
        """Return the preview of an existing result, from its files."""
        self._take_memory(progress)
        planned, translator = progress.planned, self._translator(progress)
        return translator.preview_stored(planned.study, planned.targets, progress.row.warning)

    def make_ready(self, planned: PlannedStudy, generator: SharedGenerator | None) -> None:
        """Let the network allocate the memory for a volume while the volume is read.

        Errors are ignored here; they are reported for the study itself, once it is read. Does
        nothing for a DICOM series, whose grid is known only once its slices are read, and for a
        model that crops scans.
        """
        scan = planned.study.channels[0]
        card = self._kind.model.card
        if generator is None or scan.is_dicom or card.is_cropped_by_values:
            return
        with suppress(ScanError, PreparationError, EngineError):
            grid = read_grid(scan)
            i, j, k = grid.extents[:3]
            extents = model_extents((i, j, k), grid.affine, card)
            generator.do(lambda network: make_ready(network, extents), self._kind.precision)

    def infer(
        self,
        loaded: Loaded,
        generator: SharedGenerator | None,
        verifier: StudyVerifier,
        back_translator: BackTranslator | None = None,
    ) -> Inferred:
        """Run the network on a study, and the reverse network, if any, on its result.

        For a series, all volumes but the last are also finished and passed on for writing.
        """
        if isinstance(loaded, StudyDone):
            return loaded
        if generator is None:
            raise RuntimeError("A study is to be translated, and no network was to be opened.")
        progress, ready = loaded
        if not self._source.may_begin(progress.row.name):
            self.cancel(progress.row.name)

        unit, volumes = unit_of(ready[0].prepared.plan), progress.volumes

        def on_patches(done: int, total: int) -> None:
            at, count = (volumes.number + 1, volumes.count) if volumes else (1, 1)
            self._on_event(TilesDone(progress.row.name, done, total, unit, at, count))
            self._in_flight.check(progress)

        def work() -> InferredStudy | BackTranslated:
            if volumes and volumes.is_series:
                return self._infer_series(progress, volumes, ready, generator, verifier, on_patches)
            study = ready.pop()
            if back_translator is None:
                return self._infer(progress, study, generator, on_patches)
            return self._forward_and_back(progress, study, generator, back_translator, on_patches)

        return self._in_flight.stage(progress, work)

    def finish(self, inferred: Inferred, verifier: StudyVerifier) -> Finished:
        """Resample a study to its scan's grid."""
        if isinstance(inferred, StudyDone):
            return inferred
        progress, study = inferred
        return self._in_flight.stage(progress, lambda: self._finish(progress, study, verifier))

    def store(self, finished: Finished) -> None:
        """Write the results of a study and its aliases; report aliases first, then the study."""
        if isinstance(finished, StudyDone):
            last, aliases = finished, self._sharing_the_fate_of(finished.row)
        else:
            progress, translated = finished
            stored = self._in_flight.stage(progress, lambda: self._store(progress, translated))
            others = self._aliases.pop(progress.row.name, ())
            aliases = [self._store_again(progress, translated, each) for each in others]
            last = self._in_flight.over(stored)  # after them, as they still need its memory
        for done in (*aliases, last):
            self._on_event(done)

    def _sharing_the_fate_of(self, row: StudyReport) -> list[StudyDone]:
        """Return the ends of the aliases of a study that has no new result."""
        return [
            StudyDone(replace(alias.opening_row, status=row.status, failure=row.failure))
            for alias in self._aliases.pop(row.name, ())
        ]

    def _store_again(
        self, progress: StudyProgress, translated: Translated, alias: PlannedStudy
    ) -> StudyDone:
        """Store the result of a study for another name of it."""
        notes = *progress.row.notes, alias_note(progress.planned.study)
        row = replace(alias.opening_row, notes=notes, cycle=progress.row.cycle)
        again = self._in_flight.begin(alias, row)
        again.ahead = progress.ahead

        def store() -> StudyReport:
            again.inputs = states_again(alias.study, progress.inputs)
            return replace(self._store(again, translated), tiles=0)

        return self._in_flight.over(self._in_flight.stage(again, store))

    def _prepare(self, progress: StudyProgress) -> PreparedStudy:
        kind, study = self._kind, progress.planned.study
        self._results.record.place.check()  # before hours are spent on what could not be stored
        self._disk_space.check(study.files)
        self._take_memory(progress)
        files = InputFiles(study)
        with running_in_background(files.states) as states:
            with files.unchanged():
                volumes = StudyVolumes(study, kind.options, self._arrays.empty, files.unchanged)
            progress.volumes = volumes
            prepared = self._prepare_next(progress, volumes)
            # Hashing takes longer than reading, and only storing needs the hashes.
            progress.hashed = lambda: files.confirmed(states())
        return prepared

    def _prepare_next(self, progress: StudyProgress, volumes: StudyVolumes) -> PreparedStudy:
        """Read and prepare the first volume of a study, or the next of a series."""
        with volumes.unchanged():
            scans = self._translator(progress).read(progress.planned.study, volumes)
        translator = self._translator(progress)  # for the volume that was read
        progress.note(*scans.notes)
        plan = translator.plan(scans)
        progress.note(*volumes.notes_of(scans.volumes[0], plan))
        if not volumes.number:
            needed = self._needed(scans.volumes[0], plan, is_series=volumes.is_series)
            self._in_flight.adjust_memory(progress, needed)
        prepared = translator.prepare(scans, plan)
        progress.note(*prepared.notes)
        return prepared

    def _translator(self, progress: StudyProgress) -> StudyTranslator:
        """Return the translator of the current volume; only a series' first has a preview."""
        kind, volumes = self._kind, progress.volumes
        is_later = volumes is not None and volumes.number > 0
        options = replace(kind.options, preview=False) if is_later else kind.options
        return StudyTranslator(kind.model, options, progress.timer, self._arrays.empty)

    def _take_memory(self, progress: StudyProgress) -> None:
        """Wait for the memory that a study needs according to its headers.

        Faulty headers are reported when the study is read.
        """
        foreseen = 0
        with progress.timer.time("read"), suppress(ScanError, PreparationError, EngineError):
            unread = look_at_study(progress.planned.study, self._kind.options)
            foreseen = unread.reading_bytes
            plan = self._translator(progress).plan_volumes(unread.volumes)
            needed = self._needed(unread.volumes[0], plan, is_series=unread.count > 1)
            foreseen = max(foreseen, needed)
        self._in_flight.take_memory(progress, foreseen)

    def _needed(self, volume: Volume, plan: StudyPlan, *, is_series: bool) -> int:
        back, options = self._kind.back, self._kind.options
        again = volume_again_bytes(plan, options.verify)
        if is_series:
            again += plan.footprint.stored  # the previous volume, which is being written
        if back is None:
            return plan.footprint.peak + again
        return again + host_bytes(volume, plan, plan_back(volume, back, options), options)

    def _infer(
        self,
        progress: StudyProgress,
        study: PreparedStudy,
        generator: SharedGenerator,
        on_patches: OnPatches,
    ) -> InferredStudy:
        self._disk_space.check(progress.planned.study.files)  # studies are read ahead
        begin_to_store = partial(self._begin_to_store, progress)
        inferred = self._translator(progress).infer(study, generator, on_patches, begin_to_store)
        progress.note(*inferred.notes)
        return inferred

    def _infer_series(
        self,
        progress: StudyProgress,
        volumes: StudyVolumes,
        ready: list[PreparedStudy],
        generator: SharedGenerator,
        verifier: StudyVerifier,
        on_patches: OnPatches,
    ) -> InferredStudy:
        """Run `_infer` on each volume of a series in turn, in the memory of the previous one."""
        before = 0
        while True:
            study = ready.pop()
            steps = study.prepared.plan.steps
            total = before + steps * (1 + volumes.left)

            def on_more(done: int, _: int, before: int = before, total: int = total) -> None:
                on_patches(before + done, total)

            inferred = self._infer(progress, study, generator, on_more)
            del study
            if not volumes.left:
                return inferred
            self._pass_on(progress, self._finished(progress, inferred, verifier))
            del inferred
            before += steps
            ready.append(self._prepare_next(progress, volumes))

    def _pass_on(self, progress: StudyProgress, translated: Translated) -> Translated:
        """Write a volume of a series; return the series so far, with the voxels of this volume."""
        store, planned = self._results, progress.planned
        with progress.timer.time("write"), self._disk_space.taken(planned.study.files):
            if not progress.series:
                aliases = self._aliases.get(progress.row.name, ())
                begun = (
                    store.begin_series(each, translated.volumes, self._commits)
                    for each in (planned, *aliases)
                )
                progress.ahead = progress.series = tuple(chain.from_iterable(begun))
            for at, series in enumerate(progress.series):
                series.add(translated.volumes[at % len(translated.volumes)])
        first, patches, measures = translated, translated.patches, translated.measures
        if progress.translated:
            first = progress.translated
            patches += first.patches
            measures = worst([first.measures, measures])
        progress.translated = replace(first, volumes=(), patches=patches, measures=measures)
        return replace(progress.translated, volumes=translated.volumes)

    def _begin_to_store(self, progress: StudyProgress, volume: Volume) -> Callable[[int], None]:
        if progress.is_series:
            return _ignore
        progress.discard_ahead()  # left by a try in another precision
        begun = self._results.begin(progress.planned, volume, self._commits)
        progress.ahead = (begun,) if begun else ()
        return begun.on_rows if begun else _ignore

    def _forward_and_back(
        self,
        progress: StudyProgress,
        study: PreparedStudy,
        generator: SharedGenerator,
        back_translator: BackTranslator,
        on_patches: OnPatches,
    ) -> BackTranslated:
        """Run `_infer`, finish the result and translate it back; later steps need no network."""
        returning = back_translator.plan(study).steps

        def on_forward(done: int, total: int) -> None:
            on_patches(done, total + returning)

        def on_back(done: int, total: int) -> None:
            passed = self._kind.options.passes * study.prepared.plan.steps
            on_patches(passed + done, passed + total)

        inferred = self._infer(progress, study, generator, on_forward)
        returned = back_translator.translate_back(
            inferred, progress.timer, on_back, self._arrays.empty
        )
        progress.note(*returned.notes)
        return returned

    def _compared(self, progress: StudyProgress, returned: BackTranslated) -> InferredStudy:
        """Add the cycle error to the study's row and return the study."""
        checked = returned.compared(progress.timer, self._arrays.empty)
        progress.note(*filter(None, [checked.error.note]))
        progress.row = replace(progress.row, cycle=checked.error)
        return checked.inferred

    def _finish(
        self,
        progress: StudyProgress,
        inferred: InferredStudy | BackTranslated,
        verifier: StudyVerifier,
    ) -> Translated:
        progress.take_inputs()
        study = (
            self._compared(progress, inferred) if isinstance(inferred, BackTranslated) else inferred
        )
        finished = self._finished(progress, study, verifier)
        return self._pass_on(progress, finished) if progress.is_series else finished

    def _finished(
        self, progress: StudyProgress, study: InferredStudy, verifier: StudyVerifier
    ) -> Translated:
        translator = self._translator(progress)
        if (options := translator.options).verify:
            verified = verifier.verify(study, options, progress.row.name, progress.timer)
            together = verified_together(progress.row.verified, verified)
            progress.row = replace(progress.row, verified=together)
            check_verified(verified)
        self._check_whole(progress, study)
        finished = translator.finish(study, progress.row.warning)
        progress.note(*finished.notes)
        return finished

    def _check_whole(self, progress: StudyProgress, study: InferredStudy) -> None:
        """Note how far a first study by patches is from its whole volume.

        After a stop the study is stored without that, and a later one is compared.
        """
        if not self._kind.checks_whole:
            return
        seconds = progress.timer.seconds.get("infer", 0.0)
        with suppress(StoppedError):
            go_on = partial(self._in_flight.check, progress)
            progress.note(*filter(None, [self._whole_check.note(study, seconds, go_on)]))

    def _store(self, progress: StudyProgress, translated: Translated) -> StudyReport:
        with progress.timer.time("write"), self._disk_space.taken(progress.planned.study.files):
            outputs = self._results.put(
                progress.planned,
                translated,
                progress.inputs,
                self._commits,
                progress.row.cycle,
                progress.notes_of_translation,
                progress.ahead,
            )
        count = prod(translated.volumes[0].further)
        return replace(
            progress.row,
            status="translated",
            voxels=count * translated.volumes[0].voxels.size,
            volumes=count,
            tiles=translated.patches,
            preview=progress.planned.picture,
            sidecars=progress.planned.sidecars,
            seams=translated.seams,
            measures=translated.measures,
            maps=tuple(
                map_beside(progress.planned.target, each.mark.kind) for each in translated.maps
            ),
            spread=translated.spread,
            source_content=content_of(progress.inputs),
            output_content=content_of(result_states(outputs, progress.planned.targets)),
        )

    def drop(self, inferred: Inferred | Finished) -> None:
        """Drop a study that will not be stored, and remove what was written ahead for it."""
        if not isinstance(inferred, StudyDone):
            inferred[0].discard_ahead()


def _ignore(_slices: int) -> None:
    pass
