"""System calls on files: store now, drop from memory, reserve room, read at a position; and whether
a name fits at a place and a file system begins there.
"""

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path


def flush(path: Path) -> None:
    """Have a file's content, or a folder's names, stored before returning. Raises OSError.

    Folders are passed over where they cannot be opened, as on Windows.
    """
    can_open_folders = hasattr(os, "O_DIRECTORY")
    if path.is_dir() and not can_open_folders:
        return
    # Elsewhere only who may write a file may have it stored.
    descriptor = os.open(path, os.O_RDONLY if can_open_folders else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_cached(descriptor: int, begin: int = 0, size: int = 0) -> None:
    """Let go of what is cached of a file, from a byte on, all if size is 0, and begin to store it.

    Linux does so; other systems may know nothing of it.
    """
    with suppress(AttributeError, OSError):
        os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


def reserve(descriptor: int, size: int) -> None:
    """Have the disk keep room for a file's first bytes. Raises OSError, as where there is none.

    Does nothing where the system cannot be asked, as on macOS and Windows.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)


def can_read_anywhere() -> bool:
    """Whether threads may read a file that is open once, each at its own place; not on Windows."""
    return hasattr(os, "preadv")


def read_at(descriptor: int, buffer: memoryview, begin: int) -> int:
    """Fill what is there of `buffer` from a byte of a file on; how many bytes that are."""
    return os.preadv(descriptor, [buffer], begin)


def free_bytes(folder: Path) -> int:
    """Room that the disk of a folder has for this user; 0 if unknown."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0


def takes_name(path: Path) -> bool:
    """Whether a file may have this path, of whose folders some may be missing yet.

    False only where the system says that a name is too long; each file system has its own limit.
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
    """Whether a folder, by its real path, is a mount point.

    On Linux also one that shows another folder of the same file system.
    """
    if os.path.ismount(folder):
        return True
    escaped = re.sub(rb"[ \t\n\\]", lambda met: b"\\%03o" % met[0][0], os.fsencode(folder))
    with suppress(OSError):
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
        return any(mount.split(b" ")[4] == escaped for mount in mounts)
    return False
