"""Files that others made or name, opened for reading only if they are regular: no pipe makes its
reader wait.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

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
        return open(path, "rb", opener=_opened)
    except ValueError as error:  # without asking the system
        raise OSError(errno.EINVAL, "its name holds a zero byte", str(path)) from error


def read_regular(path: Path) -> bytes:
    """Read all bytes of a regular file; raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def _opened(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | NO_WAITING)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without its driver
            raise NotRegularError(errno.EINVAL, NOT_REGULAR, path) from error
        if error.errno == errno.EACCES and os.path.isdir(path):  # noqa: PTH112 - Windows
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # which `open` refuses itself
        return descriptor
    os.close(descriptor)
    raise NotRegularError(errno.EINVAL, NOT_REGULAR, path)
