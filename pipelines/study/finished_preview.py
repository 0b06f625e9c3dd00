"""The preview of a result that is there already, from its files and its scans'."""

from collections.abc import Sequence
from pathlib import Path

from ...io.choice import Choice
from ...io.discovery import discover
from ...io.errors import UnreadableScanError
from ...io.reading import read
from ...io.volume import Study
from ...io.writing import map_beside
from .geometry import mid_slices
from .maps import is_shown, maps_asked_for
from .translator import StudyTranslator
from .volumes import first_index


def preview_from_files(
    translator: StudyTranslator, study: Study, targets: Sequence[Path], warning: str = ""
) -> bytes:
    """Return a PNG of a study's scans, its results at `targets` and the maps next to the first
    that the options request, reading one volume at a time.

    warning: shown in it. Raises ScanError and PreparationError.
    """
    options, empty = translator.options, translator.empty
    given = [*map(mid_slices, translator.read(study).volumes)]
    with translator.watch.time("read"):
        results = [_result_at(target) for target in targets]
        made = [mid_slices(read(result, first_index(result, options), empty)) for result in results]
        maps = [
            (mark, mid_slices(read(_result_at(map_beside(targets[0], mark.kind)), None, empty)))
            for mark in maps_asked_for(options)
            if is_shown(mark)
        ]
    with translator.watch.time("finish"):
        from .preview import draw_preview  # late, as it takes a picture library

        return draw_preview(given, made, translator.model.card, maps, warning)


def _result_at(target: Path) -> Study:
    found = discover([target], None, Choice(take_maps=True, fewest_slices=2))
    if len(found.studies) != 1:
        raise UnreadableScanError(
            f"{target} cannot be read as a result; make it anew with setting overwrite."
        )
    return next(iter(found.studies))
