"""Whether the disk of an output folder takes another result, once it was too full for one."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ...io.errors import DiskFullError
from ...io.files.disk import free_bytes

PLENTY = 32
"""Times a scan's bytes that its result takes by no means; with more of them free, the disk was full
for a moment only, or of something else."""


class DiskSpace:
    """Asked before hours are spent on what could not be stored; any thread may ask.

    How large a result gets is known when it is there, as it may be packed. So a scan is turned away
    that is as large as one whose result did not fit, until the disk has more room than it had then.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._asking = threading.Lock()
        self._free = 0
        self._too_large: int | None = None

    @contextmanager
    def taken(self, scan: Sequence[Path]) -> Generator[None]:
        """While the result of a scan in these files is stored; takes note if it does not fit."""
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
        with suppress(OSError):  # who reads it tells
            found += file.stat().st_size
    return found
