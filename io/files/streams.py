"""Voxel bytes between files and arrays: through isal if they are packed as gzip or zlib."""

import bz2
import io
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast

import numpy as np
from isal import igzip_lib as _igzip_lib
from isal import isal_zlib as _isal_zlib

from ..errors import UnreadableScanError
from ..volume import AnyArray, Volume
from .disk import can_read_anywhere, read_into
from .file_writers import GzipWriter, HashedFile, Sink
from .regular import open_regular

igzip_lib: Any = _igzip_lib  # typed only in part, as the next
isal_zlib: Any = _isal_zlib

GZIP_ERRORS: tuple[type[Exception], ...] = (igzip_lib.IsalError, isal_zlib.error, BadGzipFile)
GZIP_MAGIC = b"\x1f\x8b"
Packing: TypeAlias = Literal["gzip", "zlib", "bzip2"]

BLOCK_BYTES = 1 << 20

LEAST_SIDE_BY_SIDE, PART_BYTES, _READING_THREADS = 64 << 20, 32 << 20, 8
"""Smallest buffer that several threads fill from a file, and bytes per read of each:
between two reads it may wait for the interpreter lock.
"""

_PACKED_BYTES = 1 << 19
"""Bytes of a gzip file that are read at a time."""

UNPACKING_BYTES = 2 << 20
"""Memory in addition to the voxels while a file is read: packed and skipped bytes."""

_LARGEST_PADDING_BYTES = 4096
GOES_ON = "its file continues after the compressed voxels; the extra data is ignored"
_UNPACKED_BY = {"gzip": igzip_lib.DECOMP_GZIP, "zlib": igzip_lib.DECOMP_ZLIB}


class TooManyBytesError(Exception):
    """A stream continues after all that its header declares."""


def is_gzip_name(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


@contextmanager
def open_reader(path: Path, end: int | None = None) -> Generator[BinaryIO]:
    """Read the bytes of `path`, unpacked if its name ends in .gz.

    end: how many bytes of a gzip file to read, if not all. Corrupt gzip raises while it is read.
    Raises as `check_start` does.
    """
    with open_regular(path) as whole:
        check_start(path, whole.peek(SUBSTITUTE_BYTES))
        if not is_gzip_name(path):
            yield whole
            return
        file = whole if end is None else _FirstBytes(whole, end)
        # IGzipFile wraps this reader, but copies once more and blocks other threads on each piece.
        unpacker = isal_zlib._GzipReader(file, _PACKED_BYTES)
        with io.BufferedReader(unpacker) as unpacked:
            yield unpacked


SUBSTITUTE_BYTES = 40
"""First bytes of a file that reveal another one in its place."""
_ANNEX, _LFS = b"/annex/objects/", b"version https://git-lfs"


def substitute_of(start: bytes) -> str | None:
    """Return what a file is in place of a scan that was not downloaded, with advice; or None."""
    if start.startswith(_ANNEX):
        return "a pointer of git-annex without its content; run git annex get or datalad get"
    if start.startswith(_LFS):
        return "a pointer of Git LFS without its content; run git lfs pull"
    if start.lstrip().startswith(b"<"):
        return "a web page or an error message of a server; download it again"
    return None


def check_start(path: Path, start: bytes) -> None:
    """Raise if a file is empty or packed against its name, which is not damage."""
    is_packed = start.startswith(GZIP_MAGIC)
    if not start:
        raise UnreadableScanError(f"{path} is empty; copy or export it again.")
    if other := substitute_of(start):
        raise UnreadableScanError(f"{path} is {other}.")
    if is_gzip_name(path) and not is_packed:
        raise UnreadableScanError(
            f"{path} is not gzip-compressed despite its name; rename or export it again."
        )
    if path.suffix.lower() == ".nii" and is_packed:
        raise UnreadableScanError(
            f"{path} is gzip-compressed but its name does not end in .gz; rename it."
        )


class _FirstBytes(io.RawIOBase):
    """A file up to one of its bytes."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file = file
        self._left = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = cast(Any, self._file).readinto(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def end_of_gzip(path: Path) -> int | None:
    """Return the end of the last intact member (RFC 1952) of a gzip file, if bytes follow.

    None if there is no such member, or nothing but zeros after it.
    """
    end, unpacker = None, igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    with open_regular(path) as file:
        for block in _blocks(file, sys.maxsize):
            left = block
            while left:
                try:
                    unpacker.decompress(left, BLOCK_BYTES)
                    while not (unpacker.needs_input or unpacker.eof):
                        unpacker.decompress(b"", BLOCK_BYTES)
                except GZIP_ERRORS:
                    return end
                if not unpacker.eof:
                    break
                left = unpacker.unused_data
                end = file.tell() - len(left)
                unpacker = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    return None if end == path.stat().st_size else end


@contextmanager
def open_writer(path: Path, mode: Literal["wb", "r+b"] = "wb") -> Generator[Sink]:
    """Write to `path`, packed if its name ends in .gz.

    The same writes give the same bytes: no name, no date.
    """
    with path.open(mode, io.DEFAULT_BUFFER_SIZE) as file:
        hashed = HashedFile(file)
        if not is_gzip_name(path):
            yield hashed
            return
        with GzipWriter(hashed) as packer:
            yield packer


def read_exactly(stream: BinaryIO, count: int) -> bytes:
    """Return the next `count` bytes; raises EOFError if fewer are left."""
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def skip(stream: BinaryIO, count: int) -> None:
    """Skip `count` bytes in bounded memory; raises EOFError if fewer are left."""
    scratch = memoryview(bytearray(min(count, BLOCK_BYTES)))
    while count:
        count -= _fill_some(stream, scratch[:count])


def fill(stream: BinaryIO, buffer: memoryview) -> None:
    """Fill `buffer`, of bytes, from the stream; raises EOFError if that ends early."""
    filled = _fill_side_by_side(stream, buffer)
    while filled < len(buffer):
        filled += _fill_some(stream, buffer[filled:])


def _fill_side_by_side(stream: BinaryIO, buffer: memoryview) -> int:
    """Fill a large buffer on several threads, if the stream is a plain file; return bytes filled.

    With a cached file, one thread is limited by new memory more than by reading.
    """
    below: object = getattr(stream, "raw", None)
    is_worth_it = len(buffer) >= LEAST_SIDE_BY_SIDE and can_read_anywhere()
    if not is_worth_it or not isinstance(below, io.FileIO):
        return 0
    begin, descriptor = stream.tell(), stream.fileno()

    def fill_part(first: int) -> None:
        part = buffer[first : first + PART_BYTES]
        while part:
            count = read_into(descriptor, part, begin + first)
            if not count:
                raise EOFError
            part, first = part[count:], first + count

    with ThreadPoolExecutor(_READING_THREADS) as threads:
        list(threads.map(fill_part, range(0, len(buffer), PART_BYTES)))
    stream.seek(begin + len(buffer))
    return len(buffer)


def expect_end(stream: BinaryIO) -> None:
    """Read the stream's end, which checks a gzip checksum; raises TooManyBytesError if it goes on.

    Zeros up to a disk block are accepted, as some writers pad with them.
    """
    rest = stream.read(_LARGEST_PADDING_BYTES + 1)
    if len(rest) > _LARGEST_PADDING_BYTES or any(rest):
        raise TooManyBytesError


class PackedReader(io.RawIOBase):
    """Unpacked bytes of a file from its position on, of one stream or of several in a row."""

    def __init__(self, file: BinaryIO, packing: Packing, packed_bytes: int | None = None) -> None:
        self._blocks = _blocks(file, sys.maxsize if packed_bytes is None else packed_bytes)
        self._packing: Packing = packing
        self._unpacker: Any = None
        self._block = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of `buffer`; 0 if the file has ended.

        Raises OSError or one of GZIP_ERRORS if the packed bytes are damaged.
        """
        data = self._unpacked(min(len(buffer), BLOCK_BYTES))
        buffer[: len(data)] = data
        return len(data)

    def _unpacked(self, most: int) -> bytes:
        while True:
            if self._unpacker is None or self._unpacker.needs_input:
                self._block = self._block or next(self._blocks, b"")
                if not self._block:
                    return b""
                self._unpacker = self._unpacker or _unpacker(self._packing)
                block, self._block = self._block, b""
            else:
                block = b""
            data: bytes = self._unpacker.decompress(block, most)
            if self._unpacker.eof:
                self._block, self._unpacker = self._unpacker.unused_data, None
            if data:
                return data

    def finish(self) -> bool:
        """Read the end of the stream, which checks its checksum.

        Returns whether more bytes than zeros follow in the last block that was read. Raises
        EOFError if the stream is cut, and TooManyBytesError if it goes on.
        """
        while self._unpacker is not None:
            if self._unpacker.needs_input:
                self._block = next(self._blocks, b"")
                if not self._block:
                    raise EOFError
            block, self._block = self._block, b""
            if self._unpacker.decompress(block, 1):
                raise TooManyBytesError
            if self._unpacker.eof:
                self._block, self._unpacker = self._unpacker.unused_data, None
        return any(self._block)


def _unpacker(packing: Packing) -> Any:
    if packing == "bzip2":
        return bz2.BZ2Decompressor()
    return igzip_lib.IgzipDecompressor(flag=_UNPACKED_BY[packing])


def native(voxels: AnyArray) -> AnyArray:
    """Return the same voxels in this machine's byte order, in place."""
    if voxels.dtype.isnative:
        return voxels
    return voxels.byteswap(inplace=True).view(voxels.dtype.newbyteorder("="))


def _blocks(file: BinaryIO, left: int) -> Iterator[bytes]:
    while block := file.read(min(left, BLOCK_BYTES)):
        left -= len(block)
        yield block


Arrival: TypeAlias = Callable[[int], None]
"""Function that waits until the first so many slices [i, j] of a volume are final."""


def all_there(_slices: int) -> None:
    """The arrival of a volume that is there as a whole."""


def write_voxels(stream: Sink, voxels: AnyArray, arrival: Arrival = all_there) -> None:
    """Write voxels [i, j, k] with i fastest, little-endian, some slices at a time as they arrive.

    The bytes and the sizes of the writes do not depend on the array's memory layout.
    """
    stored = voxels.dtype.newbyteorder("<")
    slice_bytes = max(1, voxels[:, :, 0].nbytes)
    slices = max(1, stream.block // slice_bytes)
    for first in range(0, voxels.shape[2], slices):
        arrival(min(first + slices, voxels.shape[2]))
        slab = np.asarray(voxels[:, :, first : first + slices], dtype=stored, order="F")
        stream.write(slab.reshape(-1, order="F").view(np.uint8).data)


def write_volumes(
    stream: Sink, volume: Volume, arrival: Arrival, series: Iterable[AnyArray] | None
) -> None:
    """Write the voxels of a volume, or of all volumes of a series as they come."""
    if series is None:
        write_voxels(stream, volume.voxels, arrival)
        return
    for voxels in series:
        write_voxels(stream, voxels)
        del voxels


def _fill_some(stream: BinaryIO, buffer: memoryview) -> int:
    count = cast(Any, stream).readinto(buffer)
    if not count:
        raise EOFError
    return count
