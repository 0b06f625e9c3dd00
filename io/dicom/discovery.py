"""DICOM series among the files that a search has met."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ..choice import Choice
from ..search import IMAGE_SUFFIXES, SUFFIXES, FileSearch, Skipped, suffix_of
from ..volume import Obstacle, Study
from .headers import Headers, Unreadable, content_of, has_dicom_suffix, scan
from .members import members_of, naming
from .series import Series, assemble

DIRECTORY = "DICOMDIR"
START_BYTES = 4096
"""Of a file that should be DICOM, by which it is told what it is instead."""


def find_series(search: FileSearch, choice: Choice) -> list[Series]:
    """All DICOM series among the files without a telling name; all others are accounted for."""
    headers = scan(sorted(search.unnamed))
    namings = _namings(headers) if headers.others or search.unopened else frozenset[str]()
    unreadable = list(headers.unreadable)
    for path in headers.others:
        if naming(path) in namings:
            unreadable.append(Unreadable(path, _content_of(path)))
        elif path in search.by_name:
            kinds = ", ".join(SUFFIXES)
            reason = f"it is of no known kind; known are DICOM, {kinds}"
            search.skipped.append(Skipped(path, reason))
        elif suffix_of(path) in IMAGE_SUFFIXES:
            reason = "the .hdr that describes it is missing"
            search.skipped.append(Skipped(path, reason, missed=True))
        else:
            search.ignored += 1
    for skip in search.unopened:
        looks_so = has_dicom_suffix(skip.path) or naming(skip.path) in namings
        if skip.missed or looks_so:
            unreadable.append(Unreadable(skip.path, skip.reason, is_dicom=looks_so))
        else:
            search.skipped.append(skip)
    closed = [Unreadable(skip.path, skip.reason) for skip in search.closed]
    search.skipped += [Skipped(bad.file, bad.reason, missed=True) for bad in unreadable]
    search.skipped += search.closed
    series = assemble(members_of(headers.instances, unreadable, closed), choice)
    search.skipped += [_skipped(each) for each in series if each.verdict == "skipped"]
    return series


def _namings(headers: Headers) -> frozenset[str]:
    return frozenset(naming(instance.file) for instance in headers.instances)


def _content_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return content_of(file.read(START_BYTES))
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"


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
            Obstacle("unreadable", each.told) if each.is_incomplete else None,
            each.text,
        )
        for each in series
        if each.verdict != "skipped"
    ]


def without_directory(path: Path) -> Path:
    """The folder that a DICOMDIR indexes, as its files are searched for themselves."""
    return path.parent if path.name.upper() == DIRECTORY and path.is_file() else path


def _skipped(series: Series) -> Skipped:
    images = f"{series.images} image{'s' if series.images > 1 else ''}"
    kind = ", ".join(filter(None, (series.modality, images, series.kind)))
    return Skipped(series.files[0], f"{series.label} ({kind}): {series.told}")
