"""Results appear whole or not at all: written beside their place, flushed to disk, then renamed."""

import errno
import fnmatch
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from ..errors import WriteError

PREFIX = ".cuda-cyclegan-"
SUFFIX = ".part"
FLUSHING_THREADS = 16
ABANDONED_AFTER_SECONDS = 24 * 3600
_HOST = f"{crc32(platform.node().encode()):08x}"

Gate: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Entered for each step that makes a part or moves it into place; refuses it by raising."""


@contextmanager
def whole_file(target: Path, gate: Gate = nullcontext) -> Generator[Path]:
    """Yield the path of an empty `.part` file beside `target` that becomes `target` at the end.

    Missing parent folders are made. If the body raises, the part is removed and an existing target
    stays as it was. Raises WriteError for whatever the file system refuses, also in the body. Where
    another thread may remove the part, the body opens it with "r+b", which does not make it again.
    """
    with _failures_named(target):
        part = _part_beside(target)
        try:
            with gate():
                part.touch(exist_ok=False)
            yield part
            _flush(part)
            with gate():
                part.replace(target)
            _flush_folder(target.parent)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def whole_files(target: Path, gate: Gate = nullcontext) -> Generator[Path]:
    """As `whole_file` for a result of several files, such as a header and its voxels.

    Yield a path named as `target` in a fresh `.part` folder. All files that the body writes in that
    folder move beside `target`, and the one named as `target` moves last.
    """
    with _failures_named(target):
        folder = _part_beside(target)
        try:
            with gate():
                folder.mkdir()
            yield folder / target.name
            parts = sorted(folder.iterdir(), key=lambda path: (path.name == target.name, path.name))
            for part in parts:
                _flush(part)
                _refuse_folder(target.parent / part.name)
            with gate():
                for part in parts:
                    part.replace(target.parent / part.name)
            _flush_folder(target.parent)
        finally:
            _remove(folder)


@contextmanager
def whole_folder(target: Path, gate: Gate = nullcontext) -> Generator[Path]:
    """As `whole_file` for a result that is a folder: yield an empty `.part` folder beside it.

    A folder that stands at `target` moves aside first and is removed when the new one is in place;
    a kill between the two renames leaves no folder there, never half of one.
    """
    with _failures_named(target):
        part, old = _part_beside(target), _part_beside(target)
        try:
            with gate():
                part.mkdir()
            yield part
            # Together: a file system answers many waiting flushes with one write of its journal.
            with ThreadPoolExecutor(FLUSHING_THREADS) as pool:
                list(pool.map(_flush, part.iterdir()))
            _flush(part)
            with gate():
                if os.path.lexists(target):
                    target.replace(old)
                part.replace(target)
            _flush(target.parent)
        except BaseException:
            if os.path.lexists(old) and not os.path.lexists(target):
                old.replace(target)
            raise
        finally:
            _remove(part)
            _remove(old)


def is_part(name: str) -> bool:
    """Whether a file or folder of this name is an unfinished result, of this program or another."""
    return name.endswith(SUFFIX)


def remove_leftovers(folder: Path) -> int:
    """Remove what killed runs left below `folder`; return how many parts that were.

    Parts of a process that still runs here stay, and so do those of other machines for a day.
    """
    every = _parts_below(folder, f"{PREFIX}*{SUFFIX}")
    return _remove_all(path for path in every if _is_abandoned(path))


def remove_parts_of_this_process(folder: Path) -> int:
    """Remove what threads of this process are writing below `folder`, which then never appears.

    They make no other meanwhile if their `Gate` is shut.
    """
    return _remove_all(_parts_below(folder, f"{PREFIX}{_HOST}-{os.getpid()}-*{SUFFIX}"))


def _parts_below(folder: Path, pattern: str) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):  # which passes over what vanishes meanwhile
        for name in fnmatch.filter((*folders, *files), pattern):
            yield Path(place, name)
        folders[:] = [name for name in folders if not is_part(name)]


def _remove_all(parts: Iterable[Path]) -> int:
    found = list(parts)
    for path in found:
        _remove(path)
    return len(found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Try again while other threads put files in, or remove the same ones; else let it be."""
    while os.path.lexists(folder):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return


def _part_beside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without the target's own name in it, the longest legal name still has a legal part.
    own = f"{_HOST}-{os.getpid()}-{_start_of(os.getpid())}"
    return target.parent / f"{PREFIX}{own}-{secrets.token_hex(4)}{SUFFIX}"


def _is_abandoned(part: Path) -> bool:
    host, process, *rest = [*part.name.removeprefix(PREFIX).split("-"), ""]
    if host == _HOST and process.isdecimal():
        start = rest[0] if len(rest) > 2 else ""
        if not _runs(int(process)):
            return True
        # The number alone may be that of another process or thread by now.
        return bool(start) and start != _start_of(int(process))
    try:
        return time.time() - part.stat().st_mtime > ABANDONED_AFTER_SECONDS
    except FileNotFoundError:
        return False


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_of(process: int) -> str:
    """When a process started, in the system's own count; empty for one that is over.

    Also empty where there is no /proc to tell: there a number is all that is known of a process.
    """
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    """Ask for the names to be kept; the results are in place, and not all disks can do this."""
    with suppress(OSError):
        _flush(folder)


def _refuse_folder(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))


@contextmanager
def _failures_named(target: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(f"{target} was not written: {_advice(error)}.") from error


def _advice(error: OSError) -> str:
    while error.errno is None and isinstance(error.__cause__, OSError):
        error = error.__cause__  # pydicom wraps errors of the system
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full; make room or choose another output folder"
        case errno.EFBIG:
            return "it would exceed the largest file allowed here; choose another output folder"
        case errno.EROFS:
            return "the disk is read-only; choose another output folder"
        case errno.EACCES | errno.EPERM:
            return "this user may not write there; choose another output folder"
        case errno.ENAMETOOLONG:
            return "its name is too long for this disk; choose a shorter one"
        case errno.EISDIR | errno.EEXIST | errno.ENOTDIR:
            return "a folder and a file would need the same name; move the one in its place away"
        case _:
            return f"the system says: {error.strerror or error}"
