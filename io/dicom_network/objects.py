"""Objects received from the network: written to disk piece by piece, and compared."""

import errno
import hashlib
import io
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydicom.uid import ExplicitVRBigEndian

from ..dicom.bounded_reading import ItemCount, TooManyItemsError, is_of_pixels, read_partial
from ..dicom.dataset import PARSING_ERRORS, DataSet, encoded, number, pydicom, tag_of, word
from ..dicom.stored_text import all_as_stored
from ..files.regular import open_regular
from .commands import DimseStatus, Refusal
from .negotiation import IMPLEMENTATION_NAME, IMPLEMENTATION_UID

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KEPT_BYTES = 4096
"""Longer values of a header are skipped when its identifiers are looked for."""
START_BYTES = 1 << 14
"""First bytes of a data set, within which its study is named, nearly always."""
_NAMES = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
_EXTENTS = ("NumberOfFrames", "Rows", "Columns")
_BYTES_OF_A_PIXEL = 2
_BYTES_OF_DERIVATION = 8192
"""Estimate of the elements that an image of a result adds, and of the rest of its last block."""


UID_PATTERN = re.compile(r"[\w-][\w.-]{0,127}", re.ASCII)
"""UIDs, with some that violate DICOM's rules, but none that changes a URL's path or is a wildcard.
"""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """Object that a peer lists. study, series, instance: its UIDs."""

    study: str
    series: str
    instance: str


@dataclass(frozen=True, slots=True)
class Offer:
    """An object that a peer is about to send.

    sop_class, instance: its UIDs. syntax: its transfer syntax.
    """

    sop_class: str
    instance: str
    syntax: str


@dataclass(frozen=True, slots=True)
class ReceivedObject:
    """Received object that is complete on disk, in a DICOM Part 10 file.

    path: of the file, which the recipient of this record owns. offer: presentation under which it
    was received. study: its UID. digest: SHA-256 of its data set as received. size: bytes of the
    file. of_result: bytes that its image in a result is expected to take.
    """

    path: Path
    offer: Offer
    study: str
    digest: str
    size: int
    of_result: int


class NotUnderstoodError(Exception):
    """The received object cannot be used. refusal: the answer."""

    def __init__(self, status: DimseStatus, reason: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(status, reason)


class ObjectFile:
    """File that is being received; removed unless `finish` succeeds.

    offer: what the peer announced. claim: whether the file may grow by so many bytes; called with a
    negative number when it is removed. All methods but `discard` raise OSError.
    """

    def __init__(self, path: Path, offer: Offer, claim: Callable[[int], bool]) -> None:
        self._path = path
        self._offer = offer
        self._claim = claim
        self._claimed = 0
        self._items = ItemCount(big_endian=offer.syntax == ExplicitVRBigEndian)
        self._digest = hashlib.sha256()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "w+b", buffering=0)
        try:
            self._size = self._start = self._write(_file_meta(offer))
        except BaseException:
            self.discard()
            raise

    def write(self, data: memoryview) -> None:
        """Append a piece of the data set. Raises NotUnderstoodError too."""
        try:
            self._items.add(data)
        except TooManyItemsError:
            reason = "it has too many sequence items"
            raise NotUnderstoodError(DimseStatus.NOT_UNDERSTOOD, reason) from None
        self._digest.update(data)
        self._size += self._write(data)

    def finish(self) -> ReceivedObject:
        """Flush the complete object to disk. Raises NotUnderstoodError too."""
        study, of_result = self._checked()
        os.fsync(self._file.fileno())
        self._file.close()
        digest = self._digest.hexdigest()
        return ReceivedObject(self._path, self._offer, study, digest, self._size, of_result)

    def discard(self) -> None:
        """Remove it, unless it was taken over."""
        self._claim(-self._claimed)
        self._claimed = 0
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink()

    def _write(self, data: bytes | memoryview) -> int:
        if not self._claim(len(data)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._claimed += len(data)
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        return written

    def _checked(self) -> tuple[str, int]:
        """Return the UID of its study, and the bytes of its image in a result.

        Raises NotUnderstoodError for another object than announced.
        """
        self._file.seek(0)
        try:
            header = _start_of(self._file, *_NAMES, *_EXTENTS)
            of_result = _of_result(header, self._size)
            sop_class, instance, study, series = (word(header, name) for name in _NAMES)
        except PARSING_ERRORS:
            reason = "its header is damaged"
            raise NotUnderstoodError(DimseStatus.NOT_UNDERSTOOD, reason) from None
        if (sop_class, instance) != (self._offer.sop_class, self._offer.instance):
            raise NotUnderstoodError(
                DimseStatus.OTHER_CLASS, "its UIDs differ from those of the request"
            )
        for name, uid in (("Study", study), ("Series", series)):
            if not uid:
                raise NotUnderstoodError(
                    DimseStatus.NOT_UNDERSTOOD, f"its header has no {name}InstanceUID"
                )
        return study, of_result


def bytes_of_result(path: Path) -> int:
    """Return the bytes that the image of an object on disk is expected to take in a result; those
    of the object if its header is damaged. Raises OSError.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return _of_result(_start_of(file, *_EXTENTS), size)
        except PARSING_ERRORS:
            return size


def _of_result(header: DataSet, size: int) -> int:
    """Return the bytes of its image in a result, which is stored in 16 bits, uncompressed."""
    pixels = _BYTES_OF_A_PIXEL
    for name in _EXTENTS:
        pixels *= max(int(number(header, name, 1)), 1)
    return max(pixels, size) + _BYTES_OF_DERIVATION


def _start_of(file: BinaryIO, *names: str) -> DataSet:
    """Read these elements, all of which are before the pixels."""
    tags = [tag_of(name) for name in names]
    last = max(tags)

    def is_after(tag: int, _kind: str | None, _length: int) -> bool:
        return tag > last

    return read_partial(file, is_after, defer_size=_KEPT_BYTES, specific_tags=tags)


def study_in(offer: Offer, start: bytes) -> str:
    """StudyInstanceUID by the first bytes of a data set; empty if they do not have it whole."""
    try:
        header = read_partial(
            io.BytesIO(_file_meta(offer) + start),
            _is_after,
            specific_tags=[tag_of("StudyInstanceUID"), _LAST],
        )
    except PARSING_ERRORS:
        return ""
    study = word(header, "StudyInstanceUID")
    return study if word(header, "SeriesInstanceUID") else ""


_LAST = tag_of("SeriesInstanceUID")


def _is_after(tag: int, _kind: str | None, _length: int) -> bool:
    return tag > _LAST


def _file_meta(offer: Offer) -> bytes:
    """Preamble and file meta information, equal for equal objects."""
    meta = pydicom.dataset.FileMetaDataset()
    meta.FileMetaInformationVersion = b"\0\1"
    meta.MediaStorageSOPClassUID = offer.sop_class
    meta.MediaStorageSOPInstanceUID = offer.instance
    meta.TransferSyntaxUID = offer.syntax
    meta.ImplementationClassUID = IMPLEMENTATION_UID
    meta.ImplementationVersionName = IMPLEMENTATION_NAME
    buffer = io.BytesIO()
    pydicom.filewriter.write_file_meta_info(buffer, meta)
    return b"\0" * 128 + b"DICM" + buffer.getvalue()


_HOW_IT_WAS_PACKED = tag_of("DerivationDescription")
"""Element in which dcmtk, and so Orthanc, records the compression method and its quality."""


def is_same_object(one: Path, other: Path) -> bool:
    """Return whether headers are equal, and the pixels too if both use one transfer syntax.

    With two syntaxes pixels are not compared: a changed image gets a new UID (PS3.3, C.12.1.1), and
    a process that accepts data from unknown peers should run no decoders. Raises OSError.
    """
    try:
        (syntax, header, start), (syntax_of_other, header_of_other, start_of_other) = (
            _header(path) for path in (one, other)
        )
    except PARSING_ERRORS:
        return False
    if header != header_of_other:
        return False
    return syntax != syntax_of_other or _from(one, start) == _from(other, start_of_other)


def is_whole_image(path: Path) -> bool:
    """Return whether an object has pixels, up to their end. Raises OSError."""
    with open_regular(path) as file:
        try:
            header = read_partial(file, is_of_pixels, defer_size=_KEPT_BYTES, specific_tags=[_LAST])
            syntax = pydicom.uid.UID(word(header.file_meta, "TransferSyntaxUID"))
        except PARSING_ERRORS:
            return False
        start = file.tell()
        head = file.read(_LONGEST_HEAD)
        end = file.seek(0, io.SEEK_END)
        file.seek(max(start, end - _KEPT_BYTES))
        tail = file.read()
    order = "little" if syntax.is_little_endian else "big"
    at, size = (4, 8) if syntax.is_implicit_VR else (8, 12)
    length = int.from_bytes(head[at:size], order)
    if length == _UNDEFINED:
        return _END_OF_FRAMES in tail
    return len(head) >= size and start + size + length <= end


_LONGEST_HEAD = 12
_UNDEFINED = 0xFFFFFFFF
_END_OF_FRAMES = b"\xfe\xff\xdd\xe0"
"""Delimiter after compressed frames, which only padding and signatures may follow."""


def _header(path: Path) -> tuple[str, bytes, int]:
    """Return transfer syntax, header in one encoding for all, and offset of the pixels."""
    with open_regular(path) as file:
        dataset = read_partial(file, is_of_pixels)
        start = file.tell()
    dataset.pop(_HOW_IT_WAS_PACKED, None)
    all_as_stored(dataset)
    dataset.walk(_set_length)
    dataset.set_original_encoding(True, True, dataset.original_character_set)
    return str(dataset.file_meta.TransferSyntaxUID), encoded(dataset, is_implicit=True), start


def _from(path: Path, start: int) -> bytes:
    with open_regular(path) as file:
        file.seek(start)
        return file.read()


def _set_length(_dataset: Any, element: Any) -> None:
    """Set explicit lengths for a sequence and its items, which may have delimiters instead."""
    if element.VR == "SQ":
        element.is_undefined_length = False
        for item in element.value:
            item.is_undefined_length_sequence_item = False
