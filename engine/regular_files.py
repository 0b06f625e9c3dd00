"""Files of models and checkpoints, opened for reading only if they are regular: no pipe makes its
reader wait.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read its bytes; links are followed.

    Raises OSError, whose `strerror` says what is there instead.
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
    _check(os.stat(path), path)  # noqa: PTH116 - before a device does something on its opening
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
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
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", path)
