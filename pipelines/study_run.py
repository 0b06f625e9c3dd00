"""One study from its files to a translated volume."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from ..engine.cpu import Generator
from ..engine.model import Model
from ..io.reading import read
from ..io.volume import Study, Volume
from .inference import translate_array
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
class Translated:
    """A volume in the source's grid, and how much work it was."""

    volume: Volume
    tiles: int


def prepare_study(
    study: Study, model: Model, settings: TranslateSettings, watch: Stopwatch
) -> tuple[Prepared, Tiling]:
    """Read a study and bring it into the model's world; and the tiles that cover it there.

    Raises ScanError or PreparationError.
    """
    with watch.time("read"):
        volume = read(study, settings.volume_index)
    with watch.time("prepare"):
        prepared = prepare(volume, model.card)
        _, depth, height, width = prepared.array.shape
        extents, stride = (depth, height, width), model.network.graph.stride
        return prepared, tile(extents, settings.patch, settings.overlap, stride)


def translate_study(
    study: Study, translator: Translator, watch: Stopwatch, on_tiles: OnTiles
) -> Translated:
    """Read, prepare, translate and finish one study; storing it is the caller's.

    Raises ScanError, PreparationError or EngineError.
    """
    model, settings = translator.model, translator.settings
    prepared, tiling = prepare_study(study, model, settings, watch)
    on_tiles(0, len(tiling))
    done = count(1)
    watch.stage = "infer"
    translated = translate_array(
        prepared.array,
        translator.generator,
        tiling,
        settings.blend,
        model.card.small_volume_padding,
        on_tile=lambda: on_tiles(next(done), len(tiling)),
    )
    watch.add("infer", translated.infer_seconds)
    watch.add("blend", translated.blend_seconds)
    with watch.time("finish"):
        return Translated(finish(prepared, translated.array, model.card), len(tiling))
