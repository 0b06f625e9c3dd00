"""System calls on files: store now, drop from memory, reserve space, read at a position; and
whether a path may be that long or is a mount point.
"""

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's names, to disk before returning. Raises OSError.

    Folders that cannot be opened, as on Windows, are skipped.
    """
    can_open_folders = hasattr(os, "O_DIRECTORY")
    if not can_open_folders and path.is_dir():
        return
    # Elsewhere flushing a file requires permission to write it.
    descriptor = os.open(path, os.O_RDONLY if can_open_folders else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_cached(descriptor: int, begin: int = 0, size: int = 0) -> None:
    """Drop a file's cached bytes from an offset on, all if size is 0, and start storing them.

    Has an effect on Linux; other systems may lack it.
    """
    with suppress(AttributeError, OSError):
        os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


def reserve(descriptor: int, size: int) -> None:
    """Preallocate a file's first bytes on disk. Raises OSError, such as if there is no space.

    Does nothing if the system lacks the call, as on macOS and Windows.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)


def can_read_anywhere() -> bool:
    """Whether threads may read a file that is open once, each at its own place; not on Windows."""
    return hasattr(os, "preadv")


def read_into(descriptor: int, buffer: memoryview, begin: int) -> int:
    """Fill `buffer` from an offset of a file as far as it goes; return the number of bytes."""
    return os.preadv(descriptor, [buffer], begin)


def read_at(descriptor: int, size: int, place: int) -> bytes:
    """Return up to `size` bytes of an open file from a place on. Raises OSError.

    One thread at a time: not all systems can do this without moving the file's position.
    """
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, place)
    os.lseek(descriptor, place, os.SEEK_SET)  # Windows
    return os.read(descriptor, size)


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder for this user; 0 if unknown."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0


def takes_name(path: Path) -> bool:
    """Return whether a file may have this path, some folders of which may not exist yet.

    False only if the system reports that a name is too long; each file system has its own limit.
    """
    if _is_too_long(path):
        return False
    there = next((folder for folder in path.parents if os.path.isdir(folder)), path.parent)  # noqa: PTH112
    return not any(_is_too_long(there / name) for name in path.relative_to(there).parts)


def _is_too_long(path: Path) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def is_mounted(folder: Path) -> bool:
    """Return whether a folder, by its real path, is a mount point.

    On Linux also one that shows another folder of the same file system.
    """
    if os.path.ismount(folder):
        return True
    escaped = re.sub(rb"[ \t\n\\]", lambda met: b"\\%03o" % met[0][0], os.fsencode(folder))
    with suppress(OSError):
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
        return any(mount.split(b" ")[4] == escaped for mount in mounts)
    return False
