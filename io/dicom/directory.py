"""DICOMDIR: the images that a disk or export should hold, by series."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..files.regular import is_there
from .instance import DataSet, items, number, word, words
from .library import PARSING_ERRORS, tag_of
from .parsing import read_partial

_NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
"""Part of a path; the standard allows less, and no record may lead out of the folder."""
_RECORDS = "DirectoryRecordSequence"
_FIRST = "OffsetOfTheFirstDirectoryRecordOfTheRootDirectoryEntity"
_NEXT = "OffsetOfTheNextDirectoryRecord"
_BELOW = "OffsetOfReferencedLowerLevelDirectoryEntity"


@dataclass(frozen=True, slots=True)
class ListedImage:
    """An image in a DICOMDIR.

    uid: its SOPInstanceUID. file: its path from the DICOMDIR's folder.
    """

    uid: str
    file: PurePosixPath


@dataclass(frozen=True, slots=True)
class Directory:
    """A DICOMDIR.

    file: its own path. series: the images of each, by SeriesInstanceUID; empty if it is damaged.
    """

    file: Path
    series: Mapping[str, tuple[ListedImage, ...]]

    def absent(self, series: str, found: frozenset[str]) -> tuple[ListedImage, ...]:
        """Images of a series that are neither among the found ones nor where they should lie."""
        return tuple(
            image
            for image in self.series.get(series, ())
            if image.uid not in found and not is_there(self.file.parent / image.file)
        )


def read_directory(path: Path, file: BinaryIO) -> Directory:
    """What a DICOMDIR lists. Raises OSError and MemoryError."""
    file.seek(0)
    try:
        dataset = read_partial(file, specific_tags=[tag_of(_RECORDS), tag_of(_FIRST)])
        return Directory(path, _by_series(dataset))
    except PARSING_ERRORS:
        return Directory(path, {})


def _by_series(dataset: DataSet) -> dict[str, tuple[ListedImage, ...]]:
    at = {int(record.seq_item_tell): record for record in items(dataset, _RECORDS)}
    found: dict[str, list[ListedImage]] = {}
    pending = [(int(number(dataset, _FIRST)), "")]
    while pending:
        place, series = pending.pop()
        record = at.pop(place, None)  # once, as records may lead in a circle
        if record is None:
            continue
        kind = word(record, "DirectoryRecordType")
        pending.append((int(number(record, _NEXT)), series))
        below = word(record, "SeriesInstanceUID") if kind == "SERIES" else series
        pending.append((int(number(record, _BELOW)), below))
        if kind == "IMAGE" and series:
            found.setdefault(series, []).extend(_listed(record))
    return {series: tuple(images) for series, images in found.items()}


def _listed(record: DataSet) -> Iterator[ListedImage]:
    uid, parts = word(record, "ReferencedSOPInstanceUIDInFile"), words(record, "ReferencedFileID")
    if uid and parts and all(map(_NAME.fullmatch, parts)):
        yield ListedImage(uid, PurePosixPath(*parts))
