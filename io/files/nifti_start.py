"""Fields in the first bytes of a NIfTI or Analyze file, read without parsing its header."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Self

MAGIC_PLACES = {348: slice(344, 348), 540: slice(4, 8)}
"""Place of the magic by the size of the header: of NIfTI-1 and Analyze, and of NIfTI-2."""
_DESCRIP = {348: slice(148, 228), 540: slice(240, 320)}
_AUX_FILE_BYTES = 24
_VOX_OFFSET = {348: ("f", 108), 540: ("q", 168)}
_INTENT_CODE = {348: ("h", 68), 540: ("i", 504)}
_NIFTI_MAGICS = (b"n+1\0", b"ni1\0", b"n+2\0", b"ni2\0")
_UNPACK_GZIP = 31


def gzip_unpacker() -> Any:
    """Return a decompressor for the first bytes of a gzip file."""
    return zlib.decompressobj(_UNPACK_GZIP)


def has_nifti_magic(start: bytes) -> bool:
    """Whether the first 348 bytes of a file, unpacked, have a magic of NIfTI at its place."""
    return any(start[place] in _NIFTI_MAGICS for place in MAGIC_PLACES.values())


@dataclass(frozen=True, slots=True)
class HeaderStart:
    """First bytes of a NIfTI or Analyze file.

    start: these bytes, unpacked. order: byte order, "<" or ">". size: bytes of the header.
    """

    start: bytes
    order: str
    size: int

    @classmethod
    def of(cls, start: bytes) -> Self | None:
        """Return the first bytes of a file if they hold a whole header, else None."""
        for order in "<>":
            (size,) = struct.unpack(f"{order}i", start[:4].ljust(4, b"\0"))
            if size in MAGIC_PLACES and len(start) >= size:
                return cls(start, order, size)
        return None

    @property
    def magic(self) -> bytes:
        """Bytes that distinguish NIfTI from Analyze, and one file from a pair."""
        return self.start[MAGIC_PLACES[self.size]]

    @property
    def texts(self) -> tuple[str, str]:
        """Fields `descrip` and `aux_file`."""
        descrip = _DESCRIP[self.size]
        aux_file = slice(descrip.stop, descrip.stop + _AUX_FILE_BYTES)
        found = [self.start[field].partition(b"\0")[0] for field in (descrip, aux_file)]
        return found[0].decode("ascii", "replace"), found[1].decode("ascii", "replace")

    @property
    def voxel_offset(self) -> float:
        """Offset of the voxels in their file."""
        return self.numbers(*_VOX_OFFSET[self.size])[0]

    @property
    def intent(self) -> int | None:
        """Intent code of NIfTI; None for Analyze."""
        if self.magic not in _NIFTI_MAGICS:
            return None
        return self.numbers(*_INTENT_CODE[self.size])[0]

    def numbers(self, codes: str, place: int) -> tuple[Any, ...]:
        """Return the numbers at a place by their `struct` codes."""
        return struct.unpack_from(self.order + codes, self.start, place)
