"""Masks, segmentations and what else is no scan: by their names, and by what their headers say."""

import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from .files.header_limits import GZIP_MAGIC
from .files.regular import open_regular
from .formats.nifti import NO_SCANS
from .header_start import HeaderStart, gzip_unpacker
from .search import scan_stem

_WORDS = {
    *("mask", "masks", "brainmask", "brainmasks", "seg", "segs", "dseg", "probseg", "aseg"),
    *("segmentation", "segmentations", "label", "labels", "labelmap", "labelmaps"),
}
"""Last words of a name, besides numbers, that mean it."""

_INTENT = {348: ("h", 68), 540: ("i", 504)}
"""Type and place of the intent code by the size of the header."""
_NIFTI = (b"n+1\0", b"ni1\0", b"n+2\0", b"ni2\0")
_SEGMENTS = b"\nSegment0_ID:="
"""What 3D Slicer writes into the NRRD file of a segmentation."""
_START_BYTES = 1 << 13


def mask_told(file: Path) -> str | None:
    """How a file is known as a mask or the like, in words; None if nothing says so.

    file: with the header. Those of DICOM are objects of their own, which no series holds.
    """
    if (word := _last_word(file)) in _WORDS:
        return f"its name says {word}"
    kind = _kind_in(_start_of(file))
    return f"its header says that its voxels are {kind}" if kind else None


def takes_masks(words: Iterable[str]) -> bool:
    """Whether a model's channels, in words, are masks or segmentations."""
    return any(word in _WORDS for text in words for word in re.split(r"[^a-z0-9]+", text.lower()))


def _last_word(file: Path) -> str:
    words = re.split(r"[^a-z0-9]+", scan_stem(file).lower())
    return next((word for word in reversed(words) if word and not word.isdecimal()), "")


def _kind_in(start: bytes) -> str | None:
    """What the first bytes of a file say that its voxels are; None if they may be a scan's."""
    if start.startswith(b"NRRD"):
        return "segments" if _SEGMENTS in start else None
    header = HeaderStart.of(start)
    if header is None or header.magic not in _NIFTI:
        return None
    (intent,) = header.numbers(*_INTENT[header.size])
    return NO_SCANS.get(intent)


def _start_of(file: Path) -> bytes:
    """The first bytes of a file, unpacked; none if it cannot be read."""
    try:
        with open_regular(file) as opened:
            start = opened.read(_START_BYTES)
            is_packed = start.startswith(GZIP_MAGIC)
            return gzip_unpacker().decompress(start, _START_BYTES) if is_packed else start
    except (OSError, zlib.error):
        return b""
