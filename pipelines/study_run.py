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
from .mid_slices import Slice, mid_slices
from .preparation import Prepared, finish, prepare
from .preview import draw_preview
from .seam_score import SeamScore
from .seams import seam_score
from .settings import NO_EXTRAS, Extras, TranslateSettings
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
    extras: Extras = NO_EXTRAS


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A study in the model's world, the tiles that cover it there, and how the scan looked."""

    prepared: Prepared
    tiling: Tiling
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Translated:
    """A volume in the source's grid, how much work it was, and the extras that were asked for.

    preview: a PNG.
    """

    volume: Volume
    tiles: int
    preview: bytes | None
    seams: SeamScore | None


def prepare_study(
    study: Study, model: Model, settings: TranslateSettings, watch: Stopwatch
) -> PreparedStudy:
    """Read a study and bring it into the model's world.

    Raises ScanError or PreparationError.
    """
    with watch.time("read"):
        volume = read(study, settings.volume_index)
    with watch.time("prepare"):
        prepared = prepare(volume, model.card)
        _, depth, height, width = prepared.array.shape
        extents, stride = (depth, height, width), model.network.graph.stride
        tiling = tile(extents, settings.patch, settings.overlap, stride)
        return PreparedStudy(prepared, tiling, mid_slices(volume))


def translate_study(
    study: Study, translator: Translator, watch: Stopwatch, on_tiles: OnTiles
) -> Translated:
    """Read, prepare, translate and finish one study; storing it is the caller's.

    Raises ScanError, PreparationError or EngineError.
    """
    model, settings = translator.model, translator.settings
    ready = prepare_study(study, model, settings, watch)
    prepared, tiling = ready.prepared, ready.tiling
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
        volume = finish(prepared, translated.array, model.card)
        preview = seams = None
        if translator.extras.preview:
            preview = draw_preview(ready.slices, mid_slices(volume), model.card)
        if translator.extras.seam_score:
            seams = seam_score(prepared.array, translated.array, tiling, settings.blend)
        return Translated(volume, len(tiling), preview, seams)
