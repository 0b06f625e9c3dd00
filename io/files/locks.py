"""System locks on open files, released when the process ends, also by kill -9.

flock(2) if available; otherwise byte ranges, as on Windows, where folders cannot be locked.
"""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PLACE = 1 << 30
"""Offset of the bytes used as a lock: after all content, as a locked byte cannot be read."""

_SHARERS = 64
"""Maximum sharers if only bytes can be locked: each locks one, an exclusive holder all."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file until it is closed, shared or exclusively.

    Does not wait: raises BlockingIOError if the lock is held, another OSError if locks are
    unavailable.
    """
    try:
        from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
    except ImportError:  # Windows
        _lock_bytes(descriptor, shared=shared)
    else:
        flock(descriptor, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)


def wait_for_lock(descriptor: int) -> None:
    """Wait for the sole lock of an open file. Raises OSError if there are no locks."""
    try:
        from fcntl import LOCK_EX, flock
    except ImportError:  # Windows
        locking = _locking()
        while True:  # as it gives up after ten seconds
            try:
                return _at_place(descriptor, locking.LK_LOCK, 0, _SHARERS)
            except OSError as error:
                if error.errno != errno.EDEADLK:
                    raise
    else:
        flock(descriptor, LOCK_EX)


@contextmanager
def folder_lock(folder: Path, *, waits: bool = False) -> Generator[None]:
    """Lock a folder exclusively; child programs do not inherit the lock.

    waits: for the lock; otherwise raises BlockingIOError if it is held. Raises FileNotFoundError if
    the folder is gone, and another OSError if folders cannot be locked.
    """
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        raise OSError(errno.ENOTSUP, "this system cannot lock folders", str(folder))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        (wait_for_lock if waits else lock)(descriptor)
        if not os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield
    finally:
        os.close(descriptor)


def start_of_system() -> str:
    """Identifier of the last start of this machine, at which all locks ended; "" if unknown.

    Also alike in all containers of the machine.
    """
    try:
        return _BOOT.read_text()
    except OSError:
        return ""


def _lock_bytes(descriptor: int, *, shared: bool) -> None:
    locking = _locking()
    places = [(byte, 1) for byte in range(_SHARERS)] if shared else [(0, _SHARERS)]
    for first, count in places:
        with suppress(PermissionError):
            return _at_place(descriptor, locking.LK_NBLCK, first, count)
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _at_place(descriptor: int, mode: int, first: int, count: int) -> None:
    """Raise PermissionError if one of the bytes is locked; the file's position stays."""
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _PLACE + first, os.SEEK_SET)
    try:
        _locking().locking(descriptor, mode, count)
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def _locking() -> Any:
    try:
        import msvcrt
    except ImportError as error:
        raise OSError(errno.ENOLCK, "this system has no file locks") from error
    return msvcrt
