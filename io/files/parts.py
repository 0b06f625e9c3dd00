"""Unfinished results: folders next to their targets, each locked while its writer runs.

A lock ends with its holder, also by kill -9, and works across process namespaces, where process
IDs mean nothing. It does not show writers on other machines, as NFS and SMB keep the lock of a
folder to themselves, and some systems and file systems cannot lock one: a part created there, or
before the last start of the system, counts as abandoned when it has not changed for a day. Its name
shows the case.
"""

import errno
import fnmatch
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from ..errors import WriteError
from .locks import folder_lock, start_of_system

PREFIX = ".cuda-cyclegan-"
SUFFIX = ".part"
ABANDONED_AFTER_SECONDS = 24 * 3600
_NO_LOCKS = "unlocked"


@dataclass(frozen=True, slots=True)
class Gate:
    """Check that a part passes on its way into its place.

    passed: entered for each step that creates or moves a part; refuses it by raising. It gets the
    files, complete and on disk, that are about to move; none when a part is created. root: a
    folder that is not created if missing, nor its parents; None if all folders may be created.
    """

    passed: Callable[[Sequence[Path]], AbstractContextManager[object]] = nullcontext
    root: Path | None = None


NO_GATE = Gate()


class KeptAsideError(WriteError):
    """A part holds files of an earlier result that could not be put back; it stays until a later
    run writes there.
    """


@contextmanager
def part_beside(target: Path, gate: Gate = NO_GATE) -> Generator[Path]:
    """Yield an empty folder next to `target`, locked during the block and removed after it, unless
    that raises KeptAsideError.

    Missing parent folders of `target` are created, below the gate's root. Raises OSError.
    """
    with ExitStack() as stack:
        with gate.passed(()):
            _make_folder(target.parent, gate.root)
            part = _made_in(target.parent, stack)
        is_kept = False
        try:
            yield part
        except KeptAsideError:
            is_kept = True
            raise
        finally:
            if not is_kept:
                remove(part)


def is_part(name: str) -> bool:
    """Whether a file or folder of this name is an unfinished result, of this program or another."""
    return name.endswith(SUFFIX)


def remove_leftovers(folder: Path) -> int:
    """Remove parts of killed runs below `folder`; return their number."""
    return sum(map(_removed_if_abandoned, _parts_below(folder, f"{PREFIX}*{SUFFIX}")))


def remove_parts_of_this_process(folder: Path) -> int:
    """Remove parts that threads of this process are writing below `folder`; no result appears.

    They create no others meanwhile if their `Gate` is closed.
    """
    own = list(_parts_below(folder, f"{PREFIX}{_owner(os.getpid())}-*{SUFFIX}"))
    for part in own:
        remove(part)
    return len(own)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    try:
        path.rmdir()  # as most parts are empty in the end
    except OSError:
        if path.is_dir() and not path.is_symlink():
            _remove_folder(path)
        else:
            path.unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Remove a folder, retrying while other threads add or remove files; else leave it."""
    while os.path.lexists(folder):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return


def _make_folder(folder: Path, root: Path | None) -> None:
    """Create a folder and its parents below `root`, which may disappear at any moment."""
    if root is None:
        folder.mkdir(parents=True, exist_ok=True)
        return
    for missing in (*reversed(folder.parents), folder):
        if missing != root and missing.is_relative_to(root):
            missing.mkdir(exist_ok=True)


def _made_in(folder: Path, stack: ExitStack) -> Path:
    """Return a new part, which the stack unlocks.

    One that another run took for abandoned, before it was locked, is left to that run.
    """
    while True:
        part = _named_in(folder, _kernel())
        part.mkdir()
        try:
            stack.enter_context(folder_lock(part))
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:
            return part.rename(_named_in(folder, _NO_LOCKS))
        return part


def _named_in(folder: Path, kernel: str) -> Path:
    # Without the target's own name in it, the longest legal name still has a legal part.
    return folder / f"{PREFIX}{_owner(os.getpid())}-{kernel}-{secrets.token_hex(4)}{SUFFIX}"


_SEED = secrets.token_bytes(8)


def _owner(process: int) -> str:
    """Return a random name of this process; the number distinguishes it from its forks.

    It is derived, not drawn when first needed: threads that begin together would draw several.
    """
    return blake2b(b"%d" % process, key=_SEED, digest_size=8).hexdigest()


@cache
def _kernel() -> str:
    """Identifier shared by all processes whose locks this one sees, in whichever container."""
    name = start_of_system() or platform.node()
    return f"{crc32(name.encode()):08x}"


def _removed_if_abandoned(part: Path) -> bool:
    """Remove a part while its lock is ours, or because of its age."""
    with ExitStack() as stack, suppress(FileNotFoundError, BlockingIOError):
        if not (_is_free(part, stack) or _is_old(part)):
            return False
        remove(part)
        return True
    return False


def _is_free(part: Path, stack: ExitStack) -> bool:
    """Return whether a part of this system is unlocked; the stack then holds its lock.

    Raises BlockingIOError if the lock is held, FileNotFoundError if the part is gone.
    """
    _, _, rest = part.name.removeprefix(PREFIX).partition("-")
    if not rest.startswith(f"{_kernel()}-"):
        return False
    try:
        stack.enter_context(folder_lock(part))
    except (BlockingIOError, FileNotFoundError):
        raise
    except OSError:
        return False
    return True


def _is_old(part: Path) -> bool:
    newest = max(path.lstat().st_mtime for path in (part, *part.rglob("*")))
    return time.time() - newest > ABANDONED_AFTER_SECONDS


def _parts_below(folder: Path, pattern: str) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):  # which skips files that vanish meanwhile
        for name in fnmatch.filter((*folders, *files), pattern):
            yield Path(place, name)
        folders[:] = [name for name in folders if not is_part(name)]
