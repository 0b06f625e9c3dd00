"""Packed frames of DICOM, unpacked without another process."""

from typing import Any

from cuda_cyclegan.io.dicom.pixels.frame_codecs import unpacked
from cuda_cyclegan.io.dicom.pixels.unpacking import Codestream


def unpack_here(frame: Codestream) -> Any:
    """The pixels of a frame, unpacked in the test's process."""
    return unpacked(frame.coding, bytes(frame.packed))
