"""What a packed frame claims, by its markers and boxes, before a decoder gets it.

A damaged number there costs a decoder gigabytes, and minutes of filling them; a box without a
length has some walk on the spot for ever.
"""

import struct
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
)

Coding: TypeAlias = Literal["jpeg", "jpeg-ls", "jpeg-2000"]

CODINGS: dict[str, Coding] = {
    **dict.fromkeys((JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLossless, JPEGLosslessSV1), "jpeg"),
    **dict.fromkeys((JPEGLSLossless, JPEGLSNearLossless), "jpeg-ls"),
    **dict.fromkeys((JPEG2000Lossless, JPEG2000), "jpeg-2000"),
    **dict.fromkeys((HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K), "jpeg-2000"),
}
"""By transfer syntax."""

_START, _END = b"\xff\xd8", b"\xff\xd9"
"""Of an image of JPEG and JPEG-LS."""
_BEHIND_END = b"\xff\0"
"""What scanners pad a frame to whole words with: NUL, as DICOM has it, or fill bytes of JPEG."""
_SEGMENT = struct.Struct(">BBH")
"""A marker of JPEG (ISO 10918-1 B.1.1.4), and the length of what follows, itself included."""
_ALONE = (0x01, *range(0xD0, 0xD8))
"""Markers that nothing follows."""
_FRAMES: dict[Coding, tuple[int, ...]] = {
    "jpeg": tuple(at for at in range(0xC0, 0xD0) if at not in (0xC4, 0xC8, 0xCC)),
    "jpeg-ls": (0xF7,),
}
"""Markers of frames; among those of JPEG stand its tables, and what is reserved."""
_START_OF_SCAN, _FILLING = 0xDA, 0xFF
_FRAME = struct.Struct(">BHH")
"""Bits of a sample, lines, samples a line."""

_BOXES, _CODESTREAM_BOX = b"\0\0\0\x0cjP  ", b"jp2c"
_BOX, _LONG = struct.Struct(">I4s"), struct.Struct(">Q")
_HAS_LONG_LENGTH = 1
"""In place of a box's length (ISO 15444-1 I.4); 0 there stands for all that is left."""
_CODESTREAM = b"\xff\x4f\xff\x51"
_SIZES = struct.Struct(">4xIIII16xxxB")
"""Of JPEG 2000 (ISO 15444-1 A.5.1): ends of the image along both axes, then where it begins; bits
of a sample, less one, and whether it has a sign.
"""


@dataclass(frozen=True, slots=True)
class Codestream:
    """A packed frame without what stands around it.

    coding: which decoder it is for. packed: the frame. rows, columns, bits, is_signed: of its
    pixels, as it claims.
    """

    coding: Coding
    packed: memoryview
    rows: int
    columns: int
    bits: int
    is_signed: bool = False


def codestream_in(packed: bytes, coding: Coding) -> Codestream:
    """The frame that stands in a fragment of DICOM. Raises ValueError for a damaged one."""
    try:
        found = _jpeg_2000(packed) if coding == "jpeg-2000" else _jpeg(packed, coding)
    except struct.error as error:
        raise ValueError("it ends within a header") from error
    if min(found.rows, found.columns) <= 0:
        raise ValueError("it has no pixels")
    return found


def _jpeg(packed: bytes, coding: Coding) -> Codestream:
    whole = packed.rstrip(_BEHIND_END)
    if not (whole.startswith(_START) and whole.endswith(_END)):
        raise ValueError("it has no start or no end")  # libjpeg would fill up the rest with grey
    at = len(_START)
    while True:
        first, marker, length = _SEGMENT.unpack_from(whole, at)
        if first != _FILLING:
            raise ValueError("a marker is missing")
        if marker == _FILLING:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _FRAMES[coding]:
            bits, rows, columns = _FRAME.unpack_from(whole, at + _SEGMENT.size)
            return Codestream(coding, memoryview(whole), rows, columns, bits)
        elif marker == _START_OF_SCAN or length < 2:
            raise ValueError("it has no frame")
        else:
            at += 2 + length


def _jpeg_2000(packed: bytes) -> Codestream:
    at = _codestream_at(packed)
    if not packed.startswith(_CODESTREAM, at):
        raise ValueError("it has no codestream")
    inner = memoryview(packed)[at:]
    right, bottom, left, top, kind = _SIZES.unpack_from(inner, len(_CODESTREAM))
    return Codestream(
        "jpeg-2000", inner, bottom - top, right - left, (kind & 0x7F) + 1, bool(kind & 0x80)
    )


def _codestream_at(packed: bytes) -> int:
    """Where the codestream begins in a file of boxes, as some writers store a whole one."""
    at = 0
    if not packed.startswith(_BOXES):
        return at
    while True:
        length, kind = _BOX.unpack_from(packed, at)
        header = _BOX.size
        if length == _HAS_LONG_LENGTH:
            (length,) = _LONG.unpack_from(packed, at + header)
            header += _LONG.size
        if kind == _CODESTREAM_BOX:
            return at + header
        if not header <= length <= len(packed) - at:
            raise ValueError("it has no codestream")
        at += length
