"""pydicom, kept quiet: what it says about a bad value may quote a patient's data."""

import io
import logging
import struct
import warnings
import zlib
from functools import cache
from typing import Any

import pydicom as _pydicom
from pydicom import errors as _errors
from pydicom import filereader as _filereader
from pydicom.uid import ExplicitVRLittleEndian

pydicom: Any = _pydicom  # typed only in part
read_partial: Any = _filereader.read_partial
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
