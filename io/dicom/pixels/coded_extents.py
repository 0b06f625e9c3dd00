"""The extents that a packed frame claims, for which its decoder takes memory before it unpacks a
pixel: a damaged number there costs gigabytes, and minutes of filling them.
"""

import struct
from collections.abc import Iterator

_PIECE = struct.Struct(">BBH")
"""A marker of JPEG (ISO 10918-1 B.1.1.4), and the length of what follows, itself included."""
_FIRST_FRAME, _LAST_FRAME, _FRAME_OF_JPEG_LS = 0xC0, 0xCF, 0xF7
_NO_FRAMES = (0xC4, 0xC8, 0xCC)
"""Tables, and what is reserved, among the markers of frames."""
_FRAME_EXTENTS = struct.Struct(">xHH")
"""Behind the precision: lines, then samples a line."""
_START_OF_SCAN, _FILLING = 0xDA, 0xFF
_JPEG, _JPEG_2000, _BOXES = b"\xff\xd8", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "
_GRID = struct.Struct(">4xIIII")
"""Of JPEG 2000 (ISO 15444-1 A.5.1): ends of the image along both axes, then where it begins."""


def coded_extents(packed: bytes) -> tuple[int, int] | None:
    """Rows and columns that a frame of JPEG, JPEG-LS or JPEG 2000 claims; None if nothing tells."""
    if packed.startswith(_JPEG):
        return next(_frames_of_jpeg(packed), None)
    begin = packed.find(_JPEG_2000) if packed.startswith((_JPEG_2000, _BOXES)) else -1
    at = begin + len(_JPEG_2000)
    if begin < 0 or len(packed) < at + _GRID.size:
        return None
    right, bottom, left, top = _GRID.unpack_from(packed, at)
    return bottom - top, right - left


def _frames_of_jpeg(packed: bytes) -> Iterator[tuple[int, int]]:
    at = len(_JPEG)
    while len(packed) >= at + _PIECE.size + _FRAME_EXTENTS.size:
        _, marker, length = _PIECE.unpack_from(packed, at)
        if marker == _START_OF_SCAN:
            return
        if marker == _FILLING:
            at += 1
            continue
        is_frame = _FIRST_FRAME <= marker <= _LAST_FRAME and marker not in _NO_FRAMES
        if is_frame or marker == _FRAME_OF_JPEG_LS:
            yield _FRAME_EXTENTS.unpack_from(packed, at + _PIECE.size)
        at += 2 + length
