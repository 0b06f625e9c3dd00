"""One study from its files to a translated volume, stage by stage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...engine.generator import Generator
from ...engine.model.model import Model
from ...io.reading import read
from ...io.volume import Empty, Study, Volume
from ..settings import NO_EXTRAS, Blend, Extras, TranslateSettings
from ..stopwatch import Stopwatch
from .finishing import Canvas, canvas, finish
from .plan import StudyPlan, plan_study
from .preparation import Prepared, prepare
from .preview import Slice, draw_preview, mid_slices
from .seam_score import SeamScore
from .seams import seam_score
from .sliding_window import SlidingWindow, translate_array

OnTiles: TypeAlias = Callable[[int, int], None]
"""Told how many of how many tiles are translated; first with 0."""


@dataclass(frozen=True, slots=True)
class Translator:
    """What stays the same from study to study."""

    model: Model
    generator: Generator
    settings: TranslateSettings


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A study in the model's world, and the scan for a preview."""

    prepared: Prepared
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class InferredStudy:
    """A study and what the network made of it; notes: what a user should know of how."""

    study: PreparedStudy
    made: Canvas
    blend: Blend
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Translated:
    """A volume in the source's grid, how much work it was, and the extras that were asked for.

    preview: a PNG.
    """

    volume: Volume
    tiles: int
    preview: bytes | None
    seams: SeamScore | None


def read_study(
    study: Study, settings: TranslateSettings, watch: Stopwatch, empty: Empty = np.empty
) -> Volume:
    """Read a study's volume. Raises ScanError."""
    with watch.time("read"):
        return read(study, settings.volume_index, empty)


def plan_read_study(
    volume: Volume, model: Model, settings: TranslateSettings, watch: Stopwatch, extras: Extras
) -> StudyPlan:
    """What is to be done with a scan. Raises PreparationError."""
    with watch.time("prepare"):
        stride = model.network.graph.stride
        return plan_study(volume, model.card, settings, stride, in_network=extras.seam_score)


def prepare_study(
    volume: Volume,
    plan: StudyPlan,
    model: Model,
    watch: Stopwatch,
    empty: Empty = np.empty,
    extras: Extras = NO_EXTRAS,
) -> PreparedStudy:
    """Bring a scan into the model's world. Raises PreparationError."""
    with watch.time("prepare"):
        prepared = prepare(volume, plan, model.card, empty)
        return PreparedStudy(prepared, mid_slices(volume) if extras.preview else ())


def infer_study(
    study: PreparedStudy,
    translator: Translator,
    watch: Stopwatch,
    on_tiles: OnTiles,
    empty: Empty = np.empty,
) -> InferredStudy:
    """Run the network on a study. Raises EngineError and PreparationError."""
    tiling, settings = study.prepared.plan.tiling, translator.settings
    watch.stage = "infer"
    on_tiles(0, len(tiling))
    done = 0

    def on_more(tiles: int) -> None:
        nonlocal done
        done += tiles
        on_tiles(done, len(tiling))

    card = translator.model.card
    window = SlidingWindow(tiling, settings.blend, card.small_volume_padding)
    made = canvas(study.prepared, empty)
    given, generator = study.prepared.given, translator.generator
    notes = translate_array(given, made.target, generator, window, watch, on_more)
    return InferredStudy(study, made, settings.blend, notes)


def finish_study(
    inferred: InferredStudy,
    model: Model,
    extras: Extras,
    watch: Stopwatch,
    empty: Empty = np.empty,
) -> Translated:
    """Bring a translation back onto the scan's grid, and make the extras. Raises EngineError."""
    study, tiling = inferred.study, inferred.study.prepared.plan.tiling
    with watch.time("finish"):
        volume = finish(study.prepared, inferred.made, empty)
        preview = seams = None
        if extras.preview:
            preview = draw_preview(study.slices, mid_slices(volume), model.card)
        if extras.seam_score:
            given, made = study.prepared.given.values, inferred.made.target.values
            seams = seam_score(given, made, tiling, inferred.blend)
        return Translated(volume, len(tiling), preview, seams)
