"""Rivals: studies whose results would share a file or folder; none of them is translated."""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ...io.discovery import Discovery
from ...io.files.regular import is_folder
from ...io.maps import MapMark
from ...io.sidecars import sidecar_of
from ...io.volume import Obstacle, Study
from ...io.writing import map_beside, places, places_for
from .resume import preview_of

MOVE = "move one away"
MOST_NAMED = 3
"""Rivals that a reason names; the others are counted."""


def rivals_refused(
    found: Discovery,
    output: Path,
    marks: Sequence[MapMark] = (),
    *,
    preview: bool = False,
    sidecars: bool = False,
    remedy: str = MOVE,
) -> Discovery:
    """Return the search results with an obstacle for each study whose results collide with others.

    All files and folders of results, their maps, previews and sidecars below `output` are compared;
    two collide if they have the same path, or one is inside the other. remedy: advice for the user.
    Each rival is named after its own source and names the others, whatever their order, so that no
    two studies have the same name afterwards.
    Names that differ only in Unicode normalisation are the same path, and so are those that differ
    only in case if the disk of `output` ignores case.
    """
    one_case = _ignores_case(output)
    owners: dict[str, set[int]] = defaultdict(set)
    for number, study in enumerate(found.studies):
        for place in _places(study, marks, preview=preview, sidecars=sidecars):
            owners[_folded(place, one_case=one_case)].add(number)
    rivals: dict[int, set[int]] = defaultdict(set)
    for place, sharing in owners.items():
        around = [owners[folder] for folder in _folders_of(place) if folder in owners]
        if len(together := sharing.union(*around)) > 1:
            for number in together:
                rivals[number] |= together - {number}
    return _refused(found, rivals, remedy) if rivals else found


def _places(
    study: Study, marks: Sequence[MapMark], *, preview: bool, sidecars: bool
) -> Iterator[str]:
    """Yield files and folders that may be made for a study, relative to the output folder."""
    for result in study.results:
        yield from (place.as_posix() for place in places_for(Path(result), study))
    for beside in (map_beside(Path(study.name), mark.kind) for mark in marks):
        yield from (place.as_posix() for place in places(beside))
    if preview:
        yield preview_of(Path(study.name)).as_posix()
    if sidecars:
        yield from (sidecar_of(Path(result)).as_posix() for result in study.results)


def _folded(place: str, *, one_case: bool) -> str:
    composed = unicodedata.normalize("NFC", place)
    return unicodedata.normalize("NFC", composed.casefold()) if one_case else composed


def _folders_of(place: str) -> Iterator[str]:
    while folder := place.rpartition("/")[0]:
        yield folder
        place = folder


def _refused(found: Discovery, rivals: dict[int, set[int]], remedy: str) -> Discovery:
    sources = {number: _source(found.studies[number], found.root) for number in rivals}
    known = {study.name for at, study in enumerate(found.studies) if at not in rivals}
    studies: list[Study] = []
    for at, study in enumerate(found.studies):
        if at in rivals:
            name = _free_name(sources[at], known)
            known.add(name)
            reason = _reason(sources[at], sorted(sources[each] for each in rivals[at]))
            obstacle = study.obstacle or Obstacle("occupied", f"{reason}; {remedy}")
            study = replace(study, name=name, other_results=(), obstacle=obstacle, mirrored=())
        studies.append(study)
    return replace(found, studies=tuple(sorted(studies, key=lambda study: study.name)))


def _source(study: Study, root: Path) -> PurePosixPath:
    file = study.files[0]
    return PurePosixPath(file.relative_to(root) if file.is_relative_to(root) else file.name)


def _free_name(source: PurePosixPath, known: Iterable[PurePosixPath]) -> PurePosixPath:
    """Return the source's own name, numbered if several studies share one DICOM file."""
    name, number = source, 1
    while name in known:
        number += 1
        name = source.with_name(f"{source.name} ({number})")
    return name


def _reason(source: PurePosixPath, others: Sequence[PurePosixPath]) -> str:
    named = ", ".join(map(str, others[:MOST_NAMED]))
    if len(others) > MOST_NAMED:
        named += f" and {len(others) - MOST_NAMED} more"
    if any(_folded(str(source), one_case=True) == _folded(str(o), one_case=True) for o in others):
        named += " (their names differ only in case or in Unicode normalisation)"
    return f"its result would overwrite that of {named}"


def _ignores_case(output: Path) -> bool:
    """Return whether the disk of `output` ignores case, tested with an existing name on it."""
    place = Path(os.path.realpath(output))
    folder = next(path for path in (place, *place.parents) if is_folder(path))
    try:
        names = [*folder.iterdir(), folder]
        known = next(path for path in names if path.name.swapcase() != path.name)
        return known.with_name(known.name.swapcase()).samefile(known)
    except (OSError, StopIteration):
        return False
