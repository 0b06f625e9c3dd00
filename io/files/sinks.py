"""What files are written through."""

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO, Protocol, Self

from .disk import drop_cached

LARGEST_LAG = 8
"""Writes that may wait to be hashed."""


class Sink(Protocol):
    """Takes bytes, one after the other, that may not change before its hash is told."""

    def write(self, data: bytes | memoryview, /) -> object: ...

    @property
    def sha256(self) -> str:
        """Of the whole file, in hexadecimal; only once it is closed."""
        ...


class HashedFile:
    """A file whose bytes are hashed, and sent to the disk, beside the writing of the next.

    So it takes little longer to have it hashed and flushed than to have it written.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=failure is not None)

    def write(self, data: bytes | memoryview) -> object:
        """Write these bytes next. Raises OSError."""
        self._waiting.append(self._thread.submit(self._digest.update, data))
        if len(self._waiting) > LARGEST_LAG:
            self._waiting.popleft().result()
        size = memoryview(data).nbytes
        self._file.write(data)
        with suppress(OSError):  # of a file that is in memory only
            drop_cached(self._file.fileno(), self._written, size)
        self._written += size

    @property
    def sha256(self) -> str:
        """Of all that was written, in hexadecimal; only once it is closed."""
        while self._waiting:
            self._waiting.popleft().result()
        return self._digest.hexdigest()
