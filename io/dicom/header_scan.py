"""Headers of the DICOM files among those that a search has found, read by several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..errors import unexpected
from ..files.regular import open_regular
from .recognition import (
    DICOM_SUFFIXES,
    Unreadable,
    has_dicom_suffix,
    has_preamble,
    is_data_set,
    not_dicom,
)

if TYPE_CHECKING:
    from .frames import Instance
    from .series_files import Directory

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
