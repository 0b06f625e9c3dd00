"""Files of a series: images, copies elsewhere, unreadable slices, and what a DICOMDIR lists."""

import filecmp
import os
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

from ..choice import Choice
from ..files.regular import is_there, open_regular
from .bounded_reading import read_partial
from .dataset import PARSING_ERRORS, DataSet, items, number, tag_of, word, words
from .frames import Instance
from .object_types import IS_MAP
from .recognition import DICOM_SUFFIXES, Unreadable, naming

_NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
"""Part of a path; the standard allows less, and no record may lead out of the folder."""
_RECORDS = "DirectoryRecordSequence"
_FIRST = "OffsetOfTheFirstDirectoryRecordOfTheRootDirectoryEntity"
_NEXT = "OffsetOfTheNextDirectoryRecord"
_BELOW = "OffsetOfReferencedLowerLevelDirectoryEntity"
_LITTLE_ENDIAN = (ImplicitVRLittleEndian, ExplicitVRLittleEndian)


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
        """Return images of a series that were not found and are not where they should be."""
        return tuple(
            image
            for image in self.series.get(series, ())
            if image.uid not in found and not is_there(self.file.parent / image.file)
        )


def read_directory(path: Path, file: BinaryIO) -> Directory:
    """Read the contents of a DICOMDIR. Raises OSError and MemoryError."""
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


@dataclass(eq=False)
class Members:
    """The files of one series in one place.

    instances: the images. copies: number of further files with one of them, by its identifier.
    unlike: number of these that differ from the file that is used. rivals: those of them whose
    pixels differ, each after the file that is used; nothing shows which is right. lost: files that
    look like slices of it, and folders that may hold some, which cannot be read. listed: number of
    images that a DICOMDIR next to them lists. absent: those of these that do not exist.
    """

    instances: list[Instance]
    copies: int = 0
    unlike: int = 0
    rivals: tuple[tuple[Path, Path], ...] = ()
    lost: list[Unreadable] = field(default_factory=list[Unreadable])
    listed: int = 0
    absent: tuple[ListedImage, ...] = ()

    @property
    def first(self) -> Instance:
        """One of the images, of which there is always one."""
        return self.instances[0]

    @cached_property
    def folders(self) -> frozenset[Path]:
        """Folders of its files."""
        return frozenset(each.file.parent for each in self.instances)

    @cached_property
    def folder(self) -> Path:
        """The folder that its files share."""
        return Path(os.path.commonpath(self.folders))

    @cached_property
    def namings(self) -> frozenset[str]:
        """Patterns of its files' names."""
        return frozenset(naming(each.file) for each in self.instances)


def asked_for(instances: Iterable[Instance], choice: Choice) -> list[Instance]:
    """Return the images without those of maps stored with results, unless requested."""
    return [
        replace(instance, blocker=IS_MAP, frames=())
        if instance.is_map and not instance.blocker and not choice.take_maps
        else instance
        for instance in instances
    ]


def members_of(
    instances: Iterable[Instance], unreadable: Sequence[Unreadable], closed: Sequence[Unreadable]
) -> list[Members]:
    """Return the images by patient, study and series, each once, with unreadable and missing ones.

    A folder with all of a series is that series, whatever other folders hold of it.
    unreadable: files. closed: folders that cannot be opened.
    """
    series: dict[tuple[str, str, str], list[Instance]] = defaultdict(list)
    for instance in instances:
        series[instance.patient, instance.study, instance.series].append(instance)
    found = [members for same in series.values() for members in _places(same)]
    for lost in unreadable:
        for members in _losers(lost, found):
            members.lost.append(lost)
    for lost in closed:
        for members in _nearby(lost, found):
            members.lost.append(lost)
    return found


def note_absent(found: Sequence[Members], directories: Sequence[Directory]) -> None:
    """Compare series with the list of each DICOMDIR in a parent folder.

    A series without any file is not reported: a part of an export may be all that is wanted.
    """
    uids = frozenset(each.uid for members in found for each in members.instances)
    for members in found:
        for directory in directories:
            series = members.first.series
            absent = directory.absent(series, uids)
            is_below = members.folder.is_relative_to(directory.file.parent)
            if is_below and len(absent) > len(members.absent):
                members.absent, members.listed = absent, len(directory.series[series])


def _places(same: Sequence[Instance]) -> Iterator[Members]:
    """Yield one for each folder that holds all images, or one for all folders together."""
    images = {_image(each): each for each in reversed(same)}
    if len(images) == len(same):
        yield Members(list(same))
        return
    whole = [held for held in _by_folder(same) if len(set(map(_image, held))) == len(images)]
    if not whole:
        unique = sorted(images.values(), key=lambda each: each.file)
        members = _without_copies(Members(unique), same)
        if members.unlike:
            members.rivals = tuple(_rivals(members, same))
        yield members
        return
    held_somewhere = {id(each) for held in whole for each in held}
    left_over = [each for each in same if id(each) not in held_somewhere]
    for held in whole:
        for members in _places(held):
            yield _without_copies(members, left_over)
            left_over = []


def _image(instance: Instance) -> Hashable:
    """Return a key that two files of one image have in common.

    Some programs that take patients out of headers give all images one identifier; the places of
    their pixels still distinguish slices, and their numbers, echoes and moments those of one place.
    """
    return instance.uid, tuple(
        (frame.position, frame.orientation, frame.contrast, frame.moment, frame.image)
        for frame in instance.frames
    )


def _without_copies(members: Members, found: Sequence[Instance]) -> Members:
    """Return the same, with count of those of the found images that are taken from another file."""
    taken = {_image(each): each.file for each in members.instances}
    copies = [each.file for each in found if each.file != taken[_image(each)]]
    unlike = [each for each in found if not _is_same_file(each.file, taken[_image(each)])]
    members.copies += len(copies)
    members.unlike += len(unlike)
    return members


def _rivals(members: Members, found: Sequence[Instance]) -> Iterator[tuple[Path, Path]]:
    """Yield the file that is used, and each file of the same image with other pixels."""
    taken = {_image(each): each.file for each in members.instances}
    for each in found:
        used = taken[_image(each)]
        if not _is_same_file(each.file, used):
            one, other = _uncompressed_pixels(each.file), _uncompressed_pixels(used)
            if one is not None and other is not None and one != other:
                yield used, each.file


def _uncompressed_pixels(path: Path) -> bytes | None:
    """Return the pixels of a file, little-endian; None if they are packed or cannot be read."""
    with suppress(OSError, *PARSING_ERRORS), open_regular(path) as file:
        dataset = read_partial(file, force=True, specific_tags=[tag_of("PixelData")])
        syntax = word(dataset.file_meta, "TransferSyntaxUID")
        if syntax in _LITTLE_ENDIAN and "PixelData" in dataset:
            return bytes(dataset.get_item("PixelData").value)
    return None


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one == other or filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _by_folder(same: Sequence[Instance]) -> list[list[Instance]]:
    """Return images grouped by subfolder of the folder that all share, at any depth; those directly
    in it are a group too. No groups if there is only one.
    """
    shared = len(Path(os.path.commonpath([each.file.parent for each in same])).parts)
    held: dict[str, list[Instance]] = defaultdict(list)
    for each in same:
        below = each.file.parts[shared:]
        held[below[0] if len(below) > 1 else ""].append(each)
    return list(held.values()) if len(held) > 1 else []


def _losers(lost: Unreadable, found: Sequence[Members]) -> Iterator[Members]:
    """Yield the series of which a file may be a slice, by its contents, name and place."""
    if lost.series and (named := [one for one in found if one.first.series == lost.series]):
        nearest = [one for one in named if lost.file.is_relative_to(one.folder)]
        yield from nearest or named
        return
    candidates = _nearby(lost, found)
    same_name = [one for one in candidates if naming(lost.file) in one.namings]
    yield from same_name or (
        one for one in candidates if lost.is_dicom and _may_hold(one, lost.file)
    )


def _nearby(lost: Unreadable, found: Sequence[Members]) -> list[Members]:
    """Return the series with files in the same folder, or else those in several folders below a
    parent of it.
    """
    folder = lost.file.parent
    beside = [one for one in found if folder in one.folders]
    return beside or [
        one for one in found if len(one.folders) > 1 and folder.is_relative_to(one.folder)
    ]


def _may_hold(members: Members, file: Path) -> bool:
    """Return whether a DICOM file of another name may be a slice of a series."""
    suffixes = {each.file.suffix.lower() for each in members.instances}
    own = file.suffix.lower()
    return len(members.namings) > 1 or (own in DICOM_SUFFIXES and own in suffixes)
