"""Derived series: stored pixels, and the identifiers and elements that all of its objects share."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from pydicom.valuerep import format_number_as_ds

from ...contrast.texts import modality_named
from ...maps import MapKind
from ...volume import AnyArray, Derivation, Volume
from ..dataset import DataSet, number, pydicom, word
from ..object_types import OTHER_MODALITY
from ..pixels.decoding import Scale
from ..pixels.reading import DicomHeader, Padding
from ..series import HASH_DIGITS, Series
from .elements import (
    derivation_elements,
    equipment_elements,
    in_plain_text,
    losses,
    series_moment,
    series_text,
    source_elements,
    uid_of,
)

STEPS = 2**16 - 1
_SOFT_TISSUE_HU = (40.0, 400.0)
"""Centre and width of the window in which a CT opens."""
_WINDOW_PERCENTILES = (1.0, 99.0)
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


def stored_pixels(
    volume: Volume, source_padding: Padding | None, *, has_intercept: bool
) -> StoredPixels:
    """Return the stored pixels and rescale line of a volume.

    8 and 16 bit integers keep their values, and pixels that were padding in the scan are padding
    again if they are stored as it was. All other values are scaled to the full range of 16 bits.
    has_intercept: whether the line may have an intercept, which only viewers of CT surely apply.
    """
    voxels = volume.voxels.T
    if voxels.dtype.kind not in "iu" or voxels.dtype.itemsize > 2:
        return _scaled(volume, has_intercept=has_intercept)
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
    stored = StoredPixels(voxels.astype(wide, copy=False), scale, padding)
    if volume.slope < 0:
        stored = _upright(stored)
    if has_intercept or not stored.scale.intercept:
        return stored
    return _shifted(stored) or _scaled(volume, has_intercept=False)


def window(stored: StoredPixels, modality: str) -> tuple[float, float]:
    """Centre and width, in values, in which a viewer opens the series."""
    if modality == "CT":
        return _SOFT_TISSUE_HU
    flat = stored.pixels.reshape(-1)
    sample = flat[:: max(1, flat.size // _SAMPLED_VOXELS)]
    low, high = np.percentile(sample, _WINDOW_PERCENTILES) * stored.scale.slope
    low, high = low + stored.scale.intercept, high + stored.scale.intercept
    return float((low + high) / 2), max(float(high - low), 1.0)


def as_decimal(value: float) -> str:
    """Return a number in the 16 characters that DICOM's decimal strings have."""
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return format_number_as_ds(float(value))


def _scaled(volume: Volume, *, has_intercept: bool) -> StoredPixels:
    voxels = volume.voxels.T
    ends = float(voxels.min()) * volume.slope, float(voxels.max()) * volume.slope
    least, most = (end + volume.intercept for end in sorted(ends))
    kind, step, intercept = np.dtype(np.uint16), (most - least) / STEPS, least
    if not has_intercept:
        kind, step, intercept = np.dtype(np.uint16), most / STEPS, 0.0
        if least < 0:
            limits = np.iinfo(np.int16)
            kind, step = np.dtype(np.int16), max(least / limits.min, most / limits.max)
    slope, intercept = float(as_decimal(step)) or 1.0, float(as_decimal(intercept))
    pixels = np.empty(voxels.shape, kind)
    limits = np.iinfo(kind)
    for values, stored in zip(voxels, pixels, strict=True):
        line = values.astype(np.float64) * volume.slope + (volume.intercept - intercept)
        stored[...] = np.clip(np.rint(line / slope), limits.min, limits.max)
    return StoredPixels(pixels, Scale(slope, intercept), None)


def _upright(stored: StoredPixels) -> StoredPixels:
    """Return the same values under a positive slope."""
    pixels, scale, padding = stored.pixels, stored.scale, stored.padding
    ends = np.iinfo(pixels.dtype)
    total = int(ends.min) + int(ends.max)
    turned = (total - pixels.astype(np.int32)).astype(pixels.dtype)
    scale = Scale(-scale.slope, scale.slope * total + scale.intercept)
    return StoredPixels(turned, scale, None if padding is None else total - padding)


def _shifted(stored: StoredPixels) -> StoredPixels | None:
    """Return the same values with intercept 0, signed if some are negative; None if that is not
    possible in 16 bits.
    """
    offset = stored.scale.intercept / stored.scale.slope
    if not offset.is_integer():
        return None
    pixels, padding = stored.pixels, stored.padding
    used = [int(pixels.min()), int(pixels.max()), *([] if padding is None else [padding])]
    kind = np.dtype(np.int16 if min(used) + offset < 0 else np.uint16)
    limits = np.iinfo(kind)
    if min(used) + offset < limits.min or max(used) + offset > limits.max:
        return None
    moved = (pixels.astype(np.int32) + int(offset)).astype(kind)
    scale = Scale(stored.scale.slope, 0.0)
    return StoredPixels(moved, scale, None if padding is None else padding + int(offset))


@dataclass(frozen=True, slots=True)
class DerivedSeries:
    """Derived series before it is written to files.

    header: header of the source. stored: voxels of the result. derivation: their provenance.
    modality: Modality of the result.
    """

    header: DicomHeader
    stored: StoredPixels
    derivation: Derivation
    modality: str

    @property
    def series_uid(self) -> str:
        """SeriesInstanceUID of the result."""
        return derived_uid(self.derivation, self.header.series.uid, self.header.series.label)

    @property
    def along(self) -> range:
        """Slices in the direction of the stack in which the source's numbers increase."""
        numbers = self._numbers
        return range(len(numbers))[:: -1 if numbers[0] > numbers[-1] else 1]

    @property
    def order(self) -> list[int]:
        """Slices in the order of the source's numbers; along the stack if two numbers are equal."""
        numbers = self._numbers
        images = {(frame.file, frame.number) for frame in self.header.frames}
        are_distinct = len(set(numbers)) == len(images)
        return sorted(self.along, key=numbers.__getitem__) if are_distinct else list(self.along)

    @property
    def _numbers(self) -> list[tuple[float, int]]:
        """The source's number of each slice: that of its file, and of its frame in it."""
        sources = zip(self.header.frames, self.header.headers, strict=True)
        return [(number(source, "InstanceNumber"), frame.number) for frame, source in sources]


def result_of(volume: Volume, header: DicomHeader, derivation: Derivation) -> DerivedSeries:
    """Return the derived series of a volume, of the target's modality if that is known.

    A target that names several, as "CT (from MR)" does, has none of them. A map has no modality
    either, so that its values are not mistaken for those of a scan.
    """
    modality = modality_named(derivation.target, header.series.modality, OTHER_MODALITY)
    if derivation.shows:
        modality = OTHER_MODALITY
    # Zero may be padding in an MR, and is water in a CT.
    padding = header.padding if modality == header.series.modality else None
    has_intercept = modality == "CT" or derivation.shows is not None
    stored = stored_pixels(volume, padding, has_intercept=has_intercept)
    return DerivedSeries(header, stored, in_plain_text(derivation), modality)


def shared_elements(result: DerivedSeries) -> DataSet:
    """Patient, study, series, frame of reference, equipment, derivation and kind of pixels."""
    source, series = result.header.headers[0], result.header.series
    dataset, _ = source_elements(result.header)
    dataset.update(losses(result.header.slices))
    dataset.update(equipment_elements(source, result.derivation))
    sources = [scan.headers[0] for scan in result.header.scans]
    dataset.update(derivation_elements(sources, result.derivation, series.uneven))
    dataset.Modality = result.modality
    dataset.SeriesInstanceUID = result.series_uid
    dataset.SeriesNumber = derived_number(series, result.derivation)
    dataset.SeriesDescription = series_text(result.derivation)
    dataset.update(series_moment(result.derivation, word(dataset, "TimezoneOffsetFromUTC")))
    dataset.update(_pixel_elements(result.stored))
    return dataset


def _pixel_elements(stored: StoredPixels) -> DataSet:
    dataset = pydicom.Dataset()
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    _, dataset.Rows, dataset.Columns = stored.pixels.shape
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit = 15
    dataset.PixelRepresentation = int(stored.signed)
    if stored.padding is not None:
        dataset.add_new("PixelPaddingValue", "SS" if stored.signed else "US", stored.padding)
    return dataset


_FIRST_DERIVED_NUMBER = 10_000
_BEFORE_CHANNELS = 4
"""Ten thousands in the numbers of results and of maps, before those of further channels."""

_LARGEST_NUMBER = 2**31 - 1


def derived_uid(derivation: Derivation, *parts: str) -> str:
    """Return a UID derived from the derivation and the object's index."""
    return uid_of(derivation.fingerprint, *parts)


def derived_number(series: Series, derivation: Derivation) -> int:
    """Return a SeriesNumber that shows the source series and is unused in the study.

    Each kind of map and each further channel of a model has numbers of its own. Only models of one
    channel have a disagreement, so its map has the numbers of a second channel.
    """
    kinds, shows = get_args(MapKind), derivation.shows
    further = _BEFORE_CHANNELS + derivation.channel if derivation.channel else 1
    first = _FIRST_DERIVED_NUMBER * (2 + kinds.index(shows.kind) if shows else further)
    last = series.label.rpartition("-")[2]
    part = int(last) if len(last) < HASH_DIGITS else 0
    wanted = first + 100 * max(series.number, 0) + part
    if wanted > _LARGEST_NUMBER:
        wanted = first
    while wanted in series.study_numbers:
        wanted += 1
    return wanted
