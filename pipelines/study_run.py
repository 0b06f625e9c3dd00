"""One study from its files to a translated volume, stage by stage."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from ..engine.cpu import Generator
from ..engine.graph import FloatArray
from ..engine.model import Model
from ..io.reading import read
from ..io.volume import Study, Volume
from .inference import SlidingWindow, translate_array
from .preparation import Prepared, finish, prepare
from .settings import TranslateSettings
from .stopwatch import Stopwatch
from .tiling import Tiling, tile

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
    """A study in the model's world, and the tiles that cover it there."""

    prepared: Prepared
    tiling: Tiling


@dataclass(frozen=True, slots=True)
class InferredStudy:
    """A study and what the network made of it, [C, D, H, W] in network intensity."""

    study: PreparedStudy
    array: FloatArray


@dataclass(frozen=True, slots=True)
class Translated:
    """A volume in the source's grid, and how much work it was."""

    volume: Volume
    tiles: int


def read_study(study: Study, settings: TranslateSettings, watch: Stopwatch) -> Volume:
    """Read a study's volume. Raises ScanError."""
    with watch.time("read"):
        return read(study, settings.volume_index)


def prepare_study(
    volume: Volume, model: Model, settings: TranslateSettings, watch: Stopwatch
) -> PreparedStudy:
    """Bring a scan into the model's world. Raises PreparationError."""
    with watch.time("prepare"):
        prepared = prepare(volume, model.card)
        _, depth, height, width = prepared.array.shape
        extents, stride = (depth, height, width), model.network.graph.stride
        tiling = tile(extents, settings.patch, settings.overlap, stride)
        return PreparedStudy(prepared, tiling)


def infer_study(
    study: PreparedStudy, translator: Translator, watch: Stopwatch, on_tiles: OnTiles
) -> InferredStudy:
    """Run the network on a study. Raises EngineError."""
    tiling, settings = study.tiling, translator.settings
    watch.stage = "infer"
    on_tiles(0, len(tiling))
    done = count(1)
    window = SlidingWindow(tiling, settings.blend, translator.model.card.small_volume_padding)
    translated = translate_array(
        study.prepared.array,
        translator.generator,
        window,
        watch,
        on_tile=lambda: on_tiles(next(done), len(tiling)),
    )
    return InferredStudy(study, translated)


def finish_study(inferred: InferredStudy, model: Model, watch: Stopwatch) -> Translated:
    """Bring a translation back onto the scan's grid. Raises PreparationError."""
    with watch.time("finish"):
        volume = finish(inferred.study.prepared, inferred.array, model.card)
        return Translated(volume, len(inferred.study.tiling))
