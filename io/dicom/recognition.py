"""Recognition of DICOM files by their names and first bytes, without pydicom."""

import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..files.streams import GZIP_MAGIC, substitute_of

DICOM_SUFFIXES = (".dcm", ".dicom", ".ima", ".dcm.gz", ".dicom.gz", ".ima.gz")
_MAGIC_AT, _MAGIC = 128, b"DICM"
_FIRST_GROUPS = (b"\x02\0", b"\x08\0", b"\0\x08")
"""First groups of a data set without a preamble, in either order of bytes."""
_FIRST_KINDS = (b"UL", b"CS", b"UI", b"OB", b"DA")
_IMPLICIT = struct.Struct("<HHI")
"""Group, element and length of the value that follows."""
_IDENTIFYING, _LONGEST_FIRST, _LAST_EARLY = 0x0008, 64, 0x0060
"""Group that data sets begin with, the longest value that its first elements have, and an element
that is among its first."""
_UID = re.compile(r"\d+(\.\d+){3,}")
_RANDOM = re.compile(r"(?=[a-z]*\d)(?=\d*[a-z])[0-9a-f]{8,}")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is or should be DICOM but cannot be used, and the reason.

    series: its SeriesInstanceUID, if that much could be read. is_dicom: whether its content, or its
    name by itself, says that it is DICOM. reason: in words for the report. may_be_slice: whether it
    may be an image of a neighbouring series; otherwise it is skipped like other objects.
    """

    file: Path
    reason: str
    series: str = ""
    is_dicom: bool = True
    may_be_slice: bool = True


def has_preamble(start: bytes) -> bool:
    """Return whether a file begins as DICOM files do."""
    return start[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC


def is_data_set(start: bytes) -> bool:
    """Return whether a file begins as data sets did before there was a preamble."""
    if start[:2] in _FIRST_GROUPS and start[4:6] in _FIRST_KINDS:
        return True
    return _is_implicit_data_set(start)


def _is_implicit_data_set(start: bytes) -> bool:
    """Return whether a file begins as a data set in implicit VR: by its first two elements."""
    if len(start) < 2 * _IMPLICIT.size:
        return False
    group, element, length = _IMPLICIT.unpack_from(start)
    end = _IMPLICIT.size + length
    if group != _IDENTIFYING or length > _LONGEST_FIRST or end + _IMPLICIT.size > len(start):
        return False
    next_group, next_element, _ = _IMPLICIT.unpack_from(start, end)
    return next_group == group and element < next_element <= _LAST_EARLY


def not_dicom(path: Path, start: bytes) -> Unreadable | None:
    """Return the fault of a file that should be DICOM; None if it need not be DICOM."""
    if _is_packed(start):
        return Unreadable(path, "it is gzip-compressed DICOM; unpack it with gunzip first")
    if _MAGIC in start[:_MAGIC_AT]:
        return Unreadable(path, "its first bytes are missing; copy it again")
    if has_dicom_suffix(path):
        return Unreadable(path, content_of(start))
    return None


def has_dicom_suffix(path: Path) -> bool:
    """Return whether a file's name alone marks it as DICOM."""
    return path.name.lower().endswith(DICOM_SUFFIXES)


def _is_packed(start: bytes) -> bool:
    if start[: len(GZIP_MAGIC)] != GZIP_MAGIC:
        return False
    try:
        unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, _MAGIC_AT + 4)
    except zlib.error:
        return False
    return unpacked[_MAGIC_AT:] == _MAGIC


def content_of(start: bytes) -> str:
    """Return what a supposed DICOM file contains instead, judged by its first bytes."""
    if not start:
        return "it is empty; copy it again"
    if other := substitute_of(start):
        return f"it is {other}"
    if not any(start):
        return "it contains only zeros; copy it again"
    return "it is not DICOM despite its name, or is damaged; copy it again"


def naming(path: Path) -> str:
    """Return the pattern of a file's name, which the slices of a series share."""
    name = path.name.lower()
    for pattern, mark in ((_UID, "uid"), (_RANDOM, "random"), (_DIGITS, "#")):
        name = pattern.sub(mark, name)
    return name
