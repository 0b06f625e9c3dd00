"""Headers of the DICOM files among those that a search has found.

A file that is not DICOM is recognised by its name and first bytes, without pydicom.
"""

import re
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..errors import unexpected
from ..files.regular import open_regular
from ..files.streams import GZIP_MAGIC, substitute_of

if TYPE_CHECKING:
    from .frames import Instance
    from .series_files import Directory

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


_SCANNING_THREADS = 4
"""Threads to hide the latency of network disks; parsing itself shares the interpreter."""
_AT_ONCE = 16
"""Files per thread task: passing a file to a thread costs a tenth of reading it."""
_MOST_HEADERS_BYTES = 1 << 15
"""Bytes that nearly always hold all that is read of a header."""


@dataclass(frozen=True, slots=True)
class Headers:
    """Outcome of a scan of files; others: the files that are not DICOM.

    instances: the readable files of DICOM. unreadable: those that are damaged. directories: each
    DICOMDIR, whatever its name.
    """

    instances: "tuple[Instance, ...]"
    unreadable: tuple[Unreadable, ...]
    others: tuple[Path, ...]
    directories: "tuple[Directory, ...]" = ()


_Found: TypeAlias = "Instance | Directory | Unreadable | None"
"""Outcome of one file; None for no DICOM."""

_Look = TypeVar("_Look")
_Marks: TypeAlias = tuple[int, int, int, int]
"""Inode, size, and times of the last change of content and of anything, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Marks of a file before it was last read, and the outcome; None for no DICOM.

    is_sure: whether it was read twice with these marks, as a disk's clock may not advance between
    two changes.
    """

    marks: _Marks
    found: "Instance | Directory | None"
    is_sure: bool


class KnownHeaders:
    """Headers of earlier searches of the same inputs: unchanged files are not read again.

    A file that could not be read is read again each time.
    """

    def __init__(self) -> None:
        self._files: dict[Path, _Known] = {}
        self._looks: dict[tuple[Path, Callable[..., Any]], tuple[_Marks | None, Any]] = {}
        self._looks_before = self._looks

    def read(self, files: Sequence[Path]) -> list[_Found]:
        """Return the outcome of each file; drop all others from the cache."""
        before, self._files = self._files, {}
        self._looks_before, self._looks = self._looks, {}
        return _each(files, lambda file: self._found(before.get(file), file))

    def once(self, file: Path, look: Callable[[Path], _Look]) -> _Look:
        """Return the result of reading a file of another format, cached.

        A file that is unchanged since this search or the previous one read it is not opened
        again.
        """
        marks, key = _marks(file), (file, look)
        known = self._looks.get(key) or self._looks_before.get(key)
        if known is None or known[0] != marks or marks is None:
            known = marks, look(file)
        self._looks[key] = known
        return known[1]

    def _found(self, known: _Known | None, file: Path) -> _Found:
        marks = _marks(file)
        if known and known.is_sure and known.marks == marks:
            self._files[file] = known
            return known.found
        found = _read(file)
        if marks and not isinstance(found, Unreadable):
            is_sure = known is not None and known.marks == marks
            self._files[file] = _Known(marks, found, is_sure)
        return found


def _marks(file: Path) -> _Marks | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _each(files: Sequence[Path], read: Callable[[Path], _Found]) -> list[_Found]:
    """Return the outcome of each file in their order, read by several threads."""

    def read_some(first: int) -> list[_Found]:
        return [read(file) for file in files[first : first + _AT_ONCE]]

    with ThreadPoolExecutor(_SCANNING_THREADS) as pool:
        portions = pool.map(read_some, range(0, len(files), _AT_ONCE))
        return list(chain.from_iterable(portions))


def scan(files: Sequence[Path], known_headers: KnownHeaders | None = None) -> Headers:
    """Read the headers of the DICOM files in order, except those already read."""
    found = known_headers.read(files) if known_headers else _each(files, _read)
    known = [each for each in found if each is not None]
    unreadable = tuple(each for each in known if isinstance(each, Unreadable))
    others = tuple(path for path, each in zip(files, found, strict=True) if each is None)
    if len(unreadable) == len(known):
        return Headers((), unreadable, others)
    from .frames import Instance
    from .series_files import Directory

    return Headers(
        tuple(each for each in known if isinstance(each, Instance)),
        unreadable,
        others,
        tuple(each for each in known if isinstance(each, Directory)),
    )


def _read(path: Path) -> _Found:
    """Read one file; the code that needs pydicom is loaded with the first that may be DICOM."""
    try:
        with open_regular(path) as file:
            start = file.read(_MOST_HEADERS_BYTES)
            is_bare = not has_preamble(start)
            if not is_bare or is_data_set(start) or path.suffix.lower() in DICOM_SUFFIXES:
                from .headers import read_header

                return read_header(path, file, start, is_bare)
        return not_dicom(path, start)
    except OSError as error:
        reason = f"it cannot be opened: {error.strerror or error}"
        return Unreadable(path, reason, is_dicom=has_dicom_suffix(path))
    except MemoryError:
        return Unreadable(path, "its header declares more data than this machine's memory can hold")
    except Exception as error:  # as in a batch, a failure affects only its file
        return Unreadable(path, unexpected(error), is_dicom=has_dicom_suffix(path))
