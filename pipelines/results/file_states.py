"""Hash and marks of files, and the input files of a study, which must not change meanwhile."""

import hashlib
import os
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Self

from ...io.errors import ScanError, UnreadableScanError
from ...io.files.regular import open_regular
from ...io.reading import causes_named
from ...io.volume import Study
from ..report.report import Content

_HASHED_BYTES = 1 << 20
"""Bytes hashed per step; hashlib.file_digest takes a quarter of it, and so waits for the GIL more
often among the threads of a batch."""


@dataclass(frozen=True, slots=True)
class FileState:
    """Hash of a file, and the marks by which an untouched file is recognised without reading it.

    changed_ns is the inode's change time, which a copy that keeps dates cannot forge.

    name: without folder. size: bytes. modified_ns: time of modification, in nanoseconds since 1970.
    sha256: hash of the bytes; "" for a file that was about to appear, of which only name, size and
    date are compared.
    """

    name: str
    size: int
    modified_ns: int
    changed_ns: int
    sha256: str

    @classmethod
    def of(
        cls, path: Path, sha256: str | None = None, go_on: Callable[[], None] = lambda: None
    ) -> Self:
        """Return the state of a file; reads it whole unless its hash is known. Raises OSError.

        go_on: called now and then during reading; an exception that it raises ends the reading.
        """
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            sha256 = sha256 or _sha256(file, go_on)
        return cls(path.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, sha256)

    @classmethod
    def coming(cls, part: Path) -> Self:
        """Return the state that a part will have once it is moved into place. Raises OSError."""
        status = part.stat()
        return cls(part.name, status.st_size, status.st_mtime_ns, changed_ns=0, sha256="")

    def is_of(self, path: Path) -> bool:
        """Return whether a file has this name, size and date. Raises OSError."""
        status = path.stat()
        marks = path.name, status.st_size, status.st_mtime_ns
        return marks == (self.name, self.size, self.modified_ns)

    def again(self, path: Path) -> Self:
        """Return the current state; reads the file only if its marks differ. Raises OSError."""
        status = path.stat()
        marks = status.st_size, status.st_mtime_ns, status.st_ctime_ns
        if path.name == self.name and marks == (self.size, self.modified_ns, self.changed_ns):
            return self
        return self.of(path)


def content_of(states: Collection[FileState]) -> Content | None:
    """Return the content of files (count, bytes, hash), or None without any.

    docs/reports.md shows how to recompute the hash.
    """
    if not states:
        return None
    digests = sorted(state.sha256 for state in states)
    if len(digests) > 1:
        lines = "".join(f"{digest}\n" for digest in digests)
        digests = [hashlib.sha256(lines.encode()).hexdigest()]
    return Content(len(states), sum(state.size for state in states), digests[0])


class InputFiles:
    """Files of a study as they were when this object was created. Any thread may call."""

    def __init__(self, study: Study) -> None:
        """Record the marks of the files. Raises ScanError."""
        self._study = study
        self._marks = self._marks_now()

    def states(self, go_on: Callable[[], None]) -> tuple[FileState, ...]:
        """Return the files' states with hashes. Raises ScanError, also if they changed meanwhile.

        go_on: called now and then; an exception that it raises ends the work.
        """
        with self.unchanged(), causes_named(self._study.files[0]):
            states = tuple(FileState.of(file, go_on=go_on) for file in self._study.files)
        for file, mark, state in zip(self._study.files, self._marks, states, strict=True):
            # Only this detects a replaced file with the same size and date.
            _require_unchanged(mark.st_ctime_ns == state.changed_ns, file)
        return states

    def confirmed(self, states: Sequence[FileState]) -> tuple[FileState, ...]:
        """Return the states, after checking that the files still have them once all is read.

        A file whose name, owner or permissions changed meanwhile is hashed again. Raises ScanError.
        """
        return states_again(self._study, states)

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Check at the end of the block that the files are unchanged.

        Raises UnreadableScanError if they changed, in place of any ScanError that this caused.
        """
        try:
            yield
        except ScanError as error:
            self._check(error)
            raise
        self._check(None)

    def _check(self, cause: ScanError | None) -> None:
        for file, was, now in zip(self._study.files, self._marks, self._marks_now(), strict=True):
            is_same = (was.st_size, was.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
            _require_unchanged(is_same, file, cause)

    def _marks_now(self) -> list[os.stat_result]:
        with causes_named(self._study.files[0]):
            return [file.stat() for file in self._study.files]


def states_again(study: Study, known: Iterable[FileState]) -> tuple[FileState, ...]:
    """Return the current states of a study's files; known: earlier ones, also under other names.

    A file whose marks differ is hashed again. Raises ScanError, also if the content of one changed.
    """
    with causes_named(study.files[0]):
        pairs = list(zip(study.files, known, strict=True))
        states = tuple(replace(state, name=file.name).again(file) for file, state in pairs)
    for now, (file, was) in zip(states, pairs, strict=True):
        _require_unchanged(now.sha256 == was.sha256, file)
    return states


def _require_unchanged(is_same: bool, file: Path, cause: ScanError | None = None) -> None:
    """Raise UnreadableScanError unless a file is the same as before."""
    if not is_same:
        raise UnreadableScanError(
            f"{file} changed while it was read; translate it again when it is complete."
        ) from cause


def _sha256(file: BufferedReader, go_on: Callable[[], None]) -> str:
    digest, block = hashlib.sha256(), memoryview(bytearray(_HASHED_BYTES))
    while count := file.readinto(block):
        digest.update(block[:count])
        go_on()
    return digest.hexdigest()
