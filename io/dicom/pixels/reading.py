"""Read the grid or one volume of a DICOM series."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from ...errors import UnreadableScanError, UnsupportedScanError
from ...files.machine_limits import most_memory
from ...files.regular import open_regular, read_regular
from ...volume import AnyArray, Empty, Grid, Study, Volume
from ..bounded_reading import read_partial
from ..dataset import PARSING_ERRORS, DataSet, number, places, tag_of, word
from ..enhanced import FrameGroups, frame_groups
from ..frames import Frame, Stack
from ..geometry import SliceGrid, grid_of
from ..object_types import modality_in
from ..series import Series, added_since
from ..stored_text import keep_stored_text
from .decoding import (
    MODALITIES_WITH_UNIT,
    OVERLAY,
    Pixels,
    Scale,
    decode,
    is_inverted,
    padding_mask,
    record_losses,
    scale_of,
)
from .resampling import EvenGrid, even_grid, resampled
from .unpacking import FrameUnpacker

_FIRST_OF_PIXELS = tag_of("FloatPixelData")
_SCALED = np.dtype(np.float32)
"""Type of values if slices have different rescale lines."""
_COPIES_OF_A_FILE = 2
"""Copies of a file's bytes in memory: the file, and its pixels, packed or not."""
_BYTES_OF_A_HEADER = 32 << 10
"""Memory of a file's header, which stays for the result."""
_BYTES_OF_A_PIXEL = 16
"""Memory of the frame being unpacked: decoders of JPEG 2000 hold several numbers per pixel."""


def read_grid(study: Study, volume_index: int | None) -> Grid:
    """Read the grid of a series from the places of all slices, and the voxel type from two headers.

    These are the headers of the first and the last slice.

    Raises ScanError and OSError.
    """
    place, frames = _shown_path(study), _frames_of(study, volume_index)
    headers = {frame.file: _header(frame.file) for frame in (frames[0], frames[-1])}
    first, last = (_scale(headers[frame.file], frame) for frame in (frames[0], frames[-1]))
    stored = _voxel_type(headers[frames[0].file])
    is_padded = any("PixelPaddingValue" in header for header in headers.values())
    scale, voxel_type = (first, stored) if first == last else (Scale(1.0, 0.0), _SCALED)
    grid, even = grid_of(frames), frames
    if grid.trouble:
        even = _even_over(frames, grid, place).frames
        grid = grid_of(even)
    held = stored.itemsize * _pixels(frames)
    held += voxel_type.itemsize * _pixels(frames) if voxel_type != stored else 0
    held += (voxel_type.itemsize + 2) * _pixels(frames) if is_padded else 0
    held += voxel_type.itemsize * _pixels(even) if even is not frames else 0
    files = {frame.file for frame in frames}
    held += _COPIES_OF_A_FILE * max(file.stat().st_size for file in files)
    held += _BYTES_OF_A_HEADER * len(files) + _BYTES_OF_A_PIXEL * _pixels(frames[:1])
    return Grid(
        (even[0].columns, even[0].rows, len(even)),
        grid.affine,
        (),
        voxel_type,
        held,
        scale.slope,
        scale.intercept,
    )


def _pixels(frames: Stack) -> int:
    return frames[0].rows * frames[0].columns * len(frames)


def _header(path: Path) -> DataSet:
    """Return all elements before the pixels."""
    try:
        with open_regular(path) as file:
            return read_partial(file, _follows_header, force=True)
    except PARSING_ERRORS as error:
        raise UnreadableScanError(
            f"{path} is truncated or damaged ({type(error).__name__}); copy or export it again."
        ) from None


def _follows_header(tag: int, _kind: str | None, _length: int) -> bool:
    """Return whether an element is of the pixels, or comes after them."""
    return tag >= _FIRST_OF_PIXELS


def _scale(header: DataSet, frame: Frame) -> Scale:
    groups = list(frame_groups(header))
    return scale_of(
        header, groups[frame.number] if frame.number < len(groups) else None, frame.file
    )


def _voxel_type(header: DataSet) -> np.dtype[Any]:
    """Return the type of stored values: whole bytes, as many as the header allocates."""
    allocated = int(min(max(number(header, "BitsAllocated", 16), 8), 64))
    size = 1 << (-(-allocated // 8) - 1).bit_length()
    return np.dtype(f"{'i' if number(header, 'PixelRepresentation') == 1 else 'u'}{size}")


_MOST_PIXELS_A_BYTE = 10_000
"""Limit of pixels per byte of a packed file: an empty slice has a header of some hundred bytes."""
MOST_BYTES_AT_ONCE = 8 << 20
"""Largest file that is read before it is parsed: parsing from memory takes a fifth less time."""
_PIXELS = tag_of("PixelData")
_BYTES = (None, "OB", "OW", "UN")
"""VRs of pixels, and none, as without explicit VRs."""


@dataclass(frozen=True, slots=True)
class DicomHeader:
    """Source headers that the writer needs, slice by slice.

    headers: data sets without pixels, and without private elements unless the series keeps them;
    the same one for all slices of an enhanced file. enhanced: whether the frames come from such
    files. resampled: whether their places are new. padding: where the scan had no values.
    others: headers of the further scans of a study, for a result of several.
    """

    series: Series
    frames: Stack
    headers: tuple[DataSet, ...]
    padding: "Padding | None"
    enhanced: bool
    resampled: bool = False
    others: "tuple[DicomHeader, ...]" = ()

    @property
    def scans(self) -> "tuple[DicomHeader, ...]":
        """Headers of all source scans of a result, this one first."""
        return self, *self.others

    @property
    def slices(self) -> tuple[DataSet, ...]:
        """Data sets of all slices of all scans."""
        return tuple(dataset for scan in self.scans for dataset in scan.headers)


@dataclass(frozen=True, slots=True)
class Padding:
    """Voxels without values in a scan.

    packed: one bit a voxel [k, j, i]. value, dtype, scale: how the scan stored its padding.
    """

    packed: AnyArray
    value: int
    dtype: "np.dtype[Any]"
    scale: Scale


def read(study: Study, volume_index: int | None, empty: Empty) -> Volume:
    """Read one volume of a series that `discover` found; raises ScanError and OSError.

    Slices whose slopes differ become float32 values. Padding takes the lowest value of the rest,
    unless it is a number that lies among the others and each of them is a measurement.
    An uneven or tilted stack that the user allows is resampled to an even grid.
    """
    series, place = _series_of(study), _shown_path(study)
    frames = _frames_of(study, volume_index)
    stack = _SliceStack(frames, empty)
    with FrameUnpacker() as unpack:
        for dataset, groups, frame in _opened(frames, series.keep_private):
            stack.add(frame, dataset, groups, decode(dataset, frame.file, frame.number, unpack))
    if new := added_since(study):
        raise UnreadableScanError(
            f"{place} is not translated: {len(new)} more of its images arrived after it was found "
            f"({new[0].name}); translate it again when it is complete."
        )
    stack.check_scales(place)
    stack.check_padding()
    padding, notes = stack.padding(), tuple(stack.notes())
    voxels, scale = stack.values()
    header = DicomHeader(series, frames, tuple(stack.headers), padding, stack.enhanced)
    grid = grid_of(frames)
    if grid.trouble:
        even = _even_over(frames, grid, place)
        voxels = resampled(voxels, grid.depths, even)
        headers = tuple(stack.headers[at] for at in even.nearest)
        header = DicomHeader(series, even.frames, headers, None, stack.enhanced, resampled=True)
        grid = grid_of(even.frames)
    return Volume(voxels.T, grid.affine, header, "dicom", scale.slope, scale.intercept, notes=notes)


def _series_of(study: Study) -> Series:
    """Return the series found by the search for a study to be read."""
    if not isinstance(study.series, Series):
        raise TypeError(f"{study.name} is not a DICOM series")
    return study.series


def _shown_path(study: Study) -> Path:
    """Return the path by which errors name a series."""
    return study.files[0].parent / _series_of(study).label


def _frames_of(study: Study, volume_index: int | None) -> Stack:
    """Return the slices of the volume to read. Raises ScanError, also if memory is too small."""
    series, place = _series_of(study), _shown_path(study)
    if series.is_incomplete:
        raise UnreadableScanError(f"{place} is not translated: {series.explanation}.")
    if series.verdict != "taken":
        raise UnsupportedScanError(f"{place} is not translated: {series.explanation}.")
    frames = series.volume(place, volume_index)
    _check_size(frames, place)
    return frames


def with_other_scans(volumes: Sequence[Volume]) -> Volume:
    """Return the first of a study's scans, whose writer then refers to the others too."""
    headers = [volume.header for volume in volumes]
    first, *others = [header for header in headers if isinstance(header, DicomHeader)]
    return replace(volumes[0], header=replace(first, others=tuple(others)))


class _SliceStack:
    """Slices as they are read, in one array [slice, row, column]."""

    def __init__(self, frames: Sequence[Frame], empty: Empty) -> None:
        self._empty = empty
        self._shape = len(frames), frames[0].rows, frames[0].columns
        self._stored: AnyArray | None = None
        self._padding: AnyArray | None = None
        self._scales: list[Scale] = []
        self._inverted = self._cut = 0
        self._padding_note = ""
        self.headers: list[DataSet] = []
        self.enhanced = False

    def add(
        self, frame: Frame, dataset: DataSet, groups: FrameGroups | None, decoded: Pixels
    ) -> None:
        pixels = decoded.values
        if pixels.shape != self._shape[1:]:
            rows, columns = self._shape[1:]
            raise UnreadableScanError(
                f"{frame.file} holds {pixels.shape} pixels but its header declares {columns} x "
                f"{rows}; export it again."
            )
        at = len(self.headers)
        if self._stored is None:
            self._stored = self._empty(self._shape, pixels.dtype)
        elif self._stored.dtype != pixels.dtype:
            self._stored = self._stored.astype(np.result_type(self._stored, pixels))
        self._stored[at] = pixels
        mask = padding_mask(dataset, pixels)
        if mask is not None:
            if self._padding is None:
                self._padding = np.zeros(self._shape, np.bool_)
            self._padding[at] = mask
        self._scales.append(scale_of(dataset, groups, frame.file))
        self._inverted += is_inverted(dataset, groups)
        self._cut += decoded.is_cut
        self.headers.append(dataset)
        self.enhanced = groups is not None

    @property
    def _stated(self) -> frozenset[str]:
        """Return which of slope and intercept any slice's header gives."""
        return frozenset[str]().union(*(scale.stated for scale in self._scales))

    def check_scales(self, place: Path) -> None:
        """Refuse slices whose values cannot share a unit according to their headers."""
        zeros = sum(scale.is_zero for scale in self._scales)
        if 0 < zeros < len(self._scales):
            raise UnreadableScanError(
                f"{place} has {zeros} of {len(self._scales)} slices with a rescale slope of 0, "
                "unlike the others, so their values are unknown; export it again."
            )
        stated = self._stated
        silent = [scale for scale in self._scales if scale.stated != stated]
        if silent and any(scale != self._scales[0] for scale in self._scales):
            lacking = " or ".join(sorted(stated - silent[0].stated, reverse=True))
            raise UnreadableScanError(
                f"{place} has {len(silent)} of {len(self._scales)} slices without a rescale "
                f"{lacking}, so their values are in a different unit from the others; export it "
                "again."
            )
        if len(units := {scale.unit for scale in self._scales if scale.unit}) > 1:
            raise UnreadableScanError(
                f"{place} has slices in {len(units)} different units (RescaleType or Units); "
                "export it in one unit."
            )

    def check_padding(self) -> None:
        """Note padding that lies among the other values, and treat it as values in CT and PET.

        PS3.3 C.7.5.1.1.2 has padding below the least or above the greatest value, so the header is
        wrong: water may have its number.
        """
        if self._stored is None or self._padding is None or self._padding.all():
            return
        padded = self._stored[self._padding]
        least, greatest = padded.min(), padded.max()
        rest = self._stored[~self._padding]
        if not rest.min() < least <= greatest < rest.max():
            return
        span = str(least) if least == greatest else f"{least} to {greatest}"
        what = "filled with the lowest value"
        if modality_in(self.headers[0]) in MODALITIES_WITH_UNIT or self._scales[0].unit:
            what, self._padding = "used as they are", None
        self._padding_note = (
            f"its PixelPaddingValue (stored {span}) is within the range of its other values; the "
            f"{padded.size} pixels with it are {what}"
        )

    def notes(self) -> Iterator[str]:
        """Yield notes on what a header leaves unverified about values."""
        if self._padding_note:
            yield self._padding_note
        images = f"of its {len(self.headers)} images"
        stated = self._stated
        has_unit = modality_in(self.headers[0]) in MODALITIES_WITH_UNIT
        if "slope" not in stated and (has_unit or self._scales[0].is_zero):
            yield "its headers have no rescale slope, or one of 0; 1 is used"
        elif "intercept" not in stated and has_unit:
            yield "its headers have no rescale intercept; 0 is used"
        if self._inverted:
            yield (
                f"{self._inverted} {images} have inverted grey (MONOCHROME1); their values are "
                "inverted so that higher is brighter"
            )
        if self._cut:
            yield (
                f"pixels of {self._cut} {images} use more bits than the header declares; the "
                "extra bits are ignored"
            )

    def values(self) -> tuple[AnyArray, Scale]:
        """Return all slices under one scale, padding filled."""
        stored, scale = self._stored, self._scales[0]
        assert stored is not None
        if any(other != scale for other in self._scales):
            stored = stored.astype(np.float32)
            for values, own in zip(stored, self._scales, strict=True):
                values *= np.float32(own.slope)
                values += np.float32(own.intercept)
            scale = Scale(1.0, 0.0)
        if self._padding is not None and not self._padding.all():
            rest = stored[~self._padding]
            stored[self._padding] = rest.min() if scale.slope > 0 else rest.max()
        return stored, scale

    def padding(self) -> Padding | None:
        """Return the padding of the result; None if other values may be equal to it."""
        if self._padding is None or self._stored is None or self._padding_note:
            return None
        value = int(self._stored[self._padding][0])
        packed = np.packbits(self._padding)
        return Padding(packed, value, self._stored.dtype, self._scales[0])


def _opened(
    frames: Sequence[Frame], keep_private: bool
) -> Iterator[tuple[DataSet, FrameGroups | None, Frame]]:
    """Yield frames with their data set, whose pixels are freed after its last frame."""
    dataset, file, groups, is_cut = None, None, list[FrameGroups](), False
    for frame in frames:
        if frame.file != file:
            _strip(dataset, keep_private)
            file, dataset = frame.file, _dataset(frame.file)
            is_cut = "PixelData" not in dataset
            record_losses(dataset)
            groups = list(frame_groups(dataset))
        own = groups[frame.number] if frame.number < len(groups) else None
        if not (is_cut or _is_as_found(frame, dataset, own)):
            raise UnreadableScanError(
                f"{file} has changed since it was found; translate its series again when it is "
                "complete."
            )
        yield dataset, own, frame
    _strip(dataset, keep_private)


def _is_as_found(frame: Frame, dataset: DataSet, own: FrameGroups | None) -> bool:
    """Return whether a file still contains the image found by the search, at its place."""
    place, orientation = (
        (own("PlanePositionSequence"), own("PlaneOrientationSequence")) if own else (dataset,) * 2
    )
    return (
        word(dataset, "SOPInstanceUID") == frame.instance
        and places(place, "ImagePositionPatient", 3) == frame.position
        and places(orientation, "ImageOrientationPatient", 6) == frame.orientation
    )


def _dataset(path: Path) -> DataSet:
    try:
        if path.stat().st_size > MOST_BYTES_AT_ONCE:
            with open_regular(path) as file:
                return _with_syntax(_parsed(file))
        return _with_syntax(_parsed(io.BytesIO(read_regular(path))))
    except PARSING_ERRORS as error:
        raise UnreadableScanError(
            f"{path} is truncated or damaged ({type(error).__name__}); copy or export it again."
        ) from None


def _parsed(file: BinaryIO) -> DataSet:
    """Return all elements. Zeros after the pixels are skipped, though they would parse as elements:
    a preallocated file may have any number.
    """
    met_pixels = False

    def is_filler(tag: int, _kind: str | None, _length: int) -> bool:
        nonlocal met_pixels
        met_pixels = met_pixels or tag == _PIXELS
        return met_pixels and tag == 0

    return keep_stored_text(_with_plain_pixels(read_partial(file, is_filler, force=True)))


def _with_plain_pixels(dataset: DataSet) -> DataSet:
    """Return the data set with pixels as bytes, even if its writer declared numbers (VR US)."""
    pixels = dataset.get_item(_PIXELS)
    if pixels is not None and pixels.is_raw and pixels.VR not in _BYTES:
        dataset[_PIXELS] = pixels._replace(VR="OW")
    return dataset


def _with_syntax(dataset: DataSet) -> DataSet:
    """Return the data set; without a transfer syntax, pixels are encoded as its elements."""
    is_packed = "PixelData" in dataset and dataset["PixelData"].is_undefined_length
    if not dataset.file_meta and not is_packed:
        is_implicit, is_little = dataset.original_encoding
        plain = ImplicitVRLittleEndian if is_implicit else ExplicitVRLittleEndian
        dataset.file_meta.TransferSyntaxUID = plain if is_little else ExplicitVRBigEndian
    return dataset


def _strip(dataset: DataSet | None, keep_private: bool) -> None:
    """Remove what no result needs: overlays, pixels, and unless they are kept, private elements."""
    if dataset is None:
        return
    for tag in list(dataset.keys()):  # iterating itself parses every element
        unwanted = not keep_private if tag.is_private else tag.group >= OVERLAY
        if unwanted:
            del dataset[tag]


def _even_over(frames: Sequence[Frame], grid: SliceGrid, place: Path) -> EvenGrid:
    """Return the even grid over slices that form none. Raises UnreadableScanError."""
    try:
        return even_grid(frames, grid)
    except ValueError as error:
        raise UnreadableScanError(
            f"{place} has slices too far apart to resample them: {error}; repair their positions."
        ) from error


def _check_size(frames: Stack, place: Path) -> None:
    pixels = _pixels(frames)
    stored = sum(path.stat().st_size for path in {frame.file for frame in frames})
    if pixels > stored * _MOST_PIXELS_A_BYTE or 2 * pixels > most_memory():
        raise UnreadableScanError(
            f"{place} declares {pixels:.3g} pixels in {stored} bytes, more than they can encode or "
            f"than fits the {most_memory() / 2**30:.1f} GiB of memory available to this program; "
            "export it again or use a larger machine."
        )
