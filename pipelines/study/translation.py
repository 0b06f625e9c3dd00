"""One study from its files to a translated volume, stage by stage."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ...engine.generator import Generator
from ...engine.model.model import Model
from ...engine.options import Precision
from ...io.reading import read
from ...io.volume import Empty, Study, Volume
from ...io.writing import notes_of_result
from ..settings import TranslateOptions
from ..stopwatch import Stopwatch
from .finishing import Canvas, canvas, finish
from .maps.study_map import StudyMap
from .plan import StudyPlan, plan_study
from .preparation import Prepared, prepare
from .seam_score import SeamScore
from .seams import seam_score
from .slices import Slice, mid_slices
from .sliding_window import SlidingWindow, translate_array
from .voxels.missing import without_nan

OnTiles: TypeAlias = Callable[[int, int], None]
"""Told how many of how many tiles are translated; first with 0."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that is ready to compute, and how: the same from study to study.

    model: with its card. generator: its network, open. options: with none left open.
    """

    model: Model
    generator: Generator
    options: TranslateOptions


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A study in the model's world, and the scan for a preview.

    prepared: the scan as the network takes it. slices: of the scan, if a preview is asked for.
    """

    prepared: Prepared
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class InferredStudy:
    """A study and what the network made of it; notes: what a user should know of how.

    made: what the network filled. precision: in which it was computed in the end.
    """

    study: PreparedStudy
    made: Canvas
    notes: tuple[str, ...] = ()
    precision: Precision = "fp32"


@dataclass(frozen=True, slots=True)
class Translated:
    """A volume in the source's grid, how much work it was, and what was asked for besides.

    preview: a PNG. tiles: how many there were. seams: the score, if it was asked for. maps: to be
    stored beside the result.
    """

    volume: Volume
    tiles: int
    preview: bytes | None
    seams: SeamScore | None
    maps: tuple[StudyMap, ...] = ()


def read_study(
    study: Study, options: TranslateOptions, watch: Stopwatch, empty: Empty = np.empty
) -> Volume:
    """Read a study's volume, with notes on how its result is stored too; NaN is replaced if asked.

    Raises ScanError.
    """
    with watch.time("read"):
        volume = without_nan(read(study, options.volume_index, empty), options.nan_to)
        foreseen = notes_of_result(volume, Path(study.name))
        return replace(volume, notes=(*volume.notes, *foreseen))


def plan_read_study(
    volume: Volume, model: Model, options: TranslateOptions, watch: Stopwatch
) -> StudyPlan:
    """What is to be done with a scan; no option is left open. Raises PreparationError."""
    with watch.time("prepare"):
        settings, stride = options.settings(), model.network.graph.stride
        return plan_study(volume, model.card, settings, stride, in_network=options.seam_score)


def prepare_study(
    volume: Volume,
    plan: StudyPlan,
    model: Model,
    options: TranslateOptions,
    watch: Stopwatch,
    empty: Empty = np.empty,
) -> PreparedStudy:
    """Bring a scan into the model's world. Raises PreparationError."""
    with watch.time("prepare"):
        prepared = prepare(volume, plan, model.card, empty)
        return PreparedStudy(prepared, mid_slices(volume) if options.preview else ())


def infer_study(
    study: PreparedStudy,
    opened: OpenModel,
    watch: Stopwatch,
    on_tiles: OnTiles,
    empty: Empty = np.empty,
) -> InferredStudy:
    """Run the network on a study. Raises EngineError and PreparationError."""
    tiling = study.prepared.plan.tiling
    watch.stage = "infer"
    on_tiles(0, len(tiling))
    done = 0

    def on_more(tiles: int) -> None:
        nonlocal done
        done += tiles
        on_tiles(done, len(tiling))

    card = opened.model.card
    window = SlidingWindow(tiling, opened.options.blend, card.small_volume_padding)
    made = canvas(study.prepared, empty)
    given, generator = study.prepared.given, opened.generator
    notes = translate_array(given, made.target, generator, window, watch, on_more)
    return InferredStudy(study, made, notes)


def finish_study(
    inferred: InferredStudy,
    model: Model,
    options: TranslateOptions,
    watch: Stopwatch,
    empty: Empty = np.empty,
) -> Translated:
    """Bring a translation back onto the scan's grid, and make preview and seam score, if asked for.

    Raises EngineError.
    """
    study, tiling = inferred.study, inferred.study.prepared.plan.tiling
    with watch.time("finish"):
        volume = finish(study.prepared, inferred.made, empty)
        preview = seams = None
        if options.preview:
            from .preview import draw_preview  # late, as it takes a library for pictures

            preview = draw_preview(study.slices, mid_slices(volume), model.card)
        if options.seam_score:
            given, made = study.prepared.given.values, inferred.made.target.values
            seams = seam_score(given, made, tiling, options.blend)
        return Translated(volume, len(tiling), preview, seams)
