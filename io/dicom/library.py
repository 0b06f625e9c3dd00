"""pydicom, kept quiet: what it says about a bad value may quote a patient's data."""

import io
import logging
import struct
import warnings
import zlib
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import pydicom as _pydicom
from pydicom import errors as _errors
from pydicom import filereader as _filereader
from pydicom.uid import ExplicitVRLittleEndian

pydicom: Any = _pydicom  # typed only in part
filereader: Any = _filereader
PARSING_ERRORS: tuple[type[Exception], ...] = (
    *(_errors.InvalidDicomError, _errors.BytesLengthException, struct.error, zlib.error),
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, EOFError),
    *(NotImplementedError, RecursionError),
)
"""What pydicom raises for damaged elements. Their words quote values, perhaps a patient's name, so
an error that is made of one is raised from None."""

# For good, not around each use: several threads read and write, and warnings have one set of rules.
warnings.filterwarnings("ignore", module="pydicom")
logging.getLogger("pydicom").addHandler(logging.NullHandler())
logging.getLogger("pydicom").propagate = False


@cache
def tag_of(keyword: str) -> Any:
    """The number of an element."""
    return pydicom.tag.Tag(keyword)


_SHARED_BYTES = 128
"""Of an element that files may share, at most: a series' identifiers and names are shorter."""


def with_shared_values(header: Any) -> Any:
    """A header that was read, with its short elements decoded; not to be written to a file.

    The images of a series repeat most of their header: a value that many files hold is decoded once
    and kept once. What cannot be decoded stays as it was stored.
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
    """An element of one value or several; None of those that other elements have a say in."""
    own = element.tag == tag_of("SpecificCharacterSet")
    text = "iso8859" if own else encoding if isinstance(encoding, str) else list(encoding)
    found = pydicom.dataelem.convert_raw_data_element(element, encoding=text)
    return None if found.VR == "SQ" or " or " in found.VR else found


def encoded(dataset: Any, *, is_implicit: bool) -> bytes:
    """The elements alone, in little endian."""
    buffer = pydicom.filebase.DicomBytesIO()
    buffer.is_little_endian, buffer.is_implicit_VR = True, is_implicit
    pydicom.filewriter.write_dataset(buffer, dataset)
    return bytes(buffer.getvalue())


class Template:
    """Elements that many files share, turned into bytes once."""

    def __init__(self, dataset: Any) -> None:
        buffer = io.BytesIO()
        dataset.file_meta = _meta()
        dataset.save_as(buffer, enforce_file_format=True)
        buffer.seek(0)
        self._encoded = pydicom.dcmread(buffer)

    def copy(self) -> Any:
        """A data set of its own with these elements, to be stored in explicit little endian."""
        encoded = self._encoded
        dataset = pydicom.Dataset({tag: encoded.get_item(tag) for tag in encoded.keys()})  # noqa: SIM118
        dataset.set_original_encoding(False, True, encoded.original_character_set)
        dataset.file_meta = _meta()
        return dataset


def _meta() -> Any:
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return meta
