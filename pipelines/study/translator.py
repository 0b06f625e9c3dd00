"""One study from its files to its result, in the steps read, plan, prepare, infer and finish."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from ...engine.generator import AnyGenerator, PatchGenerator, SharedGenerator, VolumeGenerator
from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model
from ...engine.options import Precision
from ...engine.scaling import Stored
from ...io.choice import Choice
from ...io.discovery import discover
from ...io.errors import UnreadableScanError
from ...io.formats.registry import format_named
from ...io.reading import as_one_study, read
from ...io.volume import Empty, Study, SyntheticMark, Volume
from ...io.writing import as_at, check_voxel_type, map_beside, notes_of_result
from ..errors import UnexpectedInputError
from ..program import program_version
from ..settings import ResolvedOptions, TranslateOptions
from ..stopwatch import Stopwatch
from .deviation_maps import InferredSpread, finish_disagreement, finish_spread
from .figures import Measures, SeamScore, SpreadFigures
from .finish import (
    Canvas,
    canvas,
    finish,
    map_canvas,
    note_of_clipped_values,
    note_of_one_value,
)
from .foreground import measured_window
from .geometry import Slice, mid_slices
from .grid_windows import PlacedWindow
from .grids import on_one_grid
from .inference import (
    SlidingWindow,
    SpreadMoments,
    translate_array,
    translate_at_once,
)
from .input_figures import Deviation, deviations, differences
from .intensities import crop_box
from .maps import StudyMap, is_shown, requested_maps
from .measures import measures_of
from .patches import UNFLIPPED, Box, Flip, flips, seam_score
from .plan import StudyPlan, check_scale, check_volume, plan_study
from .prepare import Prepared, fit_scans, prepare, unfilled, without_nan
from .scan_limits import notes_of_padding, notes_of_plan
from .volumes import StudyVolumes, first_index

BeginToStore: TypeAlias = Callable[[Volume], Callable[[int], None]]
"""Callback with the result before its voxels are computed; returns a callback that is called with
the number of its final slices.
"""
OnPatches: TypeAlias = Callable[[int, int], None]
"""Progress callback: patches translated and all patches, or percent of the volume; first with 0."""


def ignore_patches(_done: int, _all: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class Scans:
    """Scans of a study on one grid.

    volumes: in the model's order of channels, on the grid of the first. notes: for the user, on how
    they were read. resampled: a line for each that was resampled onto that grid. has_scale: whether
    the file of a result can have a slope.
    """

    volumes: tuple[Volume, ...]
    notes: tuple[str, ...]
    resampled: tuple[str, ...] = ()
    has_scale: bool = True


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A study in model space.

    prepared: input of the network. slices: of each scan, if a preview is requested. resampled: as
    in Scans. notes: for the user, on how the scans fit the model. scan: the first scan, if the
    result is to be compared with it. distance: of the first scan from those of the model's
    calibration, in standard deviations; None if it was not compared.
    """

    prepared: Prepared
    slices: tuple[tuple[Slice, ...], ...]
    resampled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scan: Volume | None = None
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class InferredStudy:
    """A study and the output of the network.

    output: filled by the network. notes: for the user, on how it was computed. precision: in which
    it was computed. spread: over this output and those of mirrored patches, if requested. finished:
    the result, if it was finished already. maps: made of it.
    """

    study: PreparedStudy
    output: Canvas
    notes: tuple[str, ...] = ()
    precision: Precision = "fp32"
    spread: InferredSpread | None = None
    finished: tuple[Volume, ...] = ()
    maps: tuple[StudyMap, ...] = ()


@dataclass(frozen=True, slots=True)
class Translated:
    """Volumes on the scan's grid, and all other requested outputs.

    volumes: one for each output channel. preview: a PNG. patches: how many were translated. seams:
    the score, if requested. maps: to be stored next to the result. spread: its figures, if
    requested. resampled: as in Scans. notes: for the user, on the volumes. measures: of the results
    against the first scan.
    """

    volumes: tuple[Volume, ...]
    patches: int
    preview: bytes | None
    seams: SeamScore | None
    maps: tuple[StudyMap, ...] = ()
    spread: SpreadFigures | None = None
    resampled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measures: Measures | None = None


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass of a study through the network. flip: of its patches. done: passes before it."""

    flip: Flip
    done: int


@dataclass(frozen=True, slots=True)
class StudyTranslator:
    """The five steps of a study: read, plan, prepare, infer and finish.

    model: with its card. options: all resolved. timer: times the steps. empty: allocates the large
    arrays.
    """

    model: Model
    options: ResolvedOptions
    timer: Stopwatch = field(default_factory=Stopwatch)
    empty: Empty = np.empty

    def read(self, study: Study, volumes: StudyVolumes | None = None) -> Scans:
        """Read a study's scans, with notes on how its result is stored; replace NaN if requested.

        volumes: source of the next volume of each scan; None reads the study alone. Raises
        ScanError, also for a voxel type that the result cannot have, and PreparationError for scans
        on different grids.
        """
        options, target = self.options, Path(study.name)
        with self.timer.time("read"):
            found = (volumes or StudyVolumes(study, options, self.empty)).next()
            scans = [without_nan(volume, options.nan_to) for volume in found]
            foreseen = notes_of_result(scans[0], target)
            first = as_at(target, scans[0])
            if options.output_type not in (None, "same"):
                check_voxel_type(first, np.dtype(options.output_type))
            scans[0] = replace(first, notes=(*first.notes, *foreseen))
        aligned = self.align(scans, [scan.channel for scan in study.channels])
        return replace(aligned, has_scale=format_named(first.format).has_scale)

    def align(self, volumes: Sequence[Volume], names: Sequence[str]) -> Scans:
        """Bring volumes onto one grid; names: of their channels, for the notes.

        Raises PreparationError for different grids.
        """
        with self.timer.time("prepare"):
            resample = self.options.resample_channels
            aligned, resampled = on_one_grid(as_one_study(volumes), names, resample=resample)
        if len(aligned) == 1:
            return Scans(aligned, aligned[0].notes)
        notes = chain.from_iterable(
            [f"{name}: {note}" for note in volume.notes]
            for name, volume in zip(names, aligned, strict=True)
        )
        return Scans(aligned, (*notes, *resampled), resampled)

    def plan(self, scans: Scans, *, in_network: bool = False) -> StudyPlan:
        """Plan a study; in_network: as in `plan_volumes`.

        Raises PreparationError, and PatchShapeError for a volume on which whole-volume inference
        is impossible.
        """
        with self.timer.time("prepare"):
            volumes, card = scans.volumes, self.model.card
            crop = crop_box(volumes, card)
            plan = self.plan_volumes(volumes, in_network=in_network, crop=crop)
            window = measured_window(volumes, plan, card)
            if window != plan.window:
                plan = self.plan_volumes(volumes, in_network=in_network, crop=crop, window=window)
            if self.options.output_type and not scans.has_scale:
                check_scale(plan)
            return plan

    def plan_volumes(
        self,
        volumes: Sequence[Volume],
        *,
        in_network: bool = False,
        crop: Box | None = None,
        window: PlacedWindow | None = None,
    ) -> StudyPlan:
        """Plan as `plan` does, for volumes on one grid, also before their voxels are read.

        in_network: keep network intensities on the host, even if they could be stored as the scan.
        crop: part of them to translate. window: on the model's grid, if it was measured.
        """
        options, graph = self.options, self.model.network.graph
        plan = plan_study(
            volumes,
            self.model.card,
            options,
            graph.stride,
            in_network=in_network or options.seam_score,
            spreads=options.spread > 0,
            crop=crop,
            window=window,
        )
        check_volume(plan, graph)
        return plan

    def prepare(self, scans: Scans, plan: StudyPlan, *, is_compared: bool = True) -> PreparedStudy:
        """Bring a study into model space: axes, spacing, intensities. Raises PreparationError.

        is_compared: whether the scan is compared with those of the model's calibration.
        """
        options, model = self.options, self.model
        with self.timer.time("prepare"):
            prepared = prepare(scans.volumes, plan, model.card, self.empty)
            prepared = replace(prepared, marks=_marks(model))
            expected = model.card.expected if is_compared else None
            profiles = model.card.profiles
            far = deviations(prepared.figures(), expected, profiles) if expected else ()
            unlike = _unlike_expected(far, model.card, options)
            shown = tuple(map(mid_slices, scans.volumes if options.preview else ()))
            scan = scans.volumes[0] if options.cycle_check else None
            notes = (
                *prepared.fit.notes,
                *unlike,
                *notes_of_plan(plan, scans.volumes[0], self.model, options),
            )
            distance = max((each.far for each in far), default=None)
            return PreparedStudy(prepared, shown, scans.resampled, notes, scan, distance)

    def foresee(self, scans: Scans, plan: StudyPlan) -> tuple[Stored, tuple[str, ...]]:
        """Return the network's input as `prepare` would make it, and notes on it.

        Its voxels are computed only if something depends on them, since resampling a scan takes
        several times as long as reading and measuring it. Raises PreparationError as `prepare`.
        """
        if self.options.verify or self.model.card.expected:
            study = self.prepare(scans, plan)
            return study.prepared.network_input, (*study.notes, *notes_of_padding(plan, self.model))
        with self.timer.time("prepare"):
            fitted = fit_scans([plan.part(volume) for volume in scans.volumes], self.model.card)
            notes = (
                *fitted.notes,
                *notes_of_plan(plan, scans.volumes[0], self.model, self.options),
                *notes_of_padding(plan, self.model),
            )
            return unfilled(scans.volumes, plan), notes

    def infer(
        self,
        study: PreparedStudy,
        generator: SharedGenerator,
        on_patches: OnPatches = ignore_patches,
        begin_to_store: BeginToStore | None = None,
    ) -> InferredStudy:
        """Run the network on a study, and on mirror images of its patches if requested.

        begin_to_store: called if the result is stored while it is computed. Raises EngineError and
        PreparationError.
        """
        precision, notes = self.options.precision, list[str]()
        mirrored: InferredSpread | None = None
        if self.options.spread:
            # By itself: what a mirrored patch needs of precision must not change the result.
            of_flips = generator.do(
                lambda network: self._infer_flips(study, network, on_patches), precision
            )
            mirrored = of_flips.result
            notes += [f"of its spread: {note}" for note in (*of_flips.notes, *mirrored.notes)]
        outcome = generator.do(
            lambda network: self._infer_unflipped(
                study, network, on_patches, mirrored, begin_to_store
            ),
            precision,
        )
        outputs, more_notes = outcome.result
        notes += *outcome.notes, *more_notes
        return InferredStudy(study, outputs, tuple(notes), outcome.precision, mirrored)

    def _infer_flips(
        self, study: PreparedStudy, network: AnyGenerator, on_patches: OnPatches
    ) -> InferredSpread:
        """Run the network on all mirror images of the patches, without the patches themselves."""
        prepared, empty = study.prepared, self.empty
        mean, deviation = map_canvas(prepared, empty), map_canvas(prepared, empty)
        scratch, notes = canvas(prepared, empty), list[str]()
        spread = SpreadMoments(mean.target.values[0], deviation.target.values[0])
        _, *mirrored = flips(self.options.spread, self.model.card.axes)
        for done, flip in enumerate(mirrored):
            notes += self._run(prepared, network, scratch, _Pass(flip, done), on_patches)
            with self.timer.time("finish"):
                spread.add(scratch.target.values[0])
        return InferredSpread(spread, mean, deviation, scratch, tuple(dict.fromkeys(notes)))

    def _infer_unflipped(
        self,
        study: PreparedStudy,
        network: AnyGenerator,
        on_patches: OnPatches,
        mirrored: InferredSpread | None,
        begin_to_store: BeginToStore | None,
    ) -> tuple[Canvas, tuple[str, ...]]:
        """Run the network on the unmirrored patches; return its output and notes."""
        output = mirrored.scratch if mirrored else canvas(study.prepared, self.empty)
        if output.volume is not None and begin_to_store is not None:
            output = replace(
                output, target=replace(output.target, on_rows=begin_to_store(output.volume))
            )
        last = _Pass(UNFLIPPED, self.options.passes - 1)
        notes = self._run(study.prepared, network, output, last, on_patches)
        if mirrored:
            with self.timer.time("finish"):
                mirrored.spread.add(output.target.values[0])
        return output, notes

    def _run(
        self,
        prepared: Prepared,
        network: AnyGenerator,
        output: Canvas,
        one: _Pass,
        on_patches: OnPatches,
    ) -> tuple[str, ...]:
        """Fill a canvas; return notes on how."""
        plan, timer = prepared.plan, self.timer
        done, total = one.done * plan.steps, self.options.passes * plan.steps
        timer.stage = "infer"
        on_patches(done, total)

        def on_more(patches: int) -> None:
            nonlocal done
            done += patches
            on_patches(done, total)

        source, target = prepared.network_input, output.target
        if plan.inference == "volume":
            whole = cast("VolumeGenerator", network)
            translate_at_once(source, target, whole, one.flip, timer, on_more)
            return ()
        blend, padding = self.options.blend, self.model.card.padding
        window = SlidingWindow(plan.layout, blend, padding, one.flip)
        return translate_array(
            source, target, cast("PatchGenerator", network), window, timer, on_more
        )

    def finish(self, inferred: InferredStudy, warning: str = "") -> Translated:
        """Bring a translation and its maps back onto the scans' grid; make preview and seam score
        if requested.

        warning: shown in the preview. Raises EngineError.
        """
        study, options, model = inferred.study, self.options, self.model
        prepared = study.prepared
        with self.timer.time("finish"):
            volumes = inferred.finished or finish(prepared, inferred.output, self.empty)
            preview = seams = figures = disagreement = None
            maps = ()
            if inferred.spread:
                maps, figures = finish_spread(prepared, inferred.spread, self.empty)
            if count := model.card.disagreement:
                mapped, disagreement = finish_disagreement(
                    prepared, inferred.output, count, self.empty
                )
                maps = *maps, mapped
            maps = *maps, *inferred.maps
            if options.preview:
                from .preview import draw_preview  # late, as it takes a picture library

                shown = [
                    (map_.mark, mid_slices(map_.volume)) for map_ in maps if is_shown(map_.mark)
                ]
                slices = [*map(mid_slices, volumes)]
                preview = draw_preview(study.slices, slices, model.card, shown, warning)
            if options.seam_score:
                source, output = prepared.network_input.values, inferred.output.target.values
                output = output[: len(volumes)]
                seams = seam_score(source, output, prepared.plan.layout, options.blend)
            patches = options.passes * prepared.plan.patches
            notes = tuple(_notes_of_values(volumes, prepared, inferred.output))
            measures = measures_of(prepared, volumes, inferred.output)
            measures = measures and replace(
                measures, distance=study.distance, disagreement=disagreement
            )
            return Translated(
                volumes, patches, preview, seams, maps, figures, study.resampled, notes, measures
            )

    def preview_stored(self, study: Study, targets: Sequence[Path], warning: str) -> bytes:
        """Return the preview of a stored result, reading one volume at a time: its scans, the
        results at `targets` and the maps next to the first.

        warning: shown in it. Raises ScanError and PreparationError.
        """
        options, empty = self.options, self.empty
        source = [*map(mid_slices, self.read(study).volumes)]
        with self.timer.time("read"):
            results = [_result_at(target) for target in targets]
            output = [
                mid_slices(read(result, first_index(result, options), empty)) for result in results
            ]
            maps = [
                (mark, mid_slices(read(_result_at(map_beside(targets[0], mark.kind)), None, empty)))
                for mark in requested_maps(options, self.model.card)
                if is_shown(mark)
            ]
        with self.timer.time("finish"):
            from .preview import draw_preview  # late, as it takes a picture library

            return draw_preview(source, output, self.model.card, maps, warning)


def _result_at(target: Path) -> Study:
    found = discover([target], None, Choice(take_maps=True, fewest_slices=2))
    if len(found.studies) != 1:
        raise UnreadableScanError(
            f"{target} cannot be read as a result; recompute it with setting overwrite."
        )
    return next(iter(found.studies))


def _marks(model: Model) -> tuple[SyntheticMark, ...]:
    """Return the mark of the result of each channel."""
    name, source, _ = model.card.words
    made_by = program_version(), model.sha256[:12]
    return tuple(SyntheticMark(name, source, target, *made_by) for target in model.card.targets)


def _unlike_expected(
    far: Sequence[Deviation], card: ModelCard, options: TranslateOptions
) -> tuple[str, ...]:
    """Return a note on a scan far from what the model expects; refuse it if requested."""
    found = "; ".join(differences(far))
    if not found or card.expected is None:
        return ()
    difference = f"it differs from the {card.expected.studies} scans of the model's calibration set"
    if options.strict_input:
        raise UnexpectedInputError(
            f"The scan is rejected because {difference}: {found}; exclude it, or omit setting "
            "strict-input."
        )
    return (f"{difference}: {found}",)


def _notes_of_values(
    volumes: Sequence[Volume], prepared: Prepared, output: Canvas
) -> Iterator[str]:
    scan = prepared.source.voxels.dtype
    for channel, volume in enumerate(volumes):
        clipped, asked = output.clipped_in(channel), prepared.plan.results[channel].asked
        clipping = note_of_clipped_values(volume, clipped, scan, asked)
        yield from filter(None, (note_of_one_value(volume), clipping))
