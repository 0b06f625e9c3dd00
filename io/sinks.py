"""What files are written through."""

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Protocol, Self

LARGEST_LAG = 8
"""Writes that may wait to be hashed."""


class Sink(Protocol):
    """Takes bytes, one after the other, that may not change before it is closed."""

    def write(self, data: bytes | memoryview, /) -> object: ...

    @property
    def sha256(self) -> str:
        """Of the whole file, in hexadecimal; only once it is closed."""
        ...


class HashedFile:
    """A file whose bytes are hashed beside their writing, which takes no longer for it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self._thread.shutdown(cancel_futures=failure is not None)

    def write(self, data: bytes | memoryview) -> object:
        """Write these bytes next. Raises OSError."""
        self._waiting.append(self._thread.submit(self._digest.update, data))
        if len(self._waiting) > LARGEST_LAG:
            self._waiting.popleft().result()
        self._file.write(data)

    @property
    def sha256(self) -> str:
        """Of all that was written, in hexadecimal; only once it is closed."""
        return self._digest.hexdigest()
