"""Check whether the disk of an output folder has room again, once it was too full for a result."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ...io.errors import DiskFullError
from ...io.files.disk import free_bytes

PLENTY = 32
"""Multiple of a scan's size that its result never reaches; with more free, the disk was full only
for a moment, or because of something else."""


class DiskSpace:
    """Check of free disk space before hours are spent on a result that could not be stored.

    Any thread may call it. The size of a result is not known in advance, as it may be compressed.
    So after a result did not fit, a scan of the same size or larger is rejected until the disk has
    more room than it had then.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._asking = threading.Lock()
        self._free = 0
        self._too_large: int | None = None

    @contextmanager
    def taken(self, scan: Sequence[Path]) -> Generator[None]:
        """Record a full disk if the result of a scan in these files does not fit in the block."""
        try:
            yield
        except DiskFullError:
            self._ran_out(scan)
            raise

    def _ran_out(self, scan: Sequence[Path]) -> None:
        size, free = _bytes_of(scan), free_bytes(self._output)
        if free > PLENTY * size:
            return
        with self._asking:
            self._free = free
            self._too_large = size if self._too_large is None else min(size, self._too_large)

    def check(self, scan: Sequence[Path]) -> None:
        """Raise DiskFullError if there is no room for the result of a scan in these files."""
        with self._asking:
            if self._too_large is None or _bytes_of(scan) < self._too_large:
                return
            if free_bytes(self._output) > self._free:
                self._too_large = None
                return
        raise DiskFullError(
            f"It was not begun, as the disk of {self._output} is full; make room or choose another "
            "output folder."
        )


def _bytes_of(files: Sequence[Path]) -> int:
    found = 0
    for file in files:
        with suppress(OSError):  # reported when the file is read
            found += file.stat().st_size
    return found
