"""Studies below the inputs, without excluded ones and without this program's results."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath, PurePosixPath

from ...io.choice import ALL_PATHS, Choice, PathGlobs, SkipKind
from ...io.discovery import Discovery, KnownHeaders, discover, is_result, place_of
from ...io.exclusion import Doubt, judged, without_doubtful
from ...io.labels import labels_of
from ...io.volume import Study
from ..errors import NewerRecordError, OutputFolderError
from .manifest import ManifestEntry, load


def discover_scans(
    inputs: Sequence[Path],
    output: Path | None,
    choice: Choice,
    known: KnownHeaders | None = None,
) -> Discovery:
    """Run `discover` without scans whose paths `choice` excludes, and without results.

    Results are recognised by the mark in their files, and by the record of an output folder; a
    file that was changed since counts as a scan. Results that the user named get a blocking error.
    Raises ScanError or NewerRecordError.
    """
    found = discover(inputs, output, choice, known)
    if choice.globs != ALL_PATHS:
        found = _without_excluded(found, choice.globs)
    entries = cache(_entries)

    @cache
    def recorded(folder: Path) -> tuple[Path, ...]:
        """Return a folder and those above it, as far as they have a record."""
        return tuple(each for each in (folder, *folder.parents) if entries(each))

    def synthetic(study: Study) -> Sequence[Doubt]:
        folders = recorded(study.files[0].parent)
        if any(_holds(entries(folder), folder, study) for folder in folders):
            return (_SYNTHETIC,)
        return _synthetic(study, known)

    return without_doubtful(found, synthetic, choice.takes)


def with_mirrored_names(found: Discovery) -> Discovery:
    """Rename results as if they mirrored their scans, using the records of their output folders."""
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


def synthetic_checked(study: Study, takes: Collection[SkipKind]) -> Study:
    """Return a study that the user named, with a blocking error if it is marked as a result.

    takes: see `Choice`.
    """
    return judged(study, _synthetic, takes)


_SYNTHETIC = Doubt("it is a synthetic image, written by this program", "synthetic")


def _synthetic(study: Study, known: KnownHeaders | None = None) -> Sequence[Doubt]:
    """Return a doubt if marks in the study's files show that it is a result."""
    return (_SYNTHETIC,) if is_synthetic(study, known) else ()


def is_synthetic(study: Study, known: KnownHeaders | None = None) -> bool:
    """Return whether marks in the study's files show that it is a result."""
    return any(
        is_result(scan) or (not scan.is_dicom and bool(labels_of(scan.files[0], known).mark))
        for scan in study.channels
    )


def _without_excluded(found: Discovery, globs: PathGlobs) -> Discovery:
    """Return the search results without those that `globs` excludes."""

    def excluded(study: Study) -> Sequence[Doubt]:
        slices = study.files if study.is_dicom else ()
        reason = globs.refusal(
            _place(place_of(study), found.named), [_place(file, found.named) for file in slices]
        )
        return (Doubt(reason, "excluded"),) if reason else ()

    places = {
        *(_place(file, found.named) for study in found.studies for file in study.files),
        *(_place(place_of(study), found.named) for study in found.studies),
        *(_place(row.path, found.named) for row in found.skipped),
    }
    notes = (*found.notes, *globs.unmatched(places))

    def is_kept(path: Path) -> bool:
        return path in found.named or not globs.refusal(_place(path, found.named))

    kept = tuple(row for row in found.skipped if row.kind or is_kept(row.path))
    return without_doubtful(replace(found, skipped=kept, notes=notes), excluded, ())


def _place(path: Path, named: Collection[Path]) -> PurePath:
    """Return a path relative to the input folder it was found in; for an input, its name."""
    folder = next((each for each in path.parents if each in named), path.parent)
    return path.relative_to(folder)


def _entries(folder: Path) -> dict[str, ManifestEntry]:
    """Return a folder's entries by the path of each result; several per multi-channel study."""
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
