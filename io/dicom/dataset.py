"""DICOM data sets: pydicom, kept quiet, and values of elements.

pydicom's message about a bad value may quote a patient's data.
"""

import logging
import math
import re
import struct
import warnings
import zlib
from contextlib import suppress
from datetime import date
from functools import cache, lru_cache
from io import BytesIO
from sys import intern
from typing import Any, TypeAlias

import pydicom as _pydicom
from pydicom import errors as _errors

from ..volume import FARTHEST_PLACE_MM

pydicom: Any = _pydicom  # typed only in part
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


def decoded(data: bytes, *, is_implicit: bool) -> "DataSet":
    """Return the data set of `encoded`. Raises PARSING_ERRORS."""
    return pydicom.filereader.read_dataset(BytesIO(data), is_implicit, is_little_endian=True)


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
