"""Reading of DICOM data sets within bounds: none may take far more memory than its file has bytes.

Sequences may have only so many items, and a deflated data set may be no larger than its header
declares.
"""

import io
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from pydicom import filereader as _filereader
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

from .dataset import tag_of

filereader: Any = _filereader  # typed only in part

MOST_ITEMS = 500_000
"""Limit of items of sequences in a data set: 20,000 enhanced frames have as many."""
_FEW_ITEMS, _BYTES_OF_AN_ITEM = 100_000, 32
"""More items than this are refused if they are smaller than this on average; no real ones are."""
_ITEMS = _ITEM, _BIG_ENDIAN_ITEM = b"\xfe\xff\0\xe0", b"\xff\xfe\xe0\0"
_TAGS_OF_PIXELS = b"\xe0\x7f\x10\0", b"\x7f\xe0\0\x10"
_LONG_VALUE = 1024
_TAG_AND_LENGTH = 8
_MOST_BYTES_OF_A_HEADER = 64 << 20
"""Limit of a deflated data set, without its pixels."""
_AT_ONCE = 1 << 16
_PIXELS = frozenset(tag_of(f"{kind}PixelData") for kind in ("", "Float", "DoubleFloat"))

StopWhen = Callable[[int, str | None, int], bool]


class TooManyItemsError(ValueError):
    """Sequences have more items than any real data set."""


class TooLargeError(ValueError):
    """A deflated data set is larger than its header declares."""


class ItemCount:
    """The items of sequences in a data set that comes piece by piece."""

    def __init__(self, *, big_endian: bool = False) -> None:
        self._item = _BIG_ENDIAN_ITEM if big_endian else _ITEM
        self._items = self._bytes = 0
        self._end = b""

    def add(self, piece: bytes | memoryview) -> None:
        """Count those of the next piece. Raises TooManyItemsError."""
        known = self._end + piece
        self._end = known[1 - len(self._item) :]
        self.add_counted(known.count(self._item), len(piece))

    def add_counted(self, items: int, length: int) -> None:
        """Count items in so many bytes. Raises TooManyItemsError."""
        self._items += items
        self._bytes += length
        if self._items > MOST_ITEMS or (
            self._items > _FEW_ITEMS and self._items * _BYTES_OF_AN_ITEM > self._bytes
        ):
            raise TooManyItemsError


def read_partial(file: BinaryIO, stop_when: StopWhen | None = None, **options: Any) -> Any:
    """Read a data set as pydicom's `read_partial` does.

    Raises TooManyItemsError and TooLargeError too.
    """
    start = file.tell()
    try:
        return _read(file if _is_harmless(file) else _Source(file), stop_when, **options)
    except _DeflatedError:
        pass
    inflated = _Inflated(file, start, file.tell())
    header = _read(_Source(inflated), is_of_pixels, **options | {"specific_tags": None})
    inflated.most += _declared_bytes(header)
    inflated.seek(0)
    dataset = _read(_Source(inflated), stop_when, **options)
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    return dataset


def is_of_pixels(tag: int, _kind: str | None, _length: int) -> bool:
    """Return whether an element holds pixels."""
    return tag in _PIXELS


def _is_harmless(file: BinaryIO) -> bool:
    """Return whether a file in memory is neither deflated nor large enough for too many items:
    reading then takes a seventh less time.
    """
    if not isinstance(file, io.BytesIO):
        return False
    content = file.getvalue()  # of the same memory
    most = _FEW_ITEMS * _TAG_AND_LENGTH
    return len(content) <= most and DeflatedExplicitVRLittleEndian.encode() not in content


def _read(source: "BinaryIO | _Source", stop_when: StopWhen | None, **options: Any) -> Any:
    try:
        dataset = filereader.read_partial(source, stop_when, **options)
    except OSError:  # pydicom's word for whatever happens between two items
        trouble = source.trouble if isinstance(source, _Source) else None
        raise trouble or EOFError from None
    dataset.buffer = None  # or it would keep the file's bytes
    return dataset


def _declared_bytes(header: Any) -> int:
    """Return the number of bytes of pixels that the header states. Raises ValueError, TypeError."""
    bits = 1
    for name in ("Rows", "Columns", "BitsAllocated", "SamplesPerPixel", "NumberOfFrames"):
        bits *= max(int(header.get(tag_of(name)).value or 1), 1) if name in header else 1
    return bits // 8


class _DeflatedError(Exception):
    """pydicom is about to unpack a data set, whatever size that has."""


class _Source:
    """File interface for pydicom, which reads all of the rest in one call to unpack it."""

    def __init__(self, file: "BinaryIO | _Inflated") -> None:
        self._read = file.read
        self.seek, self.tell = file.seek, file.tell
        self._items = ItemCount()
        self._from = 0
        self._tag = b""
        self.trouble: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; an error raised is kept as `trouble`."""
        try:
            return self._next(size)
        except Exception as error:
            self.trouble = error
            raise

    def _next(self, size: int) -> bytes:
        if size < 0:
            raise _DeflatedError
        piece = self._read(size)
        items = 0
        if size == _TAG_AND_LENGTH:
            self._tag = piece[:4]
            items = self._tag in _ITEMS
        elif size > _LONG_VALUE and self._tag not in _TAGS_OF_PIXELS:
            items = sum(map(piece.count, _ITEMS))  # of a sequence that is parsed later
        if items:
            at = self.tell()
            self._items.add_counted(items, at - self._from)
            self._from = at
        return piece


class _Inflated:
    """File whose deflated data set is unpacked as it is read.

    start: offset of the file. packed_at: offset of its packed data set. most: limit of its unpacked
    bytes.
    """

    def __init__(self, file: BinaryIO, start: int, packed_at: int) -> None:
        file.seek(start)
        head = file.read(packed_at - start)
        plain = ExplicitVRLittleEndian.ljust(len(DeflatedExplicitVRLittleEndian), "\0")
        self._file = file
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._known = bytearray(
            head.replace(DeflatedExplicitVRLittleEndian.encode(), plain.encode())
        )
        self._at = 0
        self.most = len(head) + _MOST_BYTES_OF_A_HEADER

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (self._at if whence == io.SEEK_CUR else 0))
        return self._at

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises EOFError, TooLargeError and zlib.error."""
        while len(self._known) < self._at + size and not self._inflater.eof:
            packed = self._inflater.unconsumed_tail or self._file.read(_AT_ONCE)
            if not packed:
                raise EOFError
            self._known += self._inflater.decompress(packed, _AT_ONCE)
            if len(self._known) > self.most:
                raise TooLargeError
        piece = bytes(self._known[self._at : self._at + size])
        self._at += len(piece)
        return piece
