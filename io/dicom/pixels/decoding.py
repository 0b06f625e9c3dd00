"""Pixels of DICOM frames: unpacked, in whole bits, with their rescale line, and the loss of their
compression, which a header may not state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLSNearLossless,
)

from ...errors import UnreadableScanError, UnsupportedScanError
from ...volume import AnyArray
from ..dataset import PARSING_ERRORS, DataSet, is_no_number, number, numbers, pydicom, word
from ..enhanced import FrameGroups
from .unpacking import CODINGS, Codestream, UnpackingTimeError, codestream_in

_ALWAYS_LOSSY = (JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless)
_METHODS: dict[str, str] = {
    JPEGBaseline8Bit: "ISO_10918_1",
    JPEGExtended12Bit: "ISO_10918_1",
    JPEGLSNearLossless: "ISO_14495_1",
    JPEG2000: "ISO_15444_1",
    HTJ2K: "ISO_15444_15",
}
"""Defined terms of PS3.3 C.7.6.1.1.5.1."""
_MOST_BITS = 32
"""Limit of a stored value."""
OVERLAY, OVERLAY_BIT = 0x6000, 0x0102
"""First group of overlays, and the element for the bit of the pixels that contains one."""
MODALITIES_WITH_UNIT = ("CT", "PT")
"""Modalities whose rescale line defines the unit of the values."""


_BOTH = frozenset({"slope", "intercept"})


@dataclass(frozen=True, slots=True)
class Scale:
    """``value = stored * slope + intercept``.

    stated: which of slope and intercept the header gives. is_zero: whether the slope that it gives
    is 0, which counts as none. unit: of the values, where the header names one.
    """

    slope: float
    intercept: float
    stated: frozenset[str] = field(default=_BOTH, compare=False)
    is_zero: bool = field(default=False, compare=False)
    unit: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Pixels:
    """Stored values of a frame [row, column], perhaps read-only.

    is_cut: whether bits of theirs were cut off that no header accounts for.
    """

    values: AnyArray
    is_cut: bool = False


FrameDecoder: TypeAlias = Callable[[Codestream], AnyArray]
"""Pixels [row, column] of a frame that claims as many. Raises UnpackingError."""


def decode(dataset: DataSet, path: Path, index: int, unpack: FrameDecoder) -> Pixels:
    """Return the pixels of one frame. Raises ScanError."""
    try:
        stored = _decoded(dataset, path, index, unpack)
    except UnpackingTimeError as error:
        syntax = dataset.file_meta.TransferSyntaxUID
        raise UnreadableScanError(
            f"{path} is damaged: its pixels ({syntax.name}) could not be decompressed within "
            f"{error.seconds:.0f} s of processor time; export it again."
        ) from None
    except OSError as error:
        raise UnreadableScanError(
            f"{path} cannot be decompressed: the decoder process does not start "
            f"({error.strerror or error}); allow this user more processes, or reinstall the "
            "program."
        ) from error
    except (*PARSING_ERRORS, RuntimeError) as error:
        raise _undecodable(dataset, path, error) from None
    return _whole_bits(dataset, stored)


def _decoded(dataset: DataSet, path: Path, index: int, unpack: FrameDecoder) -> AnyArray:
    syntax = dataset.file_meta.TransferSyntaxUID
    if coding := CODINGS.get(syntax):
        frame = codestream_in(_packed(dataset, index), coding)
        _check_extents(dataset, path, frame)
        return _with_sign(dataset, frame, unpack(frame))
    decoder = pydicom.pixels.get_decoder(syntax)
    # pydicom's own correction takes the lowest bits for the value, whatever HighBit says.
    stored, _ = decoder.as_array(
        dataset, index=index, raw=True, view_only=True, correct_unused_bits=False
    )
    return stored


def _check_extents(dataset: DataSet, path: Path, frame: Codestream) -> None:
    """Raise UnreadableScanError for a packed frame that claims other extents than its header."""
    rows, columns = number(dataset, "Rows"), number(dataset, "Columns")
    if (frame.rows, frame.columns) != (rows, columns):
        raise UnreadableScanError(
            f"{path} holds {frame.columns} x {frame.rows} pixels but its header declares "
            f"{columns:g} x {rows:g}; export it again."
        )


def _packed(dataset: DataSet, index: int) -> bytes:
    count = max(1, int(number(dataset, "NumberOfFrames", 1)))
    packed: bytes = pydicom.encaps.get_frame(dataset.PixelData, index, number_of_frames=count)
    return packed


def _with_sign(dataset: DataSet, frame: Codestream, unpacked: AnyArray) -> AnyArray:
    """Return pixels as wide as the header allocates them, with its sign.

    JPEG has no sign, and that of JPEG 2000 may differ: then the bits are read as the header states.
    """
    signed = number(dataset, "PixelRepresentation") == 1
    allocated = number(dataset, "BitsAllocated", 8)
    size = next((size for size in (unpacked.itemsize, 2, 4) if size * 8 >= allocated), 4)
    kind = np.dtype(f"{'i' if signed else 'u'}{size}")
    if unpacked.dtype == kind:
        return unpacked
    values = unpacked.view(f"{kind.kind}{unpacked.itemsize}").astype(kind)
    unused = size * 8 - frame.bits
    return values if signed == frame.is_signed else (values << unused) >> unused


def scale_of(dataset: DataSet, groups: FrameGroups | None, path: Path) -> Scale:
    """Return the frame's own rescale line; slope 1 and intercept 0 if it has none.

    The scale of inverted grey (MONOCHROME1) is reversed, so that more is brighter, unless its
    values have a unit of their own. Raises UnreadableScanError if the line is no pair of numbers.
    """
    source = _transformation(dataset, groups)
    if any(is_no_number(source, name) for name in ("RescaleSlope", "RescaleIntercept")):
        raise UnreadableScanError(
            f"{path} has a damaged header: its rescale slope and intercept are not numbers; "
            "export it again."
        )
    slope, intercept = number(source, "RescaleSlope"), number(source, "RescaleIntercept")
    has = {"slope": slope != 0, "intercept": bool(numbers(source, "RescaleIntercept", 1))}
    stated = frozenset(name for name in has if has[name])
    is_zero = slope == 0 and bool(numbers(source, "RescaleSlope", 1))
    slope = slope or 1.0
    if is_inverted(dataset, groups):
        ends = _stored_ends(dataset, path)
        return Scale(-slope, slope * sum(ends) + intercept, stated, is_zero)
    return Scale(slope, intercept, stated, is_zero, _unit(dataset, source))


def _transformation(dataset: DataSet, groups: FrameGroups | None) -> DataSet:
    """Return the data set with the rescale line of a frame, or of all frames if no group has it."""
    own = groups("PixelValueTransformationSequence") if groups else None
    return own or dataset


def is_inverted(dataset: DataSet, groups: FrameGroups | None) -> bool:
    """Return whether less is brighter in the frame (MONOCHROME1) and its values have no unit."""
    source = _transformation(dataset, groups)
    return (
        word(dataset, "PhotometricInterpretation") == "MONOCHROME1"
        and word(dataset, "Modality").upper() not in MODALITIES_WITH_UNIT
        and not _unit(dataset, source)
    )


_UNSPECIFIED = "US"


def _unit(dataset: DataSet, transformation: DataSet) -> str:
    """Return the unit of a frame's values, for PET that of its Units; empty if none is named."""
    unit = word(dataset, "Units") or word(transformation, "RescaleType")
    return "" if unit.upper() == _UNSPECIFIED else unit.upper()


def padding_mask(dataset: DataSet, stored: AnyArray) -> AnyArray | None:
    """Return where [row, column] the frame holds padding instead of values; None if nowhere."""
    ends = [numbers(dataset, name, 1) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    if not ends[0] or stored.dtype.kind not in "iu":
        return None
    if any(abs(end[0]) >= 1 << _MOST_BITS for end in ends if end):
        return None
    # The header may say a negative value as the unsigned number with the same bits.
    found = [np.int64(end[0]).astype(stored.dtype) for end in ends if end]
    mask = (stored >= min(found)) & (stored <= max(found))
    return mask if mask.any() else None


def _whole_bits(dataset: DataSet, stored: AnyArray) -> Pixels:
    """Return the values without the extra data that old files keep in unused bits.

    Padding is unchanged: it may be a number that no value can have, such as -2000 in 12 bits.
    """
    if stored.dtype.kind not in "iu":
        return Pixels(stored)
    bits = stored.dtype.itemsize * 8
    used = int(number(dataset, "BitsStored", bits))
    high = int(number(dataset, "HighBit", used - 1))
    if not 0 < used <= high + 1 <= bits or used == bits:
        return Pixels(stored)
    low, top = _ends(used, signed=stored.dtype.kind == "i")
    if high + 1 == used and stored.min() >= low and stored.max() <= top:
        return Pixels(stored)
    values = (stored << (bits - high - 1)) >> (bits - used)
    if high + 1 == used and (padding := padding_mask(dataset, stored)) is not None:
        values[padding] = stored[padding]
    return Pixels(values, _loses_bits(dataset, stored, values, used, high))


def _loses_bits(dataset: DataSet, stored: AnyArray, values: AnyArray, used: int, high: int) -> bool:
    """Return whether bits beside the values are neither empty, nor their sign, nor an overlay's."""
    if any(tag.element == OVERLAY_BIT and tag.group >> 8 == OVERLAY >> 8 for tag in dataset.keys()):  # noqa: SIM118
        return False
    below = high + 1 - used
    mask = np.array((1 << used) - 1 << below).astype(stored.dtype)
    extended = values << below
    return bool(((stored != extended) & (stored != extended & mask)).any())


def _stored_ends(dataset: DataSet, path: Path) -> tuple[int, int]:
    bits = number(dataset, "BitsStored", 16)
    if not 1 <= bits <= _MOST_BITS:
        raise UnreadableScanError(
            f"{path} has a damaged header: it declares {bits:g} bits per value; export it again."
        )
    return _ends(int(bits), signed=number(dataset, "PixelRepresentation") == 1)


def _ends(bits: int, *, signed: bool) -> tuple[int, int]:
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _undecodable(dataset: DataSet, path: Path, error: Exception) -> Exception:
    syntax = getattr(getattr(dataset, "file_meta", None), "TransferSyntaxUID", None)
    if not isinstance(syntax, UID):
        return UnreadableScanError(f"{path} has no transfer syntax; export it again.")
    if isinstance(error, NotImplementedError):
        return UnsupportedScanError(
            f"{path} has pixels compressed as {syntax.name}, which is not supported; export it "
            "uncompressed."
        )
    return UnreadableScanError(
        f"{path} is truncated or damaged: its pixels ({syntax.name}) cannot be decompressed; copy "
        "or export it again."
    )


def record_losses(dataset: DataSet) -> None:
    """Add to a header that still has its pixels how lossy their compression is."""
    syntax = word(dataset.file_meta, "TransferSyntaxUID")
    if syntax not in _METHODS:
        return
    if syntax in _ALWAYS_LOSSY:
        dataset.LossyImageCompression = "01"
    if word(dataset, "LossyImageCompression") != "01":
        return
    if not word(dataset, "LossyImageCompressionMethod"):
        dataset.LossyImageCompressionMethod = _METHODS[syntax]
    if not word(dataset, "LossyImageCompressionRatio"):
        dataset.LossyImageCompressionRatio = f"{_compression_ratio(dataset):.4g}"


def _compression_ratio(dataset: DataSet) -> float:
    values = number(dataset, "Rows") * number(dataset, "Columns")
    values *= number(dataset, "NumberOfFrames", 1) * number(dataset, "SamplesPerPixel", 1)
    return max(1.0, values * number(dataset, "BitsAllocated", 16) / 8 / len(dataset.PixelData))
