"""The voxels that a text header describes, read as they are stored: in one file or in several, as
they are, packed, or written out in digits.
"""

import binascii
import io
import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ..errors import UnreadableScanError
from ..files.header_limits import VoxelStorage, check_memory, check_size
from ..files.regular import open_regular
from ..files.streams import (
    BLOCK_BYTES,
    GZIP_MAGIC,
    UNPACKING_BYTES,
    PackedReader,
    TooManyBytesError,
    expect_end,
    fill,
    native,
    read_exactly,
    skip,
)
from ..volume import AnyArray, Empty
from .text_header import Encoding, TextHeader, TextStorage

MOST_SKIPPED_LINES, MOST_SKIPPED_BYTES = 1 << 16, 16 << 20
"""Limits of skipped lines, and of skipped bytes that have to be unpacked or decoded."""
_LONGEST_NUMBER = 64
"""Characters of one voxel in digits."""
_SLAB_BYTES = 2 << 20
"""Bytes per read of slices of which only a part is kept."""
_SPACE = b" \t\n\r\v\f"
_WHOLE = re.compile(rb"[-+0-9\s]*")
_REAL = re.compile(rb"[-+.0-9eEnNaAiIfFtTyY\s]*")
_KINDS: dict[Encoding, VoxelStorage] = {
    "raw": "plain",
    "text": "text",
    "hex": "text",
    "gzip": "compressed",
    "zlib": "compressed",
    "bzip2": "bzip2",
}


class _Decoder(Protocol):
    """Decoder of the voxel bytes of one file. finish: checks that no more follow, or returns
    whether more follow if the rest is only skipped.
    """

    def fill(self, buffer: memoryview) -> None: ...
    def skip(self, count: int) -> None: ...
    def finish(self) -> bool: ...


class StoredVoxels(AbstractContextManager["StoredVoxels"]):
    """Bytes of all voxels in sequence, across the files that contain them.

    goes_on: whether any finished file has more data after its packed voxels.
    """

    def __init__(self, storage: TextStorage, count: int) -> None:
        """Prepare to read so many voxels; raises UnreadableScanError if the files are too short."""
        self._storage = storage
        self._share = count * storage.voxel_type.itemsize // len(storage.files)
        self._waiting = list(reversed(storage.files))
        self._file: BinaryIO | None = None
        self._decoder: _Decoder | None = None
        self._left = 0
        self.goes_on = False
        _check_files(storage, self._share)

    def __exit__(self, *_: object) -> None:
        self._close()

    def fill(self, buffer: memoryview) -> None:
        """Fill `buffer` with the next bytes; raises EOFError if there are fewer."""
        while buffer:
            decoder, count = self._next(len(buffer))
            decoder.fill(buffer[:count])
            buffer = buffer[count:]

    def skip(self, count: int) -> None:
        """Skip so many bytes."""
        while count:
            decoder, there = self._next(count)
            decoder.skip(there)
            count -= there

    def finish(self) -> None:
        """Read all that is left, which checks it.

        Raises TooManyBytesError if a file goes on although its voxels are to end it.
        """
        self.skip(self._left + self._share * len(self._waiting))
        self._end()

    def _next(self, wanted: int) -> tuple[_Decoder, int]:
        """Return a decoder of the bytes that come next, and how many of the wanted ones it has."""
        if not self._left:
            self._end()
            if not self._waiting:
                raise EOFError
            path = self._waiting.pop()
            self._file = open_regular(path)
            self._decoder = _decoder_of(self._file, path, self._storage, self._share)
            self._left = self._share
        if self._decoder is None:
            raise EOFError
        count = min(wanted, self._left)
        self._left -= count
        return self._decoder, count

    def _end(self) -> None:
        if self._decoder and self._decoder.finish():
            self.goes_on = True
        self._close()

    def _close(self) -> None:
        self._decoder = None
        if self._file:
            self._file.close()


def _check_files(storage: TextStorage, share: int) -> None:
    """Raise unless each file can hold its share, before memory is taken for it."""
    check_memory(storage.files[0], share * len(storage.files))
    skipped = storage.start + (0 if storage.is_packed else max(storage.byte_skip, 0))
    for file in storage.files:
        match storage.encoding:
            case "raw":
                check_size(file, skipped + share)
            case _:
                check_size(file, share, _KINDS[storage.encoding])
                check_size(file, storage.start + (storage.packed_bytes or 0))


def _decoder_of(file: BinaryIO, path: Path, storage: TextStorage, share: int) -> _Decoder:
    """Return the decoder of a file, which is then at its first voxel."""
    _to_voxels(file, storage, share)
    match storage.encoding:
        case "raw":
            return _Plain(file, storage.is_exact)
        case "hex":
            return _Decoded(_HexReader(file, path), storage.is_exact)
        case "text":
            return _Decoded(_DigitReader(file, path, storage.voxel_type), storage.is_exact)
        case packing:
            if packing == "zlib" and _is_gzip(file):
                packing = "gzip"
            begin, skipped = file.tell(), storage.byte_skip
            if skipped < 0:
                most = share + MOST_SKIPPED_BYTES
                skipped += _unpacked_bytes(PackedReader(file, packing), most) + 1 - share
                file.seek(begin)
            if skipped < 0:
                raise EOFError
            reader: Any = PackedReader(file, packing, storage.packed_bytes)
            skip(reader, skipped)
            return _Decoded(reader, storage.is_exact)


def _unpacked_bytes(reader: PackedReader, most: int) -> int:
    """Return the unpacked length; raises TooManyBytesError above so many bytes."""
    scratch, total = bytearray(BLOCK_BYTES), 0
    while count := reader.readinto(scratch):
        total += count
        if total > most:
            raise TooManyBytesError
    return total


def _is_gzip(file: BinaryIO) -> bool:
    """Return whether gzip data follow, which MetaIO accepts in place of zlib."""
    begin = file.tell()
    start = file.read(len(GZIP_MAGIC))
    file.seek(begin)
    return start == GZIP_MAGIC


def _to_voxels(file: BinaryIO, storage: TextStorage, share: int) -> None:
    file.seek(storage.start)
    for _ in range(storage.line_skip):
        while not (line := file.readline(BLOCK_BYTES)).endswith(b"\n"):
            if not line:
                raise EOFError
    if storage.is_packed:
        return
    if storage.byte_skip < 0:
        behind = share - 1 - storage.byte_skip
        begin = file.seek(0, io.SEEK_END) - behind
        if begin < storage.start:
            raise EOFError
        file.seek(begin)
    else:
        file.seek(storage.byte_skip, io.SEEK_CUR)


class _Plain:
    """Bytes as they are."""

    def __init__(self, file: BinaryIO, is_exact: bool) -> None:
        self._file, self._is_exact = file, is_exact

    def fill(self, buffer: memoryview) -> None:
        fill(self._file, buffer)

    def skip(self, count: int) -> None:
        self._file.seek(count - 1, io.SEEK_CUR)
        read_exactly(self._file, 1)

    def finish(self) -> bool:
        if self._is_exact:
            expect_end(self._file)
        return False


class _Decoded:
    """Bytes that a reader makes."""

    def __init__(self, reader: Any, is_exact: bool) -> None:
        self._reader, self._is_exact = reader, is_exact

    def fill(self, buffer: memoryview) -> None:
        fill(self._reader, buffer)

    def skip(self, count: int) -> None:
        skip(self._reader, count)

    def finish(self) -> bool:
        return self._is_exact and self._reader.finish()


class _TextReader(io.RawIOBase):
    """Bytes that are written out as text, decoded block by block."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._ready = memoryview(b"")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of `buffer`; 0 if the text has ended. Raises UnreadableScanError."""
        while not self._ready:
            block = self._file.read(BLOCK_BYTES)
            try:
                text, self._rest = self._cut(self._rest + block) if block else (self._rest, b"")
                self._ready = memoryview(self._decode(text)).cast("B")
            except (ValueError, OverflowError) as error:
                raise UnreadableScanError(
                    f"{self._path} is damaged: its voxels are not encoded as its header states; "
                    "copy or export it again."
                ) from error
            if not block:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def finish(self) -> bool:
        """Raise TooManyBytesError if more follows than white space."""
        if self._ready or self.readinto(bytearray(1)):
            raise TooManyBytesError
        return False

    def _cut(self, text: bytes) -> tuple[bytes, bytes]:
        """Return the text to decode now, and the rest that may continue in the next block."""
        raise NotImplementedError

    def _decode(self, text: bytes) -> Any:
        """Return a buffer. Raises ValueError or OverflowError."""
        raise NotImplementedError


class _HexReader(_TextReader):
    """Two digits a byte."""

    def _cut(self, text: bytes) -> tuple[bytes, bytes]:
        digits = text.translate(None, _SPACE)
        even = len(digits) & ~1
        return digits[:even], digits[even:]

    def _decode(self, text: bytes) -> bytes:
        return binascii.unhexlify(text.strip())


class _DigitReader(_TextReader):
    """Reader of numbers separated by white space, each optionally followed by a comma."""

    def __init__(self, file: BinaryIO, path: Path, voxel_type: "np.dtype[Any]") -> None:
        super().__init__(file, path)
        self._type = voxel_type

    def _cut(self, text: bytes) -> tuple[bytes, bytes]:
        kept = len(text.rstrip(_NUMBER_SIGNS))
        if len(text) - kept > _LONGEST_NUMBER:
            raise ValueError
        return text[:kept], text[kept:]

    def _decode(self, text: bytes) -> AnyArray:
        text = text.replace(b",", b" ")
        is_whole = self._type.kind in "iu"
        words = text.split()
        if not (_WHOLE if is_whole else _REAL).fullmatch(text) or (
            max(map(len, words), default=0) > _LONGEST_NUMBER
        ):
            raise ValueError
        if not is_whole:
            return np.array(words, dtype=np.bytes_).astype(self._type)
        numbers = list(map(int, words))
        limits = np.iinfo(self._type)
        if numbers and not limits.min <= min(numbers) <= max(numbers) <= limits.max:
            raise OverflowError
        return np.array(numbers, dtype=self._type)


_NUMBER_SIGNS = bytes(sign for sign in range(33, 256) if sign != ord(","))


def read_voxels(header: TextHeader, volume: int, empty: Empty) -> tuple[AnyArray, bool]:
    """Return the voxels [i, j, k] of one volume in this machine's byte order, and whether a file
    continues after its packed voxels.

    Other volumes are read past, which checks them. Raises ScanError, EOFError, TooManyBytesError,
    OSError and what isal raises.
    """
    storage = header.storage
    with StoredVoxels(storage, math.prod(header.sizes)) as stored:
        voxels = _picked(header, stored, _place(header, volume), empty)
        stored.finish()
    return native(voxels), stored.goes_on


def read_series(header: TextHeader, empty: Empty) -> Iterator[tuple[AnyArray, bool]]:
    """Read all volumes in their order as `read_voxels` does, each on demand.

    header: with all further axes after i, j and k. The end of the files is checked before the last
    volume.
    """
    count, shape = math.prod(header.extents[3:]), header.extents[:3]
    voxel_type = header.storage.voxel_type
    with StoredVoxels(header.storage, math.prod(header.sizes)) as stored:
        for index in range(count):
            raw = empty((math.prod(shape) * voxel_type.itemsize,), np.uint8)
            stored.fill(raw.data)
            if index == count - 1:
                stored.finish()
            voxels = raw.view(voxel_type).reshape(shape, order="F")
            del raw
            yield native(voxels), stored.goes_on
            del voxels


def scratch_bytes(header: TextHeader) -> int:
    """Return memory used in addition to the voxels while they are read."""
    inside = header.sizes[: max(header.axes)]
    is_apart = len(inside) > 2
    row = math.prod(inside) * header.storage.voxel_type.itemsize * is_apart
    return UNPACKING_BYTES + max(row, _SLAB_BYTES * is_apart)


def _place(header: TextHeader, volume: int) -> dict[int, int]:
    """Return the index of a volume along each further axis."""
    place: dict[int, int] = {}
    for axis in header.further:
        volume, place[axis] = divmod(volume, header.sizes[axis])
    return place


def _picked(
    header: TextHeader, stored: StoredVoxels, place: dict[int, int], empty: Empty
) -> AnyArray:
    """One volume; the further axes that lie between i, j and k are read along with it, some slices
    at a time.
    """
    last = max(header.axes)
    size = header.storage.voxel_type.itemsize
    outside = [axis for axis in range(len(header.sizes)) if axis > last]
    block = math.prod(header.sizes[: last + 1]) * size
    before = 0
    for axis in reversed(outside):
        before = before * header.sizes[axis] + place[axis]
    stored.skip(before * block)
    shape = tuple(header.sizes[axis] for axis in header.axes)
    raw = empty((math.prod(shape) * size,), np.uint8)
    voxels = raw.view(header.storage.voxel_type).reshape(shape, order="F")
    if last == 2:
        stored.fill(raw.data)
        return voxels
    inside = header.sizes[:last]
    row = math.prod(inside) * size
    rows = max(1, _SLAB_BYTES // row)
    scratch = np.empty(min(rows, shape[2]) * row, np.uint8)
    index = tuple(place.get(axis, slice(None)) for axis in range(last))
    for first in range(0, shape[2], rows):
        count = min(rows, shape[2] - first)
        stored.fill(scratch[: count * row].data)
        slab = scratch[: count * row].view(header.storage.voxel_type)
        voxels[:, :, first : first + count] = slab.reshape((*inside, count), order="F")[index]
    return voxels
