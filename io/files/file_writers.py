"""Writers of files: hashed as they are written, and packed on several threads."""

import hashlib
import os
import struct
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, Literal, Protocol, Self, TypeAlias

from isal import isal_zlib as _isal_zlib

from .disk import drop_cached

LARGEST_LAG = 4
"""Writes that may wait to be hashed."""

_HASHED_AT_ONCE = 1 << 16
"""Bytes, such as of a header, that are hashed sooner than another thread wakes up."""


_DROPPED_BYTES = 8 << 20
"""Bytes after which the system starts to store what was written."""


class Sink(Protocol):
    """Takes bytes, one after the other, that may not change before its hash is read.

    block: bytes per write that suit it.
    """

    block: int

    def write(self, data: bytes | memoryview, /) -> object: ...

    @property
    def sha256(self) -> str:
        """Hash of the whole file, in hexadecimal; only once it is closed."""
        ...


class HashedFile:
    """File whose bytes are hashed and flushed concurrently with the writing of the next ones.

    Hashing and flushing add little to the time of writing. Few large writes hand the interpreter's
    lock around least.
    """

    block = 8 << 20

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._waiting: deque[bytes | memoryview] = deque()
        self._hashing: Future[None] | None = None
        self._written = self._dropped = 0

    def write(self, data: bytes | memoryview) -> object:
        """Write these bytes next. Raises OSError."""
        size = memoryview(data).nbytes
        self._waiting.append(data)
        if self._hashing is None or self._hashing.done():
            if size <= _HASHED_AT_ONCE:
                self._hash()
            else:
                self._hashing = _threads().submit(self._hash)
        elif len(self._waiting) > LARGEST_LAG:
            self._hashing.result()
        self._file.write(data)
        self._written += size
        if self._written - self._dropped >= _DROPPED_BYTES:
            with suppress(OSError):  # of a file that is in memory only
                drop_cached(self._file.fileno(), self._dropped, self._written - self._dropped)
            self._dropped = self._written

    @property
    def sha256(self) -> str:
        """Hash of all that was written, in hexadecimal; only once it is closed."""
        if self._hashing:
            self._hashing.result()
        self._hash()
        return self._digest.hexdigest()

    def _hash(self) -> None:
        """Hash all that waits, in one thread at a time."""
        while self._waiting:
            self._digest.update(self._waiting.popleft())


isal_zlib: Any = _isal_zlib  # typed only in part

_LEVEL = 1
THREADS = max(2, min(8, (os.cpu_count() or 1) // 2))
"""Threads for all files that are written at a time; a file's bytes do not depend on it."""

Deflated: TypeAlias = Literal["gzip", "zlib"]
_HEADERS: dict[Deflated, bytes] = {
    "gzip": struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, 0, 0, 0, 0xFF),
    "zlib": struct.pack(">H", 0x7801),
}
"""Headers of gzip without a name, a date or a system, and of zlib for its fastest level."""

_RAW = -isal_zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class _Block:
    packed: list[bytes]
    checksum: int
    size: int


class GzipWriter:
    """Writer that compresses each write as a block, concurrently with the caller's next one.

    The blocks form one stream, which every reader accepts (after pigz, Mark Adler). Few large
    writes compress best: 2 MiB each add 0.2 % to the size and wake a thread a dozen times per
    scan, not a thousand, which would slow many studies in one interpreter. Written buffers must not
    change before the writer is closed, which a failure in its `with` block skips.
    """

    block = 2 << 20

    def __init__(self, file: Sink, packing: Deflated = "gzip") -> None:
        self._file = file
        self._packing: Deflated = packing
        self._adler = 1
        self._waiting: deque[Future[_Block]] = deque()
        self._checksum = self._size = 0

    def __enter__(self) -> Self:
        self._file.write(_HEADERS[self._packing])
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        try:
            if failure is None:
                while self._waiting:
                    self._store_next()
                self._file.write(isal_zlib.compress(b"", _LEVEL, _RAW))
                self._file.write(self._trailer())
        finally:
            while self._waiting:
                self._waiting.pop().cancel()

    def write(self, data: bytes | memoryview) -> object:
        """Pack these bytes next; raises OSError if earlier ones cannot be stored."""
        if self._packing == "zlib":  # isal does not combine its checksums of blocks
            self._adler = isal_zlib.adler32(data, self._adler)
        self._waiting.append(_threads().submit(_packed, data))
        if len(self._waiting) > 2 * THREADS:
            self._store_next()

    @property
    def sha256(self) -> str:
        """Hash of the packed file, in hexadecimal; only once that is closed."""
        return self._file.sha256

    def _trailer(self) -> bytes:
        if self._packing == "zlib":
            return struct.pack(">I", self._adler)
        return struct.pack("<II", self._checksum, self._size & 0xFFFFFFFF)

    def _store_next(self) -> None:
        block = self._waiting.popleft().result()
        for part in block.packed:
            self._file.write(part)
        self._checksum = isal_zlib.crc32_combine(self._checksum, block.checksum, block.size)
        self._size += block.size


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads of the process that hash and pack: each file would wait for its own to start."""
    return ThreadPoolExecutor(THREADS, "pack")


def _packed(data: bytes | memoryview) -> _Block:
    packer = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _RAW)
    packed = [packer.compress(data), packer.flush(isal_zlib.Z_SYNC_FLUSH)]
    return _Block(packed, isal_zlib.crc32(data), memoryview(data).nbytes)
