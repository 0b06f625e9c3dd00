"""One study from its files to a translated volume."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..engine.cpu import Generator
from ..engine.model import Model
from ..io.reading import read
from ..io.volume import Study, Volume
from .inference import translate_array
from .preparation import finish, prepare
from .settings import TranslateSettings
from .stopwatch import Stopwatch
from .tiling import tile

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


def translate_study(
    study: Study, translator: Translator, watch: Stopwatch, on_tiles: OnTiles
) -> Translated:
    """Read, prepare, translate and finish one study; storing it is the caller's.

    Raises ScanError, PreparationError or EngineError.
    """
    settings, card = translator.settings, translator.model.card
    with watch.time("read"):
        volume = read(study, settings.volume_index)
    with watch.time("prepare"):
        prepared = prepare(volume, card)
        del volume
        _, depth, height, width = prepared.array.shape
        extents = depth, height, width
        tiling = tile(extents, settings.patch, settings.overlap, translator.generator.graph.stride)
    on_tiles(0, len(tiling))
    watch.stage = "infer"
    translated = translate_array(
        prepared.array, translator.generator, tiling, settings.blend, on_tiles
    )
    watch.add("infer", translated.infer_seconds)
    watch.add("blend", translated.blend_seconds)
    with watch.time("finish"):
        return Translated(finish(prepared, translated.array, card), len(tiling))
