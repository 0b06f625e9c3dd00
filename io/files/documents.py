"""Documents at paths that a user names, such as a report; an existing file determines how.

A regular file is replaced whole, also behind a link, which is kept. A pipe, a terminal or another
character device gets the bytes as they are. Nothing else is written to.
"""

import errno
import os
import re
import select
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..errors import WriteError
from .atomic import refused, whole_file
from .regular import MOST_LINKS, NO_WAITING, read_regular

PATIENCE_SECONDS = 5.0
"""Time to wait for the reader of a pipe, which may have just been started."""

_LOOK_AGAIN_SECONDS = 0.02
_OPEN_FILES = re.compile(r"/dev/fd|/proc/(?P<process>\d+)(/task/\d+)?/fd")
"""Folders of open files, to which /dev/stdout and >(command) lead."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Destination of a path.

    path: with links resolved, up to the name of an open file. mode: of the existing file; 0: none.
    is_open_file: whether it is an open file of some process. descriptor: its number if that is this
    process.
    """

    path: Path
    mode: int
    is_open_file: bool = False
    descriptor: int | None = None

    @classmethod
    def of(cls, target: Path) -> Self:
        """Return the end of a path's links. Raises OSError."""
        if "\0" in str(target):
            raise OSError(errno.EINVAL, "its name contains a zero byte", str(target))
        path = target
        for _ in range(MOST_LINKS):
            folder = _OPEN_FILES.fullmatch(os.path.realpath(path.parent))
            if folder and path.name.isdigit():
                is_own = folder["process"] in (None, str(os.getpid()))
                return cls(path, path.stat().st_mode, True, int(path.name) if is_own else None)
            if not path.is_symlink():
                return cls(path, path.stat().st_mode if path.exists() else 0)
            path = path.parent / path.readlink()
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))

    @property
    def is_replaced(self) -> bool:
        """Whether a new file replaces it; otherwise bytes are written into the existing one."""
        return not self.is_open_file and (not self.mode or stat.S_ISREG(self.mode))

    def reason(self, target: Path) -> str | None:
        """Return why nothing can be written there, as the rest of a sentence on the path."""
        if not self.mode and self.path != target:
            return (
                f"is a link to {self.path}, which is missing; create that file or choose another "
                "output"
            )
        if stat.S_ISDIR(self.mode):
            return "is a folder; give a file name in it"
        if stat.S_ISSOCK(self.mode) or stat.S_ISBLK(self.mode):
            return "is a socket or a disk; give a file name"
        return None


def write_document(target: Path, content: bytes) -> None:
    """Write a document to where a path leads. Raises WriteError."""
    try:
        place = _Place.of(target)
        if reason := place.reason(target):
            raise WriteError(f"{target} was not written: it {reason}.")
        if place.is_replaced:
            if place.path != target:
                _check_link(target, place.path)
            with whole_file(place.path) as part:
                part.write_bytes(content)
            return
        with os.fdopen(_opened(place), "wb") as file:
            file.write(content)
    except OSError as error:
        raise refused(f"{target} was not written", error) from error


def read_document(path: Path) -> bytes:
    """Read a file, or all that a pipe brings. Raises OSError; `strerror` is for the user."""
    if not stat.S_ISFIFO(path.stat().st_mode):
        return read_regular(path)
    with open(os.open(path, os.O_RDONLY | NO_WAITING), "rb", buffering=0) as pipe:  # noqa: PTH123
        if not select.select([pipe], [], [], PATIENCE_SECONDS)[0]:
            raise OSError(errno.ENODATA, "no program writes to the pipe", str(path))
        os.set_blocking(pipe.fileno(), True)
        return pipe.readall()


def why_not_writable(target: Path) -> str | None:
    """Return why no document can be written there, as the rest of a sentence; None if one can."""
    try:
        return _Place.of(target).reason(target)
    except OSError as error:
        return f"cannot be used: {error.strerror}"


def would_replace(target: Path) -> bool:
    """Return whether a document at a place would replace a file that is there. Raises OSError."""
    place = _Place.of(target)
    return place.is_replaced and bool(place.mode)


def is_descriptor(target: Path, descriptor: int) -> bool:
    """Return whether a path is another name of an open file of this process, by its number."""
    try:
        return _Place.of(target).descriptor == descriptor
    except OSError:
        return False


def _check_link(target: Path, link: Path) -> None:
    """Let the system judge a link: it follows none that another user left in a shared folder."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | NO_WAITING)
    try:
        if not os.path.samestat(os.fstat(descriptor), link.lstat()):
            raise OSError(errno.ELOOP, "its link changed meanwhile", str(target))
    finally:
        os.close(descriptor)


def _opened(place: _Place) -> int:
    """Return a descriptor to write to; an open file of this process goes on where it is."""
    if place.descriptor is not None:
        return os.dup(place.descriptor)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            file = os.open(place.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_WAITING)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_AGAIN_SECONDS)
        else:
            break
    if NO_WAITING:
        os.set_blocking(file, True)
    return file
