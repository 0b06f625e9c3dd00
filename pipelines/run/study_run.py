"""One study from its files to its result, in the stages of the pipeline."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import prod

from ...engine.errors import EngineError
from ...engine.generator import SharedGenerator
from ...io.errors import ScanError
from ...io.reading import read_grid
from ...io.volume import Volume
from ...io.writing import map_beside
from ..cycle import BackTranslated, BackTranslator, host_bytes, plan_back
from ..errors import PreparationError
from ..events import StudyDone, TilesDone, unit_of
from ..results.file_states import content_of
from ..results.resume import ADDS, PlannedStudy, alias_note, result_states
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
from .concurrency import StoppedError, running_in_background
from .in_flight import PipelineResources, StudyProgress
from .input_files import InputFiles, states_again
from .source import JobKind


class StudyRun:
    """Run of one study through the stages of a pipeline, whose threads pass it on.

    Each stage leaves its output here, and the next one removes it, so that no array outlives its
    stage. A stage does nothing once the study is over. planned: the planned work. resources: what
    the studies of the pipeline share.
    """

    def __init__(self, planned: PlannedStudy, resources: PipelineResources) -> None:
        self._planned, self._shared = planned, resources
        self._kind, self._results = resources.kind, resources.store
        self._progress = StudyProgress(planned, resources)
        self._prepared: list[PreparedStudy] = []
        self._inferred: list[InferredStudy | BackTranslated] = []
        self._translated: list[Translated] = []
        self._passed_on: Translated | None = None  # of a series' volumes, without voxels

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._progress.row.name

    @property
    def is_over(self) -> bool:
        """Whether nothing is left but to report the study's end."""
        return bool(self._progress.ends)

    def load(self) -> None:
        """Read and prepare the study, once there is memory; it is over if nothing is pending."""
        planned, progress = self._planned, self._progress
        self._shared.requests.accept(self.name)
        if planned.action == "keep":
            row = replace(progress.row, preview=planned.picture, sidecars=planned.sidecars)
            progress.ends = (StudyDone(row),)
        elif planned.action == "refuse":
            progress.ends = (StudyDone(progress.row),)
        elif planned.action in ADDS:
            progress.begin()
            progress.stage(self._put_beside)
            progress.end()
        else:
            progress.begin()
            self._stage(self._prepare)

    def infer(
        self,
        generator: SharedGenerator | None,
        verifier: StudyVerifier,
        back_translator: BackTranslator | None = None,
    ) -> None:
        """Run the network on the study, and the reverse network, if any, on its result.

        For a series, all volumes but the last are also finished and passed on for writing.
        """
        if self.is_over:
            return
        if generator is None:
            raise RuntimeError("A study is to be translated, and no network was to be opened.")
        progress, on_event = self._progress, self._shared.on_event
        unit, volumes = unit_of(self._prepared[0].prepared.plan), progress.volumes

        def on_patches(done: int, total: int) -> None:
            at, count = (volumes.number + 1, volumes.count) if volumes else (1, 1)
            on_event(TilesDone(progress.row.name, done, total, unit, at, count))
            progress.check()

        def work() -> None:
            if volumes and volumes.is_series:
                output = self._infer_series(volumes, generator, verifier, on_patches)
            elif back_translator is None:
                output = self._infer(self._prepared.pop(), generator, on_patches)
            else:
                output = self._forward_and_back(generator, back_translator, on_patches)
            self._inferred.append(output)

        self._stage(work)

    def finish(self, verifier: StudyVerifier) -> None:
        """Resample the study to its scan's grid."""
        self._stage(lambda: self._finish(verifier))

    def store(self) -> None:
        """Write the results of the study and its aliases; report aliases first, then the study."""
        if not self.is_over:
            self._progress.stage(self._put)
            aliases = [self._store_again(alias) for alias in self._planned.aliases]
            self._progress.end(aliases)  # after them, as they still need its memory
        self._translated.clear()
        for done in self._progress.ends:
            self._shared.on_event(done)

    def drop(self) -> None:
        """Drop a study that will not be stored, and remove what was written ahead for it."""
        if not self.is_over:
            self._progress.discard_ahead()

    def _stage(self, work: Callable[[], None]) -> None:
        """Run a stage; after a failure, the study is over together with its aliases."""
        progress = self._progress
        if self.is_over or progress.stage(work):
            return
        status, failure = progress.row.status, progress.row.failure
        progress.end(
            StudyDone(replace(alias.opening_row, status=status, failure=failure))
            for alias in self._planned.aliases
        )

    def _put_beside(self) -> None:
        """Write the files that an up-to-date result lacks, without the network."""
        planned, progress, results = self._planned, self._progress, self._results
        results.record.place.check()
        picture = self._picture() if planned.action == "preview" else None
        with progress.timer.time("write"):
            results.put_beside(planned, picture, self._shared.commits)
        progress.row = replace(
            progress.row,
            preview=planned.picture,
            drawn=picture is not None,
            sidecars=planned.sidecars,
        )

    def _picture(self) -> bytes:
        """Return the preview of an existing result, from its files."""
        self._take_memory()
        planned, warning = self._planned, self._progress.row.warning
        return self._translator().preview_stored(planned.study, planned.targets, warning)

    def _store_again(self, alias: PlannedStudy) -> StudyDone:
        """Store the result of the study for another name of it."""
        progress, again = self._progress, StudyRun(alias, self._shared)
        notes = *progress.row.notes, alias_note(self._planned.study)
        again._progress.row = replace(alias.opening_row, notes=notes, cycle=progress.row.cycle)
        again._progress.ahead = progress.ahead
        again._translated = self._translated

        def store() -> None:
            again._progress.inputs = states_again(alias.study, progress.inputs)
            again._put()
            again._progress.row = replace(again._progress.row, tiles=0)

        again._progress.begin()
        again._progress.stage(store)
        again._progress.end()
        [done] = again._progress.ends
        return done

    def _prepare(self) -> None:
        kind, study = self._kind, self._planned.study
        self._results.record.place.check()  # before hours are spent on what could not be stored
        self._shared.disk_space.check(study.files)
        self._take_memory()
        files = InputFiles(study)
        with running_in_background(files.states) as states:
            with files.unchanged():
                volumes = StudyVolumes(
                    study, kind.options, self._shared.arrays.empty, files.unchanged
                )
            self._progress.volumes = volumes
            self._prepare_next(volumes)
            # Hashing takes longer than reading, and only storing needs the hashes.
            self._progress.hashed = lambda: files.confirmed(states())

    def _prepare_next(self, volumes: StudyVolumes) -> None:
        """Read and prepare the first volume of a study, or the next of a series."""
        with volumes.unchanged():
            scans = self._translator().read(self._planned.study, volumes)
        translator = self._translator()  # for the volume that was read
        self._progress.note(*scans.notes)
        plan = translator.plan(scans)
        self._progress.note(*volumes.notes_of(scans.volumes[0], plan))
        if not volumes.number:
            needed = self._needed(scans.volumes[0], plan, is_series=volumes.is_series)
            self._progress.adjust_memory(needed)
        prepared = translator.prepare(scans, plan)
        self._progress.note(*prepared.notes)
        self._prepared.append(prepared)

    def _translator(self) -> StudyTranslator:
        """Return the translator of the current volume; only a series' first has a preview."""
        kind, volumes = self._kind, self._progress.volumes
        is_later = volumes is not None and volumes.number > 0
        options = replace(kind.options, preview=False) if is_later else kind.options
        return StudyTranslator(kind.model, options, self._progress.timer, self._shared.arrays.empty)

    def _take_memory(self) -> None:
        """Wait for the memory that a study needs according to its headers.

        Faulty headers are reported when the study is read.
        """
        foreseen = 0
        with self._progress.timer.time("read"), suppress(ScanError, PreparationError, EngineError):
            unread = look_at_study(self._planned.study, self._kind.options)
            foreseen = unread.reading_bytes
            plan = self._translator().plan_volumes(unread.volumes)
            needed = self._needed(unread.volumes[0], plan, is_series=unread.count > 1)
            foreseen = max(foreseen, needed)
        self._progress.take_memory(foreseen)

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
        study: PreparedStudy,
        generator: SharedGenerator,
        on_patches: OnPatches,
    ) -> InferredStudy:
        self._shared.disk_space.check(self._planned.study.files)  # studies are read ahead
        translator = self._translator()
        inferred = translator.infer(study, generator, on_patches, self._begin_to_store)
        self._progress.note(*inferred.notes)
        return inferred

    def _infer_series(
        self,
        volumes: StudyVolumes,
        generator: SharedGenerator,
        verifier: StudyVerifier,
        on_patches: OnPatches,
    ) -> InferredStudy:
        """Run `_infer` on each volume of a series in turn, in the memory of the previous one."""
        before = 0
        while True:
            study = self._prepared.pop()
            steps = study.prepared.plan.steps
            total = before + steps * (1 + volumes.left)

            def on_more(done: int, _: int, before: int = before, total: int = total) -> None:
                on_patches(before + done, total)

            inferred = self._infer(study, generator, on_more)
            del study
            if not volumes.left:
                return inferred
            self._pass_on(self._finished(inferred, verifier))
            del inferred
            before += steps
            self._prepare_next(volumes)

    def _pass_on(self, translated: Translated) -> Translated:
        """Write a volume of a series; return the series so far, with the voxels of this volume."""
        results, planned = self._results, self._planned
        with self._progress.timer.time("write"), self._shared.disk_space.taken(planned.study.files):
            if not self._progress.series:
                aliases = self._planned.aliases
                begun = (
                    results.begin_series(each, translated.volumes, self._shared.commits)
                    for each in (planned, *aliases)
                )
                self._progress.ahead = self._progress.series = tuple(chain.from_iterable(begun))
            for at, series in enumerate(self._progress.series):
                series.add(translated.volumes[at % len(translated.volumes)])
        first, patches, measures = translated, translated.patches, translated.measures
        if self._passed_on:
            first = self._passed_on
            patches += first.patches
            measures = worst([first.measures, measures])
        self._passed_on = replace(first, volumes=(), patches=patches, measures=measures)
        return replace(self._passed_on, volumes=translated.volumes)

    def _begin_to_store(self, volume: Volume) -> Callable[[int], None]:
        if self._progress.is_series:
            return _ignore
        self._progress.discard_ahead()  # left by a try in another precision
        begun = self._results.begin(self._planned, volume, self._shared.commits)
        self._progress.ahead = (begun,) if begun else ()
        return begun.on_rows if begun else _ignore

    def _forward_and_back(
        self,
        generator: SharedGenerator,
        back_translator: BackTranslator,
        on_patches: OnPatches,
    ) -> BackTranslated:
        """Run `_infer`, finish the result and translate it back; later steps need no network."""
        study = self._prepared.pop()
        returning = back_translator.plan(study).steps

        def on_forward(done: int, total: int) -> None:
            on_patches(done, total + returning)

        def on_back(done: int, total: int) -> None:
            passed = self._kind.options.passes * study.prepared.plan.steps
            on_patches(passed + done, passed + total)

        inferred = self._infer(study, generator, on_forward)
        returned = back_translator.translate_back(
            inferred, self._progress.timer, on_back, self._shared.arrays.empty
        )
        self._progress.note(*returned.notes)
        return returned

    def _compared(self, returned: BackTranslated) -> InferredStudy:
        """Add the cycle error to the study's row and return the study."""
        checked = returned.compared(self._progress.timer, self._shared.arrays.empty)
        self._progress.note(*filter(None, [checked.error.note]))
        self._progress.row = replace(self._progress.row, cycle=checked.error)
        return checked.inferred

    def _finish(self, verifier: StudyVerifier) -> None:
        inferred = self._inferred.pop()
        self._progress.take_inputs()
        study = self._compared(inferred) if isinstance(inferred, BackTranslated) else inferred
        finished = self._finished(study, verifier)
        self._translated.append(self._pass_on(finished) if self._progress.is_series else finished)

    def _finished(self, study: InferredStudy, verifier: StudyVerifier) -> Translated:
        translator = self._translator()
        if (options := translator.options).verify:
            verified = verifier.verify(
                study, options, self._progress.row.name, self._progress.timer
            )
            together = verified_together(self._progress.row.verified, verified)
            self._progress.row = replace(self._progress.row, verified=together)
            check_verified(verified)
        self._check_whole(study)
        finished = translator.finish(study, self._progress.row.warning)
        self._progress.note(*finished.notes)
        return finished

    def _check_whole(self, study: InferredStudy) -> None:
        """Note how far a first study by patches is from its whole volume.

        After a stop the study is stored without that, and a later one is compared.
        """
        if not self._kind.checks_whole:
            return
        seconds = self._progress.timer.seconds.get("infer", 0.0)
        with suppress(StoppedError):
            go_on = self._progress.check
            self._progress.note(
                *filter(None, [self._shared.whole_check.note(study, seconds, go_on)])
            )

    def _put(self) -> None:
        [translated], progress = self._translated, self._progress
        with (
            progress.timer.time("write"),
            self._shared.disk_space.taken(self._planned.study.files),
        ):
            outputs = self._results.put(
                self._planned,
                translated,
                progress.inputs,
                self._shared.commits,
                progress.row.cycle,
                progress.notes_of_translation,
                progress.ahead,
            )
        count = prod(translated.volumes[0].further)
        progress.row = replace(
            progress.row,
            status="translated",
            voxels=count * translated.volumes[0].voxels.size,
            volumes=count,
            tiles=translated.patches,
            preview=self._planned.picture,
            sidecars=self._planned.sidecars,
            seams=translated.seams,
            measures=translated.measures,
            maps=tuple(
                map_beside(self._planned.target, each.mark.kind) for each in translated.maps
            ),
            spread=translated.spread,
            source_content=content_of(progress.inputs),
            output_content=content_of(result_states(outputs, self._planned.targets)),
        )


def _ignore(_slices: int) -> None:
    pass


def make_network_ready(
    planned: PlannedStudy, kind: JobKind, generator: SharedGenerator | None
) -> None:
    """Let the network allocate the memory for a volume while the volume is read.

    Errors are ignored here; they are reported for the study itself, once it is read. Does nothing
    for a DICOM series, whose grid is known only once its slices are read, and for a model that
    crops scans.
    """
    scan = planned.study.channels[0]
    card = kind.model.card
    if generator is None or scan.is_dicom or card.is_cropped_by_values:
        return
    with suppress(ScanError, PreparationError, EngineError):
        grid = read_grid(scan)
        i, j, k = grid.extents[:3]
        extents = model_extents((i, j, k), grid.affine, card)
        generator.do(lambda network: make_ready(network, extents), kind.precision)
