"""Atomic writing of results: written next to their target, flushed to disk, then renamed."""

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DiskFullError, WriteError
from .disk import flush
from .parts import NO_GATE, Gate, KeptAsideError, part_beside
from .regular import mode_of

_FLUSHING_THREADS = 16


@contextmanager
def whole_file(target: Path, gate: Gate = NO_GATE) -> Generator[Path]:
    """Yield the path of an empty file, in a `.part` folder, that becomes `target` at the end.

    Missing parent folders are created. If the body raises, the part is removed and an existing
    target stays as it was. Raises WriteError for any file system error, also in the body.
    """
    with _failures_named(target), part_beside(target, gate) as folder:
        part = folder / target.name
        part.touch(exist_ok=False)
        yield part
        flush(part)
        _check_replaceable(target, by_folder=False)
        with gate.passed([part]):
            part.replace(target)
        flush_folder(target.parent)


@contextmanager
def whole_files(
    target: Path, gate: Gate = NO_GATE, replaced: Sequence[Path] = ()
) -> Generator[Path]:
    """Store a result of several files, such as a header and its voxels, as `whole_file` does.

    Yield a path named as `target` in an empty `.part` folder. All files that the body writes in
    that folder move next to `target`, and the one named as `target`, the header, moves last.

    replaced: all files of an earlier result. They move aside first, the header before the others,
    and are removed when the new ones are in place. If a move fails, they return, the header last;
    what cannot return stays in the `.part` folder, which the error names.
    So a header is never next to files of another result: if the program is killed between two
    moves, or the disk fails and also when the old files return, there is no header.
    """
    with _failures_named(target), part_beside(target, gate) as part:
        new, old = part / "new", part / "old"
        new.mkdir()
        old.mkdir()
        yield new / target.name
        parts = sorted(new.iterdir(), key=lambda path: (path.name == target.name, path.name))
        for each in parts:
            flush(each)
            _check_replaceable(target.parent / each.name, by_folder=False)
        with gate.passed(parts):
            standing = [path for path in dict.fromkeys((target, *replaced)) if path.is_file()]
            if standing == [target] and len(parts) == 1:
                standing = []  # one rename replaces it
            _move(
                [
                    *((path, old / path.name) for path in standing),
                    *((path, target.parent / path.name) for path in parts),
                ],
                target.parent,
                old,
            )


def _move(steps: Sequence[tuple[Path, Path]], folder: Path, old: Path) -> None:
    """Move files from and to their paths, each step on disk before the next.

    folder: of results. old: of earlier ones. If a step fails, those before it are undone in the
    reverse order, until one of these fails, too. Raises KeptAsideError if `old` then holds files.
    """
    try:
        for source, target in steps:
            source.replace(target)
            flush_folder(folder)
    except BaseException as error:
        with suppress(OSError):  # the first failure is the cause
            for source, target in reversed(steps):
                if not os.path.lexists(source):
                    target.replace(source)
                    flush_folder(folder)
        if isinstance(error, OSError) and any(old.iterdir()):
            raise KeptAsideError(
                f"{folder} could not be written ({error.strerror}), and an earlier result could "
                f"not be put back; its files are in {old}: move them back, or run again."
            ) from error
        raise


@contextmanager
def whole_folder(target: Path, gate: Gate = NO_GATE) -> Generator[Path]:
    """Store a folder as `whole_file` does a file: yield an empty folder in a `.part` folder.

    An existing folder at `target` moves aside first and is removed when the new one is in place;
    a kill between the two renames, or a disk that fails then and also when the old one moves back,
    leaves no folder there, never half of one.
    """
    from concurrent.futures import ThreadPoolExecutor  # late: `--help` does not need it

    with _failures_named(target), part_beside(target, gate) as part:
        new, old = part / "new", part / "old"
        new.mkdir()
        yield new
        # Together: a file system answers many waiting flushes with one write of its journal.
        with ThreadPoolExecutor(_FLUSHING_THREADS) as pool:
            files = sorted(new.iterdir())
            list(pool.map(flush, files))
        flush(new)
        try:
            with gate.passed(files):
                _check_replaceable(target, by_folder=True)
                if os.path.lexists(target):
                    target.replace(old)
                new.replace(target)
            flush(target.parent)
        except BaseException:
            if os.path.lexists(old) and not os.path.lexists(target):
                with suppress(OSError):  # the first failure is the cause
                    old.replace(target)
            raise


def flush_folder(folder: Path) -> None:
    """Flush the names of files that are in place, if the disk can."""
    with suppress(OSError):
        flush(folder)


def _check_replaceable(target: Path, *, by_folder: bool) -> None:
    mode = mode_of(target, follow_symlinks=False)
    if stat.S_ISDIR(mode) and not by_folder:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if kind := _irreplaceable(mode):
        raise WriteError(
            f"{target} was not written: it is {kind}, which is not replaced; move it away."
        )


def irreplaceable(target: Path) -> str | None:
    """Return the kind of a path that is never replaced, in words.

    None if it is a file, a folder or nothing.
    """
    return _irreplaceable(mode_of(target, follow_symlinks=False))


def _irreplaceable(mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "a link"
    is_replaced = not mode or stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return None if is_replaced else "a pipe, socket or device"


@contextmanager
def _failures_named(target: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise refused(f"{target} was not written", error) from error


def refused(what: str, error: OSError) -> WriteError:
    """Return the error for a failed write; what: the beginning of its sentence."""
    kind = DiskFullError if is_full(error) else WriteError
    return kind(f"{what}: {_advice(_cause(error))}.")


def is_full(error: OSError) -> bool:
    """Return whether a disk, or this user's quota of it, was full."""
    return _cause(error).errno in (errno.ENOSPC, errno.EDQUOT)


def _cause(error: OSError) -> OSError:
    while error.errno is None and isinstance(error.__cause__, OSError):
        error = error.__cause__  # pydicom wraps errors of the system
    return error


def _advice(error: OSError) -> str:
    """Return the cause of a failed write and a remedy."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full; free space or choose another output folder"
        case errno.EFBIG:
            return (
                "it would exceed the largest file size allowed here; choose another output folder"
            )
        case errno.EROFS:
            return "the disk is read-only; choose another output folder"
        case errno.EACCES | errno.EPERM:
            return "this user may not write there; choose another output folder"
        case errno.ENAMETOOLONG:
            return "its name is too long for this disk; choose a shorter one"
        case errno.ENOENT | errno.ESTALE | errno.ENODEV | errno.ENOTCONN:
            return "its folder was moved or removed meanwhile; restore it or choose another one"
        case errno.ENXIO | errno.EPIPE:
            return "no program reads from the pipe; start its reader first"
        case errno.EISDIR | errno.EEXIST | errno.ENOTDIR:
            return "a folder and a file would have the same name; move the existing one away"
        case _:
            return f"the system reports: {error.strerror or error}"
