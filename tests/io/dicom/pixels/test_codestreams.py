"""Claims of a packed frame, by its markers and boxes."""

import struct
from typing import Any

import imagecodecs as _imagecodecs
import numpy as np
import pytest
from support.frames import unpack_here

from cuda_cyclegan.io.dicom.pixels.unpacking import Coding, codestream_in

imagecodecs: Any = _imagecodecs
PIXELS = np.arange(20 * 24, dtype=np.uint16).reshape(20, 24) % 4096


def jpeg_2000(pixels: Any = PIXELS, form: str = "j2k") -> bytes:
    return imagecodecs.jpeg2k_encode(pixels, level=0, reversible=True, codecformat=form)


PACKED: dict[Coding, bytes] = {
    "jpeg": imagecodecs.jpeg8_encode(PIXELS, lossless=True, bitspersample=12),
    "jpeg-ls": imagecodecs.jpegls_encode(PIXELS),
    "jpeg-2000": jpeg_2000(),
}


def with_box(length: int, kind: bytes = b"free", content: bytes = b"") -> bytes:
    """A file of JPEG 2000 with one more box before that of the codestream."""
    packed = jpeg_2000(form="jp2")
    at = packed.index(b"jp2c") - 4
    return packed[:at] + struct.pack(">I4s", length, kind) + content + packed[at:]


@pytest.mark.parametrize("coding", PACKED)
@pytest.mark.parametrize("behind", [b"", b"\0", b"\xff", b"\xff\xff\xff", b"\xff\0"])
def test_padding_behind_a_frame_is_none_of_it(coding: Coding, behind: bytes) -> None:
    """Scanners fill a frame of JPEG up to whole words with NUL, or with fill bytes."""
    frame = codestream_in(PACKED[coding] + behind, coding)
    assert (frame.rows, frame.columns, frame.is_signed) == (20, 24, False)
    np.testing.assert_array_equal(unpack_here(frame), PIXELS)


@pytest.mark.parametrize("coding", ["jpeg", "jpeg-ls"])
@pytest.mark.parametrize("between", [b"\xff\xff\xff", b"\xff\xfe\0\x03A", b"\xff\x01"])
def test_bytes_that_may_precede_a_frame_are_skipped(coding: Coding, between: bytes) -> None:
    packed = PACKED[coding]
    frame = codestream_in(packed[:2] + between + packed[2:], coding)
    assert (frame.rows, frame.columns) == (20, 24)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_jpeg_2000_shows_its_bits_and_its_sign(bits: int) -> None:
    kind = np.int8 if bits == 8 else np.int16
    packed = imagecodecs.jpeg2k_encode(
        (PIXELS % 100).astype(kind) - 50, level=0, reversible=True, bitspersample=bits
    )
    frame = codestream_in(packed, "jpeg-2000")
    assert (frame.bits, frame.is_signed) == (bits, True)


@pytest.mark.parametrize(
    "packed",
    [
        jpeg_2000(form="jp2"),
        with_box(11, content=b"abc"),
        with_box(1, content=struct.pack(">Q", 19) + b"abc"),
        with_box(8),
    ],
    ids=["file", "another box", "long length", "empty box"],
)
def test_a_codestream_is_found_among_boxes(packed: bytes) -> None:
    frame = codestream_in(packed, "jpeg-2000")
    np.testing.assert_array_equal(unpack_here(frame), PIXELS)


@pytest.mark.parametrize(
    "packed",
    [
        with_box(0),
        with_box(1, content=bytes(8)),
        with_box(1, content=b"\xff" * 8),
        with_box(7),
        with_box(0xFFFFFFFF),
        jpeg_2000()[:20],
        b"\0\0\0\x0cjP  ",
        b"",
        bytes(100),
    ],
    ids=[
        *(
            "to the end",
            "long and 0",
            "long and vast",
            "too short",
            "too long",
            "cut",
            "first box",
            "empty",
        ),
        "zeros",
    ],
)
def test_boxes_that_lead_to_no_codestream_are_refused(packed: bytes) -> None:
    """pydicom walks on the spot for ever at a box without a length."""
    with pytest.raises(ValueError, match="it "):
        codestream_in(packed, "jpeg-2000")


@pytest.mark.parametrize("coding", ["jpeg", "jpeg-ls"])
@pytest.mark.parametrize("what", ["no end", "no start", "empty", "no frame", "no length", "cut"])
def test_markers_that_lead_to_no_frame_are_refused(coding: Coding, what: str) -> None:
    packed = PACKED[coding]
    marker = b"\xff\xf7" if coding == "jpeg-ls" else packed[packed.index(b"\xff\xc3") :][:2]
    changed = {
        "no end": packed[:-2],
        "no start": packed[2:],
        "empty": b"",
        "no frame": packed.replace(marker, b"\xff\xe5", 1),
        "no length": packed[:2] + b"\xff\xe5\0\0" + packed[2:],
        "cut": packed[:2] + b"\xff\xd9",
    }[what]
    with pytest.raises(ValueError, match=r"it |a marker"):
        codestream_in(changed, coding)


@pytest.mark.parametrize("coding", PACKED)
def test_a_frame_without_pixels_is_refused(coding: Coding) -> None:
    packed = bytearray(PACKED[coding])
    marker = {"jpeg": b"\xff\xc3", "jpeg-ls": b"\xff\xf7", "jpeg-2000": b"\xff\x51"}[coding]
    at = packed.index(marker) + (6 if coding == "jpeg-2000" else 5)
    packed[at : at + 8 if coding == "jpeg-2000" else at + 4] = bytes(
        8 if coding == "jpeg-2000" else 4
    )
    with pytest.raises(ValueError, match="it has no pixels"):
        codestream_in(bytes(packed), coding)
