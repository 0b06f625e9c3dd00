"""DICOM series among the files that a search has met."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ..choice import Choice
from ..search import IMAGE_SUFFIXES, SUFFIXES, FileSearch, Skipped, suffix_of
from ..volume import Study
from .headers import scan
from .series import Series, assemble

DIRECTORY = "DICOMDIR"


def find_series(search: FileSearch, choice: Choice) -> list[Series]:
    """All DICOM series among the files without a telling name; all others are accounted for."""
    headers = scan(sorted(search.unnamed))
    for path in headers.others:
        if path in search.by_name:
            kinds = ", ".join(SUFFIXES)
            reason = f"it is of no known kind; known are DICOM, {kinds}"
            search.skipped.append(Skipped(path, reason))
        elif suffix_of(path) in IMAGE_SUFFIXES:
            search.skipped.append(Skipped(path, "the .hdr that describes it is missing"))
        else:
            search.ignored += 1
    search.skipped += [Skipped(bad.file, bad.reason) for bad in headers.unreadable]
    series = assemble(headers.instances, choice)
    search.skipped += [_skipped(each) for each in series if each.verdict == "skipped"]
    return series


def dicom_studies(series: Iterable[Series], root: Path) -> list[Study]:
    """A study for each series that is or should be a volume; reading it tells what is wrong.

    Its result is a folder beside where the series' files lie together.
    """
    return [
        Study(
            PurePosixPath(each.folder.relative_to(root).as_posix()) / each.label,
            each.files,
            "dicom",
            each,
            each.notes,
        )
        for each in series
        if each.verdict != "skipped"
    ]


def without_directory(path: Path) -> Path:
    """The folder that a DICOMDIR indexes, as its files are searched for themselves."""
    return path.parent if path.name.upper() == DIRECTORY and path.is_file() else path


def _skipped(series: Series) -> Skipped:
    images = f"{series.images} image{'s' if series.images > 1 else ''}"
    kind = f"{series.modality}, {images}" if series.modality else images
    return Skipped(series.files[0], f"{series.label} ({kind}): {series.told}")
