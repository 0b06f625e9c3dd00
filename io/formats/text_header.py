"""Text headers of NRRD and MetaImage files: lines of bytes, and the fields common to both formats.

Every reader must split such a header alike, or a hostile line means one thing to the program
that checks it and another to the one that obeys it. So lines end with LF or CRLF and with nothing
else, and a header with any other CR, or with a NUL, is refused.
"""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np

from ..errors import UnreadableScanError, UnsupportedScanError
from ..files.streams import Packing
from ..volume import FARTHEST_PLACE_MM

Encoding: TypeAlias = Packing | Literal["raw", "text", "hex"]
Vector3: TypeAlias = tuple[float, float, float]
ONES: Vector3 = (1.0, 1.0, 1.0)

LONGEST_HEADER_BYTES = 16 << 20
_MOST_FILES = 1 << 14
"""Files that the voxels of one scan may be spread over."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf)", re.I)
_FILE_NUMBER = re.compile(rb"%(0?[0-9]{0,2})[diu]")
_CONTROL = re.compile(rb"[\r\0]")


@dataclass(frozen=True, slots=True)
class TextStorage:
    """Place and encoding of the stored voxels of a scan.

    encoding: of the voxels. voxel_type: as stored, byte order included. files: hold equal shares
    of the voxels, one after the other; the header's own file if they follow it. start: first byte
    in each file that is not the header's. line_skip, byte_skip: lines to skip from there, and then
    bytes, which are unpacked ones if the voxels are packed; -1 or less: the voxels end that many
    bytes, less one, before the file does. packed_bytes: length of the packed voxels, if the header
    says it. is_exact: whether the file ends with the voxels.
    """

    encoding: Encoding
    voxel_type: "np.dtype[Any]"
    files: tuple[Path, ...]
    start: int = 0
    line_skip: int = 0
    byte_skip: int = 0
    packed_bytes: int | None = None
    is_exact: bool = True

    @property
    def is_packed(self) -> bool:
        """Whether the voxels are compressed."""
        return self.encoding not in ("raw", "text", "hex")


@dataclass(frozen=True, slots=True)
class FurtherAxis:
    """Description of an axis that is not spatial, such as time.

    step: from element to element, in `unit`; NaN if the header lacks it. start: place of
    the first element. kind, label, unit: as a NRRD header has them, label and unit in their quotes.
    is_fourth: whether a NRRD header has it as the fourth axis of a space with time.
    """

    step: float = math.nan
    start: float = 0.0
    kind: str = "???"
    label: bytes = b'""'
    unit: bytes = b'""'
    is_fourth: bool = False


@dataclass(frozen=True, slots=True)
class TextHeader:
    """Contents of a header.

    sizes: of all axes, the fastest first. axes: which of them are i, j and k. further: all others,
    those of components first. origin, spacing, direction: in LPS and in `unit`, the direction row
    by row, as ITK has them. unit: of lengths. space: name of the space that the axes are given in,
    in small letters and without time; empty if the header names none. storage: of the voxels.
    fields: lines for a result that describe its axes and the scan. metadata: lines without a
    meaning for the voxels and their place, unchanged. series_axes: description of the
    further axes if all of them come after i, j and k, as in a series of volumes; else none.
    """

    sizes: tuple[int, ...]
    axes: tuple[int, int, int]
    further: tuple[int, ...]
    origin: Vector3
    spacing: Vector3
    direction: tuple[float, ...]
    unit: str
    space: str
    storage: TextStorage
    fields: tuple[bytes, ...]
    metadata: tuple[bytes, ...]
    series_axes: tuple[FurtherAxis, ...] = ()

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents along i, j, k and the further axes."""
        return tuple(self.sizes[axis] for axis in (*self.axes, *self.further))

    @property
    def data_files(self) -> tuple[Path, ...]:
        """Each file that holds voxels, once."""
        return tuple(dict.fromkeys(self.storage.files))


class HeaderFile:
    """File whose header is read line by line; every error names its path.

    path: of the file.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self._number = 0

    def lines(self) -> Iterator[bytes]:
        """Yield lines without their ends, up to the end of the file."""
        while raw := self._file.readline(LONGEST_HEADER_BYTES + 1):
            if self._file.tell() > LONGEST_HEADER_BYTES:
                raise self.damaged(f"is longer than {LONGEST_HEADER_BYTES >> 20} MiB")
            self._number += 1
            line = raw.removesuffix(b"\n").removesuffix(b"\r")
            if _CONTROL.search(line):
                raise self.damaged(f"has a control character in line {self._number}")
            yield line

    def unknown_line(self) -> UnreadableScanError:
        """Return the error for the line that was read last."""
        return self.damaged(f"has an unknown entry in line {self._number}")

    @property
    def position(self) -> int:
        """First byte after the lines that were read."""
        return self._file.tell()

    def damaged(self, what: str) -> UnreadableScanError:
        """Return the error for a header; what: the end of the clause that begins with "it"."""
        return UnreadableScanError(
            f"{self.path} has a damaged header: it {what}; repair it or export the scan again."
        )

    def misplaced(self, field: str, word: str = "") -> UnreadableScanError:
        """Return the error for a field on the place of the voxels; word: its contents."""
        held = f" is {word}" if word else " is damaged"
        return UnreadableScanError(
            f"{self.path} has no valid position: {field}{held}; repair the geometry in its header."
        )

    def unsupported(self, what: str) -> UnsupportedScanError:
        """Return the error for an intact file; what: the end of the sentence after its path."""
        return UnsupportedScanError(f"{self.path} {what}.")

    def integers(self, field: str, text: str) -> tuple[int, ...]:
        """Whole numbers between spaces."""
        words = text.split()
        if not words or not all(map(_INTEGER.fullmatch, words)):
            raise self.damaged(f"gives {field} with values that are not integers")
        return tuple(map(int, words))

    def integer(self, field: str, text: str) -> int:
        """Return one whole number."""
        number, *others = self.integers(field, text)
        if others:
            raise self.damaged(f"gives more than one number as {field}")
        return number

    def lengths(self, field: str, text: str, count: int) -> tuple[float, ...]:
        """Return `count` finite coordinates between spaces."""
        words = text.split()
        if len(words) != count:
            raise self.misplaced(field)
        return tuple(self.length(field, word) for word in words)

    def length(self, field: str, word: str) -> float:
        """Return a finite coordinate."""
        return self.finite(field, self.number(field, word))

    def finite(self, field: str, number: float) -> float:
        """Return the same number if it can be a coordinate."""
        if not abs(number) < FARTHEST_PLACE_MM:
            raise self.misplaced(field, f"{number:g}")
        return number

    def number(self, field: str, word: str) -> float:
        """Return a number, NaN and infinity among them."""
        if not _FLOAT.fullmatch(word):
            raise self.misplaced(field)
        return float(word)

    def is_number(self, word: str, number: float | None = None) -> bool:
        """Return whether a word is a number, or this one."""
        return bool(_FLOAT.fullmatch(word)) and number in (None, float(word))

    def beside(self, name: bytes) -> Path:
        """Return the file of this name next to the header, or at an absolute path."""
        if not name:
            raise self.damaged("does not name the file of its voxels")
        return self.path.parent / os.fsdecode(name)

    def numbered(self, pattern: bytes, numbers: range) -> tuple[Path, ...]:
        """Return the files of a name with a number in it, as C's printf would write that."""
        if len(numbers) > _MOST_FILES:
            raise self.too_many_files()
        if not _FILE_NUMBER.search(pattern) or pattern.count(b"%") != 1:
            raise self.damaged("numbers its voxel files in an unknown way")
        before, width, after = _FILE_NUMBER.split(pattern)
        return tuple(
            self.beside(before + format(number, f"{width.decode()}d").encode() + after)
            for number in numbers
        )

    def listed(self, lines: Iterator[bytes]) -> tuple[Path, ...]:
        """Return the files that the rest of the header names, one a line."""
        files: list[Path] = []
        for line in lines:
            if name := line.strip():
                files.append(self.beside(name))
            if len(files) > _MOST_FILES:
                raise self.too_many_files()
        return tuple(files)

    def too_many_files(self) -> UnsupportedScanError:
        """Return the error for voxels in more files than are opened for one scan."""
        return self.unsupported(
            f"splits its voxels over more than {_MOST_FILES} files; save it as one file"
        )

    def check_shares(self, files: int, sizes: tuple[int, ...], share_axes: int | None) -> None:
        """Raise unless the voxels can be split equally between so many files.

        share_axes: how many axes each file has; None for all but the last one.
        """
        axes = len(sizes) - 1 if share_axes is None else share_axes
        expected = math.prod(sizes[axes:])
        is_split = axes == len(sizes) and files > 0 and sizes[-1] % files == 0
        if not 0 < axes <= len(sizes) or not (is_split or files == expected):
            raise self.damaged(
                f"splits its voxels over {files} files, which does not match its extents"
            )


def text_of(value: bytes) -> str:
    """Return a value in words: UTF-8, or Latin-1 if it is not."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def shortest_number(number: float) -> str:
    """Return the shortest text that reads back as the same number."""
    return repr(float(number)).removesuffix(".0")
