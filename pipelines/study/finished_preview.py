"""The preview of a result that is there already, from its files and its scans'."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...engine.model.model_card import ModelCard
from ...io.choice import Choice
from ...io.discovery import discover
from ...io.errors import UnreadableScanError
from ...io.reading import read
from ...io.volume import Empty, Study
from ...io.writing import map_beside
from ..settings import TranslateOptions
from ..stopwatch import Stopwatch
from .maps.study_map import is_shown, maps_asked_for
from .pictures.slices import mid_slices
from .translation import read_study
from .unread import first_index


def preview_from_files(
    study: Study,
    targets: Sequence[Path],
    card: ModelCard,
    options: TranslateOptions,
    watch: Stopwatch,
    empty: Empty = np.empty,
    warning: str = "",
) -> bytes:
    """A PNG of a study's scans, of its results at `targets` and of the maps beside the first that
    the options ask for, one of which is held at a time.

    warning: what it is to say besides. Raises ScanError and PreparationError.
    """
    given = [*map(mid_slices, read_study(study, options, watch, empty).volumes)]
    with watch.time("read"):
        results = [_result_at(target) for target in targets]
        made = [mid_slices(read(result, first_index(result, options), empty)) for result in results]
        maps = [
            (mark, mid_slices(read(_result_at(map_beside(targets[0], mark.kind)), None, empty)))
            for mark in maps_asked_for(options)
            if is_shown(mark)
        ]
    with watch.time("finish"):
        from .pictures.preview import draw_preview  # late, as it takes a library for pictures

        return draw_preview(given, made, card, maps, warning)


def _result_at(target: Path) -> Study:
    found = discover([target], None, Choice(take_maps=True, fewest_slices=2))
    if len(found.studies) != 1:
        raise UnreadableScanError(
            f"{target} cannot be read as a result; make it anew with setting overwrite."
        )
    return next(iter(found.studies))
