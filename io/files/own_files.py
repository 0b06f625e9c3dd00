"""Files that this program appends to: only regular ones of its user, and never through a link."""

import errno
import getpass
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_FILE = "it is not a regular file"

NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""A flag of os.open that refuses a link, on systems that have it; the folder may be one."""

RECORD = ".cuda-cyclegan"
"""Name of the folder with the record of an output folder, or its suffix next to that folder."""


def is_record(name: str) -> bool:
    """Return whether a folder of this name holds the record of an output folder."""
    return name.startswith(".") and name.endswith(RECORD)


def open_unlinked(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of a regular file; neither it nor its folder may be a link.

    Raises OSError, with words for the user in it.
    """
    try:
        file = _opened(path, flags, mode)
    except OSError as error:
        if link := _link_to(path):
            raise OSError(errno.ELOOP, "it is a link, which is not followed", str(link)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, _NO_FILE, str(path))


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open as `open_unlinked` does a file that must also belong to this user."""
    file = open_unlinked(path, flags, mode)
    owner = os.fstat(file).st_uid
    if owner == _writer() or owner == _owner_of_new_files(path.parent):
        return file
    os.close(file)
    raise PermissionError(errno.EPERM, f"it belongs to another user ({owner})", str(path))


@contextmanager
def held_folder(folder: Path) -> Generator[tuple[int, int]]:
    """Device and inode of a folder, which no other one gets during the block. Raises OSError.

    Systems that cannot open folders, as Windows, do not use their numbers again so soon.
    """
    if not hasattr(os, "O_DIRECTORY"):
        yield identity(folder.stat())
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield identity(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which identify a file or folder while it exists."""
    return status.st_dev, status.st_ino


def this_user() -> int | None:
    """Return the user ID of this process; None if users have none, as on Windows."""
    return os.getuid() if hasattr(os, "getuid") else None


def user_name() -> str:
    """Return the user name of this process, or its user ID without one, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # by the version of Python
        return str(this_user())


def folder_of_user(find: Callable[..., Path]) -> Path | None:
    """The program's folder by one of platformdirs' functions; None for a user without a home."""
    try:
        folder = find("cuda-cyclegan", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # earlier versions leave the tilde in place


def is_trusted_owner(status: os.stat_result) -> bool:
    """Return whether this user or root owns a file; True if there are no user IDs."""
    return this_user() is None or status.st_uid in (this_user(), 0)


def _writer() -> int:
    """Return the owner of files created by this process; 0 if there are no user IDs."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _opened(path: Path, flags: int, mode: int) -> int:
    if not hasattr(os, "O_NOFOLLOW"):
        return _opened_and_compared(path, flags | getattr(os, "O_BINARY", 0), mode)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # A pipe would have whoever opens it wait for its other end.
        unlinked = flags | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(path.name, unlinked, mode, dir_fd=folder)
    finally:
        os.close(folder)


def _opened_and_compared(path: Path, flags: int, mode: int) -> int:
    """Open if the system always follows links, as Windows does: check before and after."""
    if _link_to(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, _NO_FILE)
    file = os.open(path, flags, mode)
    if not _link_to(path) and os.path.samestat(os.fstat(file), os.lstat(path)):
        return file
    os.close(file)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _link_to(path: Path) -> Path | None:
    return next((each for each in (path, path.parent) if each.is_symlink()), None)


def _owner_of_new_files(folder: Path) -> int | None:
    """Return the owner that a file server gives to new files; None if this user may not write."""
    probe = folder / f".owner-{secrets.token_hex(8)}"
    with suppress(OSError):
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            return os.fstat(descriptor).st_uid
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)
    return None
