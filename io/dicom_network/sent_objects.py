"""Objects of derived series on disk, as they are sent."""

import io
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..dicom.bounded_reading import read_partial
from ..dicom.dataset import PARSING_ERRORS, DataSet, encoded, pydicom, tag_of, word
from ..dicom.stored_text import all_as_stored
from ..files.regular import open_regular
from .errors import RefusedError
from .negotiation import REJECTION_NOTE

_DAMAGED = "a result on disk is damaged"
_META_LENGTH = tag_of("FileMetaInformationGroupLength")
_META_AT = 132
"""Bytes of preamble and magic word."""
_PIXELS = struct.Struct("<HH4sL")


@dataclass(frozen=True, slots=True)
class SentObject:
    """Identity of an object on disk.

    sop_class, instance, study, series: its UIDs. start: offset of its data set, after the file
    meta.
    """

    sop_class: str
    instance: str
    study: str
    series: str
    start: int


def object_in(file: BinaryIO) -> SentObject:
    """Return the object of a file, whose pixels, if it has any, are all there.

    Raises RefusedError.
    """
    with _parsed():
        dataset = pydicom.dcmread(file, stop_before_pixels=True)
        start = _META_AT + 12 + int(dataset.file_meta[_META_LENGTH].value)
        study, series = (word(dataset, name) for name in ("StudyInstanceUID", "SeriesInstanceUID"))
    identity = _identity(dataset.file_meta)
    if identity[0] != REJECTION_NOTE and not _has_pixels(file):
        raise RefusedError(_DAMAGED)
    return SentObject(*identity, study, series, start)


def identity_of(file: Path) -> tuple[str, str]:
    """SOPClassUID and SOPInstanceUID of a file of a derived series.

    Raises RefusedError if it has none.
    """
    with opened(file) as stream, _parsed():
        return _identity(read_partial(stream, _is_after_meta).file_meta)


def patient_and_study_of(file: Path) -> tuple[str, str]:
    """Return PatientID and StudyInstanceUID of a file. Raises RefusedError if it is damaged."""
    with opened(file) as stream, _parsed():
        header = pydicom.dcmread(
            stream, stop_before_pixels=True, specific_tags=["PatientID", "StudyInstanceUID"]
        )
        return word(header, "PatientID"), word(header, "StudyInstanceUID")


def implicit_data(file: Path) -> bytes:
    """Return the data set of a file in implicit little endian."""
    with open_regular(file) as stream:
        dataset = all_as_stored(pydicom.dcmread(stream))
    dataset.set_original_encoding(True, True, dataset.original_character_set)
    return encoded(dataset, is_implicit=True)


@contextmanager
def opened(file: Path) -> Generator[BinaryIO]:
    """Open a file for the block. Raises RefusedError, which keeps no other from being sent."""
    try:
        with open_regular(file) as stream:
            yield stream
    except OSError as error:
        raise RefusedError(f"{file} cannot be read ({error.strerror or error})") from None


def _is_after_meta(_tag: int, _kind: str | None, _length: int) -> bool:
    return True


def _identity(meta: DataSet) -> tuple[str, str]:
    found = word(meta, "MediaStorageSOPClassUID"), word(meta, "MediaStorageSOPInstanceUID")
    if not all(found):
        raise RefusedError(_DAMAGED)
    return found


def _has_pixels(file: BinaryIO) -> bool:
    """Return whether the next element, in explicit VR, is that of the pixels and is all there."""
    head = file.read(_PIXELS.size)
    if len(head) < _PIXELS.size:
        return False
    group, element, _, length = _PIXELS.unpack(head)
    at = file.tell()
    return (group, element) == (0x7FE0, 0x0010) and at + length <= file.seek(0, io.SEEK_END)


@contextmanager
def _parsed() -> Generator[None]:
    try:
        yield
    except PARSING_ERRORS:
        raise RefusedError(_DAMAGED) from None
