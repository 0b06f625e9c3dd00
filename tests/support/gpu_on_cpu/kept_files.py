"""Files that are made once and found by every later run of the tests: compiled kernels."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from fcntl import LOCK_EX, flock
from pathlib import Path

from support.tiers import uncounted

FOLDER = Path(__file__).parents[3] / ".pytest_cache" / "d" / "kernels"
"""Folder in pytest's own cache, which `pytest --cache-clear` empties."""

MOST = 1000
"""Files that are kept, the ones used last; a run of all tests needs some 400."""


def kept_file(name: str, content: tuple[object, ...], make: Callable[[Path], None]) -> Path:
    """Return the file of a name and of the content it is made from, made by `make` if missing.

    content: all that the file depends on, with an unambiguous `repr`. Whoever needs the same file
    at the same time waits for it. Making it counts for no test.
    """
    key = hashlib.sha256(repr(content).encode()).hexdigest()[:24]
    file = FOLDER / f"{key}-{name}"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with uncounted():
            _make_once(file, make)
    os.utime(file)
    return file


def _make_once(file: Path, make: Callable[[Path], None]) -> None:
    lock = file.with_name(f"{file.name}.lock")
    with lock.open("w") as held:
        flock(held, LOCK_EX)
        try:
            if not file.exists():
                partial = file.with_name(f"{file.name}.{os.getpid()}")
                make(partial)
                partial.rename(file)
                _prune()
        finally:
            lock.unlink(missing_ok=True)  # who waits for it finds the file


def _prune() -> None:
    with suppress(FileNotFoundError):  # another process prunes, too
        for file in sorted(FOLDER.iterdir(), key=lambda file: file.stat().st_mtime)[:-MOST]:
            file.unlink()
