"""A volume's voxels as DICOM images store them: 16 bits, a slope and an intercept."""

from dataclasses import dataclass

import numpy as np
from pydicom.valuerep import format_number_as_ds

from ...volume import AnyArray, Volume
from ..pixels.decoding import Scale
from ..pixels.reading import Padding

STEPS = 2**16 - 1
SOFT_TISSUE_HU = (40.0, 400.0)
"""Centre and width of the window in which a CT opens."""
WINDOW_PERCENTILES = (1.0, 99.0)
_SAMPLED_VOXELS = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredPixels:
    """Voxels [slice, row, column] of 16 bits, and how they become values.

    padding: the stored value of pixels that hold none, or None. scale: from stored values to real
    ones.
    """

    pixels: AnyArray
    scale: Scale
    padding: int | None

    @property
    def signed(self) -> bool:
        return self.pixels.dtype.kind == "i"


def stored_pixels(volume: Volume, source_padding: Padding | None) -> StoredPixels:
    """The form in which a volume is written.

    8 and 16 bit integers keep their values, and pixels that were padding in the scan are padding
    again if they are stored as it was. All else is spread over the 16 bits between its extremes.
    """
    voxels = volume.voxels.T
    if voxels.dtype.kind not in "iu" or voxels.dtype.itemsize > 2:
        return _spread(volume)
    padding = None
    if source_padding is not None:
        scale = source_padding.scale
        as_then = (source_padding.dtype, scale.slope, scale.intercept)
        if as_then == (voxels.dtype, volume.slope, volume.intercept):
            padding = source_padding.value
            mask = np.unpackbits(source_padding.packed, count=voxels.size).view(np.bool_)
            voxels = np.where(mask.reshape(voxels.shape), voxels.dtype.type(padding), voxels)
    wide = np.dtype(np.int16 if voxels.dtype.kind == "i" else np.uint16)
    scale = Scale(volume.slope, volume.intercept)
    if volume.slope < 0:
        return _upright(voxels.astype(wide), scale, padding)
    return StoredPixels(voxels.astype(wide, copy=False), scale, padding)


def window(stored: StoredPixels, modality: str) -> tuple[float, float]:
    """Centre and width, in values, in which a viewer opens the series."""
    if modality == "CT":
        return SOFT_TISSUE_HU
    flat = stored.pixels.reshape(-1)
    sample = flat[:: max(1, flat.size // _SAMPLED_VOXELS)]
    low, high = np.percentile(sample, WINDOW_PERCENTILES) * stored.scale.slope
    low, high = low + stored.scale.intercept, high + stored.scale.intercept
    return float((low + high) / 2), max(float(high - low), 1.0)


def as_decimal(value: float) -> str:
    """A number in the 16 characters that DICOM's decimal strings have."""
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return format_number_as_ds(float(value))


def _spread(volume: Volume) -> StoredPixels:
    voxels = volume.voxels.T
    low, high = float(voxels.min()), float(voxels.max())
    slope = float(as_decimal((high - low) * abs(volume.slope) / STEPS)) or 1.0
    least = min(low * volume.slope, high * volume.slope) + volume.intercept
    intercept = float(as_decimal(least))
    pixels = np.empty(voxels.shape, np.uint16)
    for values, stored in zip(voxels, pixels, strict=True):
        line = values.astype(np.float64) * volume.slope + (volume.intercept - intercept)
        stored[...] = np.clip(np.rint(line / slope), 0, STEPS)
    return StoredPixels(pixels, Scale(slope, intercept), None)


def _upright(pixels: AnyArray, scale: Scale, padding: int | None) -> StoredPixels:
    """The same values under a positive slope."""
    ends = np.iinfo(pixels.dtype)
    total = int(ends.min) + int(ends.max)
    turned = (total - pixels.astype(np.int32)).astype(pixels.dtype)
    scale = Scale(-scale.slope, scale.slope * total + scale.intercept)
    return StoredPixels(turned, scale, None if padding is None else total - padding)
