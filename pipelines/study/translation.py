"""One study from its files to a translated volume, stage by stage."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ...engine.generator import AnyGenerator, VolumeGenerator
from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model
from ...engine.options import Precision
from ...engine.scaling import Scaling, Stored
from ...io.formats.registry import format_named
from ...io.reading import as_one_study
from ...io.volume import Empty, Study, SyntheticMark, Volume
from ...io.writing import as_at, check_voxel_type, notes_of_result
from ..errors import UnexpectedInputError
from ..program import program_version
from ..settings import TranslateOptions
from ..stopwatch import Stopwatch
from .finishing import (
    Canvas,
    canvas,
    finish,
    finish_map,
    map_canvas,
    note_of_cut_values,
    note_of_one_value,
)
from .maps.flips import UNFLIPPED, Flip, flips
from .maps.spread import SpreadMoments, mean_in_foreground
from .maps.study_map import StudyMap, is_shown, spread_marks
from .pictures.slices import Slice, mid_slices
from .plan import StudyPlan, check_scale, check_volume, plan_study
from .preparation import Prepared, fit_scans, prepare, unfilled
from .row_figures import SeamScore, SpreadFigures
from .seams import seam_score
from .sliding_window import SlidingWindow, translate_array
from .volume_at_once import translate_at_once
from .volumes import StudyVolumes
from .voxels.alignment import on_one_grid
from .voxels.input_figures import differences
from .voxels.missing import without_nan

BeginToStore: TypeAlias = Callable[[Volume], Callable[[int], None]]
"""Given the result, whose voxels are still to come; what it returns is told how many of its slices
are final.
"""
OnTiles: TypeAlias = Callable[[int, int], None]
"""Told how many of how many tiles are translated, or percent of the volume; first with 0."""


def ignore_tiles(_done: int, _all: int) -> None:
    """Progress that nobody wants to hear of."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that is ready to compute, and how: the same from study to study.

    model: with its card. generator: its network, open. options: with none left open.
    """

    model: Model
    generator: AnyGenerator
    options: TranslateOptions


@dataclass(frozen=True, slots=True)
class Scans:
    """The scans of a study on one grid.

    volumes: in the model's order of channels, on the grid of the first. notes: what a user should
    know of how they were read. resampled: which of them were brought onto that grid, in words.
    has_scale: whether the file of a result can have a slope.
    """

    volumes: tuple[Volume, ...]
    notes: tuple[str, ...]
    resampled: tuple[str, ...] = ()
    has_scale: bool = True


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A study in model space, and the scans for a preview.

    prepared: the scans as the network takes them. slices: of each scan, if a preview is asked for.
    resampled: as in Scans. notes: in what the first scan is unlike those that the model was
    calibrated with. scan: the first itself, if the result is to be compared with it.
    """

    prepared: Prepared
    slices: tuple[tuple[Slice, ...], ...]
    resampled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scan: Volume | None = None


@dataclass(frozen=True, slots=True)
class InferredStudy:
    """A study and what the network made of it; notes: what a user should know of how.

    made: what the network filled. precision: in which it was computed in the end. spread: of this
    and of what mirrored patches gave, if it was asked for. finished: the result, where it is
    there already. maps: that were made of it.
    """

    study: PreparedStudy
    made: Canvas
    notes: tuple[str, ...] = ()
    precision: Precision = "fp32"
    spread: "InferredSpread | None" = None
    finished: tuple[Volume, ...] = ()
    maps: tuple[StudyMap, ...] = ()


@dataclass(frozen=True, slots=True)
class InferredSpread:
    """What mirrored patches of a study gave. notes: what a user should know of how.

    spread: of their translations, kept in the canvases `mean` and `deviation`. room: in which they
    were made, one after another, and in which the result is made next.
    """

    spread: SpreadMoments
    mean: Canvas
    deviation: Canvas
    room: Canvas
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Translated:
    """Volumes in the source's grid, how much work it was, and what was asked for besides.

    volumes: one for each channel that comes out. preview: a PNG. tiles: how many were translated.
    seams: the score, if it was asked for. maps: to be stored beside the result. spread: figures of
    it, if it was asked for. resampled: as in Scans. notes: what a user should know of the volumes.
    """

    volumes: tuple[Volume, ...]
    tiles: int
    preview: bytes | None
    seams: SeamScore | None
    maps: tuple[StudyMap, ...] = ()
    spread: SpreadFigures | None = None
    resampled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_study(
    study: Study,
    options: TranslateOptions,
    watch: Stopwatch,
    empty: Empty = np.empty,
    series: StudyVolumes | None = None,
) -> Scans:
    """Read a study's scans, with notes on how its result is stored too; NaN is replaced if asked.

    series: from which the next volume of each scan is read, if it is not read alone. Raises
    ScanError, also for a voxel type that the result cannot have, and PreparationError for scans on
    grids that differ.
    """
    target = Path(study.name)
    with watch.time("read"):
        found = (series or StudyVolumes(study, options, empty)).next()
        volumes = [without_nan(volume, options.nan_to) for volume in found]
        foreseen = notes_of_result(volumes[0], target)
        first = as_at(target, volumes[0])
        if options.output_type not in (None, "same"):
            check_voxel_type(first, np.dtype(options.output_type))
        volumes[0] = replace(first, notes=(*first.notes, *foreseen))
    scans = scans_of(volumes, [scan.channel for scan in study.channels], options, watch)
    return replace(scans, has_scale=format_named(first.format).has_scale)


def scans_of(
    volumes: Sequence[Volume], names: Sequence[str], options: TranslateOptions, watch: Stopwatch
) -> Scans:
    """Volumes as the scans of one study; names: of their channels, told in the notes of several.

    Raises PreparationError for grids that differ.
    """
    with watch.time("prepare"):
        resample = options.resample_channels
        aligned, resampled = on_one_grid(as_one_study(volumes), names, resample=resample)
    if len(aligned) == 1:
        return Scans(aligned, aligned[0].notes)
    notes = chain.from_iterable(
        [f"{name}: {note}" for note in volume.notes]
        for name, volume in zip(names, aligned, strict=True)
    )
    return Scans(aligned, (*notes, *resampled), resampled)


def plan_read_study(
    scans: Scans, model: Model, options: TranslateOptions, watch: Stopwatch
) -> StudyPlan:
    """What is to be done with a study; no option is left open.

    Raises PreparationError, and PatchShapeError for a volume that cannot be translated at once.
    """
    with watch.time("prepare"):
        plan = plan_volumes(scans.volumes, model, options)
        if options.output_type and not scans.has_scale:
            check_scale(plan)
        return plan


def plan_volumes(volumes: Sequence[Volume], model: Model, options: TranslateOptions) -> StudyPlan:
    """As `plan_read_study`, of volumes on one grid whose voxels need not be there."""
    graph = model.network.graph
    plan = plan_study(
        volumes,
        model.card,
        options.settings(),
        graph.stride,
        in_network=options.seam_score,
        spreads=options.spread > 0,
    )
    check_volume(plan, graph)
    return plan


def prepare_study(
    scans: Scans,
    plan: StudyPlan,
    model: Model,
    options: TranslateOptions,
    watch: Stopwatch,
    empty: Empty = np.empty,
) -> PreparedStudy:
    """Bring a study into model space: axes, spacing, intensities. Raises PreparationError."""
    with watch.time("prepare"):
        prepared = prepare(scans.volumes, plan, model.card, empty)
        prepared = replace(prepared, marks=_marks(model))
        notes = *prepared.fit.notes, *_unlike_expected(prepared, model.card, options)
        shown = tuple(map(mid_slices, scans.volumes if options.preview else ()))
        scan = scans.volumes[0] if options.cycle_check else None
        return PreparedStudy(prepared, shown, scans.resampled, notes, scan)


def _marks(model: Model) -> tuple[SyntheticMark, ...]:
    """What the result of each channel says of itself."""
    name, source, _ = model.card.words
    made_by = program_version(), model.sha256[:12]
    return tuple(SyntheticMark(name, source, target, *made_by) for target in model.card.targets)


def foresee_study(
    scans: Scans, plan: StudyPlan, model: Model, options: TranslateOptions, watch: Stopwatch
) -> tuple[Stored, tuple[str, ...]]:
    """What the network would be given, and notes on it. Raises PreparationError as for a run.

    Its voxels are there only where something is told of them: to resample a scan takes several
    times as long as to read and measure it.
    """
    if options.verify or model.card.expected:
        study = prepare_study(scans, plan, model, options, watch)
        return study.prepared.given, study.notes
    with watch.time("prepare"):
        return unfilled(scans.volumes, plan), fit_scans(scans.volumes, model.card).notes


def _unlike_expected(
    prepared: Prepared, card: ModelCard, options: TranslateOptions
) -> tuple[str, ...]:
    """A note on a scan that is far from what the model expects, or an error if so asked."""
    if card.expected is None:
        return ()
    found = "; ".join(differences(prepared.figures(), card.expected))
    if not found:
        return ()
    told = f"it is unlike the {card.expected.studies} scans that the model was calibrated with"
    if options.strict_input:
        raise UnexpectedInputError(
            f"The scan is refused, as {told}: {found}; leave it out, or leave out setting "
            "strict-input."
        )
    return (f"{told}: {found}",)


def infer_spread(
    study: PreparedStudy,
    opened: OpenModel,
    watch: Stopwatch,
    on_tiles: OnTiles,
    empty: Empty = np.empty,
) -> InferredSpread:
    """Run the network on mirror images of a study's patches, all but the patches as they lie.

    Raises EngineError and PreparationError.
    """
    mean, deviation = map_canvas(study.prepared, empty), map_canvas(study.prepared, empty)
    room, notes = canvas(study.prepared, empty), list[str]()
    spread = SpreadMoments(mean.target.values[0], deviation.target.values[0])
    _, *mirrored = flips(opened.options.spread, opened.model.card.axes)
    for done, flip in enumerate(mirrored):
        notes += _run(study, opened, room, _Pass(flip, done), watch, on_tiles)
        with watch.time("finish"):
            spread.add(room.target.values[0])
    return InferredSpread(spread, mean, deviation, room, tuple(dict.fromkeys(notes)))


def infer_study(
    study: PreparedStudy,
    opened: OpenModel,
    watch: Stopwatch,
    on_tiles: OnTiles,
    empty: Empty = np.empty,
    mirrored: InferredSpread | None = None,
    begin_to_store: BeginToStore | None = None,
) -> InferredStudy:
    """Run the network on a study; mirrored: what came out of its patches' mirror images.

    begin_to_store: told of a result that is made as it is stored, before the first of its voxels.

    Raises EngineError and PreparationError.
    """
    made = mirrored.room if mirrored else canvas(study.prepared, empty)
    if made.volume is not None and begin_to_store is not None:
        made = replace(made, target=replace(made.target, on_rows=begin_to_store(made.volume)))
    last = _Pass(UNFLIPPED, opened.options.passes - 1)
    notes = _run(study, opened, made, last, watch, on_tiles)
    if mirrored:
        with watch.time("finish"):
            mirrored.spread.add(made.target.values[0])
    return InferredStudy(study, made, notes, spread=mirrored)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One translation of a study. flip: of its patches. done: passes before it."""

    flip: Flip
    done: int


def _run(
    study: PreparedStudy,
    opened: OpenModel,
    made: Canvas,
    one: _Pass,
    watch: Stopwatch,
    on_tiles: OnTiles,
) -> tuple[str, ...]:
    """Fill a canvas; returns what a user should know of how."""
    plan = study.prepared.plan
    done, total = one.done * plan.steps, opened.options.passes * plan.steps
    watch.stage = "infer"
    on_tiles(done, total)

    def on_more(tiles: int) -> None:
        nonlocal done
        done += tiles
        on_tiles(done, total)

    given, generator = study.prepared.given, opened.generator
    if isinstance(generator, VolumeGenerator):
        translate_at_once(given, made.target, generator, one.flip, watch, on_more)
        return ()
    padding = opened.model.card.small_volume_padding
    window = SlidingWindow(plan.tiling, opened.options.blend, padding, one.flip)
    return translate_array(given, made.target, generator, window, watch, on_more)


def finish_study(
    inferred: InferredStudy,
    model: Model,
    options: TranslateOptions,
    watch: Stopwatch,
    empty: Empty = np.empty,
    warning: str = "",
) -> Translated:
    """Bring a translation and its maps back onto the scans' grid, and make preview and seam score,
    if asked for.

    warning: what the preview is to say besides. Raises EngineError.
    """
    study, tiling = inferred.study, inferred.study.prepared.plan.tiling
    with watch.time("finish"):
        volumes = inferred.finished or finish(study.prepared, inferred.made, empty)
        preview = seams = figures = None
        maps = ()
        if inferred.spread:
            maps, figures = _finish_spread(study.prepared, inferred.spread, empty)
        maps = *maps, *inferred.maps
        if options.preview:
            from .pictures.preview import draw_preview  # late, as it takes a library for pictures

            shown = [(each.mark, mid_slices(each.volume)) for each in maps if is_shown(each.mark)]
            slices = [*map(mid_slices, volumes)]
            preview = draw_preview(study.slices, slices, model.card, shown, warning)
        if options.seam_score:
            given, made = study.prepared.given.values, inferred.made.target.values
            seams = seam_score(given, made, tiling, options.blend)
        tiles = options.passes * study.prepared.plan.tiles
        notes = tuple(_notes_of_values(volumes, study.prepared, model.card))
        return Translated(volumes, tiles, preview, seams, maps, figures, study.resampled, notes)


def _notes_of_values(
    volumes: Sequence[Volume], prepared: Prepared, card: ModelCard
) -> Iterator[str]:
    results = zip(volumes, prepared.fit.outward, prepared.plan.results, strict=True)
    for volume, outward, result in results:
        cut = note_of_cut_values(volume, outward, card.output_range, result.asked)
        yield from filter(None, (note_of_one_value(volume), cut))


def _finish_spread(
    prepared: Prepared, inferred: InferredSpread, empty: Empty
) -> tuple[tuple[StudyMap, ...], SpreadFigures]:
    """The maps of a spread, in the unit of the result, and what it comes to."""
    spread, outward = inferred.spread, prepared.fit.outward[0]
    of_deviation = Scaling(0.0, abs(outward.radius))
    spread.end()
    in_foreground = mean_in_foreground(spread.deviation, prepared.given)
    figures = SpreadFigures(spread.count, of_deviation.radius * in_foreground)
    mean = finish_map(prepared, inferred.mean, outward, empty)
    deviation = finish_map(prepared, inferred.deviation, of_deviation, empty)
    volumes = mean, replace(deviation, keeps_unit=False)
    marks = spread_marks(spread.count)
    return tuple(map(StudyMap, marks, volumes)), figures
