"""Studies below the inputs, without the results of earlier runs among them."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath

from ...io.choice import Choice
from ...io.discovery import Discovery, KnownHeaders, discover
from ...io.search import Skipped
from ...io.volume import Study
from ..errors import NewerRecordError, OutputFolderError
from .manifest import ManifestEntry, load


def discover_scans(
    inputs: Sequence[Path],
    output: Path | None,
    choice: Choice,
    known: KnownHeaders | None = None,
) -> Discovery:
    """As `discover`, with what an output folder below an input folder says it holds left out.

    Who names such a folder, or a file in it, as an input has its results translated again. A file
    that was changed since counts as a scan. Raises ScanError or NewerRecordError.
    """
    found = discover(inputs, output, choice, known)
    named = frozenset(Path(os.path.abspath(path)) for path in inputs)  # noqa: PTH100
    entries = cache(_entries)
    studies: list[Study] = []
    skipped = list(found.skipped)
    for study in found.studies:
        if any(_holds(entries(folder), folder, study) for folder in _between(study, named)):
            skipped.append(Skipped(study.files[0], _REASON))
        else:
            studies.append(study)
    skipped.sort(key=lambda row: row.path)
    return replace(found, studies=tuple(studies), skipped=tuple(skipped))


def with_mirrored_names(found: Discovery) -> Discovery:
    """Results with the names that they would have if they mirrored their scans, by the records of
    the output folders around them.
    """
    entries = cache(_entries_or_none)
    studies = tuple(_with_mirrored_name(study, found.root, entries) for study in found.studies)
    return replace(found, studies=studies)


def _with_mirrored_name(
    result: Study, root: Path, entries: Callable[[Path], dict[str, ManifestEntry]]
) -> Study:
    file = result.files[0]
    for folder in file.parents:
        for place in (file, file.parent):  # a series is a folder
            name = place.relative_to(folder).as_posix()
            if entry := entries(folder).get(name):
                results = dict(zip((entry.output, *entry.others), entry.mirrored, strict=False))
                mirrored = folder / results.get(name, name)
                inside = mirrored.is_relative_to(root)
                if name not in results or not inside:
                    return result
                return replace(result, mirrored=(PurePosixPath(mirrored.relative_to(root)),))
    return result


def _entries_or_none(folder: Path) -> dict[str, ManifestEntry]:
    try:
        return _entries(folder)
    except NewerRecordError:
        return {}


_REASON = "it was made by this program; name it, or its output folder, to translate it again"


def _between(study: Study, named: frozenset[Path]) -> Iterator[Path]:
    """The folders around a study, up to the one that was named and without it."""
    file = study.files[0]
    if file in named:
        return
    for folder in file.parents:
        if folder in named:
            return
        yield folder


def _entries(folder: Path) -> dict[str, ManifestEntry]:
    """By the place of each result; a study of several channels has several."""
    found: dict[str, ManifestEntry] = {}
    try:
        known = load(folder)
    except NewerRecordError:
        raise  # or results would be translated again
    except OutputFolderError:
        return {}
    for place, entry in known.items():
        inside = PurePosixPath(place).parent
        others = (str(inside / state.name) for state in entry.outputs)
        found |= dict.fromkeys((*others, place), entry)
    return found


def _holds(entries: dict[str, ManifestEntry], folder: Path, study: Study) -> bool:
    entry = entries.get(study.files[0].relative_to(folder).as_posix())
    if entry is None or entry.status != "written":
        return False
    try:
        state = study.files[0].stat()
    except OSError:
        return False
    marks = state.st_size, state.st_mtime_ns
    return any((output.size, output.modified_ns) == marks for output in entry.outputs)
