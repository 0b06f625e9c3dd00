"""Hash and marks of files, by which a changed file is detected."""

import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ...io.files.regular import open_regular

if TYPE_CHECKING:
    from ..report.report import Content

_HASHED_BYTES = 8 << 20
"""Bytes hashed per step: the threads of a batch wait for the interpreter's lock after each. A step
of hashlib.file_digest is a small part of it.
"""


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
        if sha256:
            status = path.stat()
        else:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                sha256 = _sha256(file, status.st_size, go_on)
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


def content_of(states: Collection[FileState]) -> "Content | None":
    """Return the content of files (count, bytes, hash), or None without any.

    docs/report-json.md shows how to recompute the hash.
    """
    if not states:
        return None
    from ..report.report import Content  # late: searches read manifests without reports

    digests = sorted(state.sha256 for state in states)
    if len(digests) > 1:
        lines = "".join(f"{digest}\n" for digest in digests)
        digests = [hashlib.sha256(lines.encode()).hexdigest()]
    return Content(len(states), sum(state.size for state in states), digests[0])


def _sha256(file: BufferedReader, size: int, go_on: Callable[[], None]) -> str:
    import numpy as np  # late: few commands hash files

    # Of NumPy, as a bytearray would be cleared under the lock.
    block = np.empty(min(size + 1, _HASHED_BYTES), np.uint8).data
    digest, count = hashlib.sha256(), len(block)
    while count == len(block):
        count = file.readinto(block)
        digest.update(block[:count])
        go_on()
    return digest.hexdigest()
