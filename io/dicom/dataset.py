"""DICOM data sets: pydicom, kept quiet and within bounds, and values of elements.

pydicom's message about a bad value may quote a patient's data, and no file may take far more memory
than its size.
"""

import io
import logging
import math
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import cache, lru_cache
from sys import intern
from typing import Any, BinaryIO, TypeAlias

import pydicom as _pydicom
from pydicom import errors as _errors
from pydicom import filereader as _filereader
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

from ..volume import FARTHEST_PLACE_MM

pydicom: Any = _pydicom  # typed only in part
filereader: Any = _filereader
PARSING_ERRORS: tuple[type[Exception], ...] = (
    *(_errors.InvalidDicomError, _errors.BytesLengthException, struct.error, zlib.error),
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, EOFError),
    *(NotImplementedError, RecursionError),
)
"""Errors that pydicom raises for damaged elements. Their messages quote values, perhaps a patient's
name, so errors derived from them are raised from None."""

# For good, not around each use: several threads read and write, and warnings have one set of rules.
warnings.filterwarnings("ignore", module="pydicom")
logging.getLogger("pydicom").addHandler(logging.NullHandler())
logging.getLogger("pydicom").propagate = False


@cache
def tag_of(keyword: str) -> Any:
    """Return the number of an element."""
    return pydicom.tag.Tag(keyword)


_SHARED_BYTES = 128
"""Longest element that files may share: a series' identifiers and names are shorter."""


def with_shared_values(header: Any) -> Any:
    """Return a header that was read, with its short elements decoded; not to be written to a file.

    The images of a series repeat most of their header: a value that many files hold is decoded once
    and kept once. Values that cannot be decoded stay as stored.
    """
    charset = header.original_character_set
    encoding = charset if isinstance(charset, str) else tuple(charset)
    elements = {tag: header.get_item(tag, keep_deferred=True) for tag in header.keys()}  # noqa: SIM118
    for tag, element in elements.items():
        if element.is_raw and element.value is not None and len(element.value) <= _SHARED_BYTES:
            with suppress(*PARSING_ERRORS):
                shared = _decoded(element._replace(value_tell=0), encoding)
                elements[tag] = element if shared is None else shared
    decoded = pydicom.Dataset(elements)
    decoded.set_original_encoding(*header.original_encoding, charset)
    decoded.file_meta = header.file_meta
    return decoded


@lru_cache(maxsize=1024)
def _decoded(element: Any, encoding: str | tuple[str, ...]) -> Any:
    """Return an element with decoded values; None for a sequence or an ambiguous type."""
    own = element.tag == tag_of("SpecificCharacterSet")
    text = "iso8859" if own else encoding if isinstance(encoding, str) else list(encoding)
    found = pydicom.dataelem.convert_raw_data_element(element, encoding=text)
    return None if found.VR == "SQ" or " or " in found.VR else found


def encoded(dataset: Any, *, is_implicit: bool) -> bytes:
    """Return the elements alone, in little endian."""
    buffer = pydicom.filebase.DicomBytesIO()
    buffer.is_little_endian, buffer.is_implicit_VR = True, is_implicit
    pydicom.filewriter.write_dataset(buffer, dataset)
    return bytes(buffer.getvalue())


DataSet: TypeAlias = Any
"""A pydicom data set; its elements have no static types."""
_MOMENT = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d(?:\.\d+)?)", re.ASCII)
"""Start of a date-time, or of a date followed by a time; an offset from UTC may follow."""


def numbers(dataset: DataSet, keyword: str, count: int) -> tuple[float, ...]:
    """Return the element's values if they are `count` finite numbers, else nothing."""
    value = _value(dataset, keyword)
    values = [value] if isinstance(value, int | float) else value
    try:
        found = tuple(float(each) for each in values or ())
    except (TypeError, ValueError):
        return ()
    return found if len(found) == count and all(map(math.isfinite, found)) else ()


def places(dataset: DataSet, keyword: str, count: int) -> tuple[float, ...]:
    """Return `numbers` of millimetres or cosines; nothing if one is farther than any patient."""
    found = numbers(dataset, keyword, count)
    return found if all(abs(each) < FARTHEST_PLACE_MM for each in found) else ()


def number(dataset: DataSet, keyword: str, default: float = 0.0) -> float:
    """Return the element's first value if it is a finite number, else the default."""
    found = numbers(dataset, keyword, 1)
    return found[0] if found else default


def is_no_number(dataset: DataSet, keyword: str) -> bool:
    """Return whether the element has a value that is not one finite number."""
    element = dataset.get_item(tag_of(keyword))
    raw = b"" if element is None or element.value is None else element.value
    stored = raw.strip(b" \0") if isinstance(raw, bytes) else str(raw)
    return bool(stored) and not numbers(dataset, keyword, 1)


def words(dataset: DataSet, keyword: str) -> tuple[str, ...]:
    """Return the element's values as text, without padding."""
    value = _value(dataset, keyword)
    if value is None or value == "":
        return ()
    values = [value] if isinstance(value, str) or not hasattr(value, "__iter__") else value
    # A search holds the words of many thousand images, most of which the images of a series share.
    return tuple(intern(str(each).strip(" \0")) for each in values)


def word(dataset: DataSet, keyword: str) -> str:
    """Return the element's first value as text, or nothing."""
    found = words(dataset, keyword)
    return found[0] if found else ""


def items(dataset: DataSet, keyword: str) -> tuple[DataSet, ...]:
    """Return the items of a sequence, or none."""
    value = _value(dataset, keyword)
    return tuple(value) if value is not None and not isinstance(value, str | bytes) else ()


def seconds(*texts: str) -> float:
    """Return a DICOM date-time, or date and time, in seconds since year 1; 0 if incomplete."""
    found = _MOMENT.match("".join(texts).replace(":", ""))
    if found is None:
        return 0.0
    year, month, day, hours, minutes = map(int, found.group(1, 2, 3, 4, 5))
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        return 0.0
    return days * 86400.0 + hours * 3600.0 + minutes * 60.0 + float(found.group(6))


def _value(dataset: DataSet, keyword: str) -> Any:
    """Return an element's value; None if it is missing or its text is not a value of its type."""
    try:
        element = dataset.get(tag_of(keyword))  # which takes half as long as by the keyword
    except PARSING_ERRORS:
        return None
    return None if element is None else element.value


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
    numbers = ("Rows", "Columns", "BitsAllocated", "SamplesPerPixel", "NumberOfFrames")
    bits = 1
    for name in numbers:
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
