"""Files from outside, opened for reading only if they are regular, so that no pipe blocks the
reader.
"""

import errno
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path

MOST_LINKS = 40
"""Limit of links in one path, as in Linux."""

NOT_REGULAR = "it is a pipe, socket or device, not a file"

NO_WAITING: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags of os.open: a pipe opens without its other end, and no terminal becomes this process's."""


class NotRegularError(OSError):
    """A pipe, socket or device is where a regular file is expected."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read its bytes; links are followed.

    Raises NotRegularError, IsADirectoryError, and other OSErrors as `open` does, also for a name
    that no file can have.
    """
    try:
        return BufferedReader(FileIO(path, opener=_opened))
    except ValueError as error:  # without asking the system
        raise OSError(errno.EINVAL, "its name contains a zero byte", str(path)) from error


def read_regular(path: Path) -> bytes:
    """Read all bytes of a regular file; raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def _opened(path: str, flags: int) -> int:
    _check(os.stat(path), path)  # noqa: PTH116 - before a device does something on its opening
    descriptor = os.open(path, flags | NO_WAITING)
    try:
        _check(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, NOT_REGULAR, path)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; False if access to it is denied."""
    return stat.S_ISDIR(mode_of(path))


def is_there(path: Path) -> bool:
    """Return whether a path exists; False if access to it is denied."""
    return mode_of(path) != 0


def mode_of(path: Path, *, follow_symlinks: bool = True) -> int:
    try:
        return path.stat(follow_symlinks=follow_symlinks).st_mode
    except OSError:
        return 0
