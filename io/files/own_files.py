"""Files that this program appends to: only regular ones of its user, and never through a link."""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def open_unlinked(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a regular file; neither it nor its folder may be a link.

    Raises OSError, with words for the user in it.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            # A pipe would have whoever opens it wait for its other end.
            unlinked = flags | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(path.name, unlinked, mode, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        if link := next((each for each in (path, path.parent) if each.is_symlink()), None):
            raise OSError(errno.ELOOP, "it is a link, which is not followed", str(link)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """As `open_unlinked`, for a file that must also belong to this user."""
    file = open_unlinked(path, flags, mode)
    owner = os.fstat(file).st_uid
    if owner == os.geteuid() or owner == _owner_of_new_files(path.parent):
        return file
    os.close(file)
    raise PermissionError(errno.EPERM, f"it belongs to another user ({owner})", str(path))


def _owner_of_new_files(folder: Path) -> int | None:
    """Whom a file server makes the owner of what this user writes; None if it may not write."""
    probe = folder / f".owner-{secrets.token_hex(8)}"
    with suppress(OSError):
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            return os.fstat(descriptor).st_uid
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)
    return None
