"""NRRD and MetaImage through SimpleITK, in this program's RAS+ affine."""

import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import SimpleITK as _SimpleITK

from ..errors import ScanError, UnreadableScanError, UnsupportedScanError, WriteError
from ..files.disk import reserve
from ..files.header_limits import check_extents, check_size, check_start, pick_volume
from ..files.streams import (
    GOES_ON,
    GZIP_ERRORS,
    UNPACKING_BYTES,
    TooManyBytesError,
    expect_end,
    expect_packed,
)
from ..volume import LPS_TO_RAS, Affine, AnyArray, Format, Grid, Study, Volume
from .geometry import MILLIMETRES, assumed, shear_notes, unit_notes
from .text_header import PACKINGS, TextHeader, read_text_header

sitk: Any = _SimpleITK  # typed only in part
sitk.ProcessObject.SetGlobalWarningDisplay(False)

_IMAGE_IO: dict[Format, str] = {"nrrd": "NrrdImageIO", "metaimage": "MetaImageIO"}
COMPRESSION_LEVEL = 1
_COPIES = 2
"""Of all of a file's voxels while it is read: the image of ITK, and what is taken out of it."""
# ITK would store its own note under the first key, refuses units beside directions, and cannot hand
# over values that are not text.
_NOT_AGAIN = ("ITK_InputFilterName", "NRRD_units[")
_UNIT_OF_METAIMAGE = "ITK_VoxelUnits"
_DICOM_KEY = re.compile(r"(?:DICOM_)?([0-9a-f]{4})[|_]([0-9a-f]{4})(?:_.*)?", re.IGNORECASE)
"""As ITK and dcm2niix name elements of the DICOM series that a file was made of."""
_OF_PATIENT = "0010"
_OF_STUDY = {
    *("0008|0020", "0008|0030", "0008|0050", "0008|1030"),
    *("0020|000d", "0020|0010", "0020|0052"),
}
"""Date, time, accession number and description; identifiers of study and frame of reference."""
_MODALITY = "modality"
_NOT_TEXT = "[UNKNOWN_PRINT_CHARACTERISTICS]"
_NUMBERS = ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64")
_TYPES: dict[int, np.dtype[Any]] = {
    getattr(sitk, f"sitk{vector}{number}"): np.dtype(number.lower())
    for number in (*_NUMBERS, "Float32", "Float64")
    for vector in ("", "Vector")
}


_LPS_OF: dict[str, tuple[float, float, float]] = {
    **dict.fromkeys(("left-posterior-superior", "lps"), (1.0, 1.0, 1.0)),
    **dict.fromkeys(("right-anterior-superior", "ras"), (-1.0, -1.0, 1.0)),
    **dict.fromkeys(("left-anterior-superior", "las"), (1.0, -1.0, 1.0)),
}
"""To each space that tells left from right, the signs of its axes in LPS."""


@dataclass(frozen=True, slots=True)
class ItkHeader:
    """What the writer needs to write the same header again; geometry in LPS, as ITK holds it.

    origin, spacing, direction: in millimetres, the direction row by row. metadata: all other
    fields. compressed: whether the voxels were.
    """

    origin: tuple[float, ...]
    spacing: tuple[float, ...]
    direction: tuple[float, ...]
    metadata: dict[str, str]
    compressed: bool


def read(study: Study, volume_index: int | None) -> Volume:
    """Read one volume or component; raises ScanError and OSError."""
    path = study.files[0]
    text = _text_header(path)
    reader, extents = _opened(path, study.format)
    index = pick_volume(path, extents, volume_index)
    notes = _check_voxel_bytes(text, math.prod(extents) * _voxel_type(reader, path).itemsize)
    header = ItkHeader(
        *_geometry(reader, text),
        _metadata(reader),
        text.encoding in PACKINGS,
    )
    voxels = _read_voxels(reader, path, reader.GetSize(), index)
    affine = _affine(header, path)
    notes = *notes, *unit_notes(text.unit), *shear_notes(affine), *_space_notes(text, affine)
    return Volume(voxels, affine, header, study.format, notes=notes)


def read_grid(study: Study) -> Grid:
    """The grid of all volumes, without voxels; raises what `read` raises."""
    path = study.files[0]
    text = _text_header(path)
    reader, extents = _opened(path, study.format)
    voxel_type = _voxel_type(reader, path)
    stored_bytes = math.prod(extents) * voxel_type.itemsize
    if text.encoding in ("plain", "text"):  # which takes no unpacking
        _check_voxel_bytes(text, stored_bytes)
    affine = _affine(ItkHeader(*_geometry(reader, text), {}, compressed=False), path)
    notes = *unit_notes(text.unit), *shear_notes(affine), *_space_notes(text, affine)
    packed = text.data_file.stat().st_size if text.encoding in PACKINGS else 0
    reading_bytes = _COPIES * stored_bytes + packed + UNPACKING_BYTES
    return Grid(extents, affine, notes, voxel_type, reading_bytes)


def _text_header(path: Path) -> TextHeader:
    if not _is_utf8(path):
        raise UnsupportedScanError(f"{path} has a name that is not UTF-8; rename it.")
    text = read_text_header(path)
    check_start(text.data_file)
    return text


def _opened(path: Path, kind: Format) -> tuple[Any, tuple[int, ...]]:
    """A reader that knows the file's header; extents i, j, k, components and further axes."""
    reader = sitk.ImageFileReader()
    reader.SetImageIO(_IMAGE_IO[kind])
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        raise _unreadable(path, error) from error
    _voxel_type(reader, path)
    size: tuple[int, ...] = reader.GetSize()
    check_extents(path, size)
    return reader, (*size[:3], reader.GetNumberOfComponents(), *size[3:])


def write(volume: Volume, part: Path, target: Path) -> None:
    """Write to `part`, named as `target`, and voxels beside it if the suffix asks for that.

    The file is read back whole, as ITK does not tell of every write that a full disk cut short.
    """
    header = volume.header
    if not isinstance(header, ItkHeader):
        raise WriteError(f"{target} was not written: its source was not read as NRRD or MetaImage.")
    if not _is_utf8(part):
        raise WriteError(f"{target} was not written: its name is not UTF-8; rename the source.")
    if volume.voxels.dtype not in _TYPES.values() or (volume.slope, volume.intercept) != (1.0, 0.0):
        raise WriteError(
            f"{target} was not written: this format stores plain integers and floats without a "
            f"scale, not {volume.voxels.dtype} times {volume.slope:g} plus {volume.intercept:g}."
        )
    try:
        _write_image(volume, header, part)
        found = read(Study(PurePosixPath(target.name), (part,), volume.format), None)
    except (RuntimeError, ScanError, EOFError, TooManyBytesError, *GZIP_ERRORS) as error:
        _ask_the_system(part, volume.voxels.nbytes)
        raise WriteError(
            f"{target} was not written whole ({' '.join(str(error).split())}); choose another "
            "output folder."
        ) from error
    if not _agree(volume, found):
        raise WriteError(f"{target} was not written: it does not read back as meant; report this.")


def _ask_the_system(part: Path, size: int) -> None:
    """Raise the OSError that ITK keeps to itself, if so many bytes meet with one here."""
    with part.open("ab") as file:
        reserve(file.fileno(), max(size, 1))


def _write_image(volume: Volume, header: ItkHeader, part: Path) -> None:
    image = sitk.GetImageFromArray(np.ascontiguousarray(volume.voxels.T))
    image.SetOrigin(header.origin)
    image.SetSpacing(header.spacing)
    image.SetDirection(header.direction)
    for key, value in header.metadata.items():
        image.SetMetaData(key, value)
    # MetaImage would write X.MHA as x.mhd and x.raw.
    named = part.with_suffix(part.suffix.lower())
    writer = sitk.ImageFileWriter()
    writer.SetImageIO(_IMAGE_IO[volume.format])
    writer.SetFileName(str(named))
    writer.SetUseCompression(header.compressed)
    writer.SetCompressionLevel(COMPRESSION_LEVEL)
    writer.Execute(image)
    named.rename(part)


def _agree(meant: Volume, found: Volume) -> bool:
    return (
        meant.voxels.dtype == found.voxels.dtype
        and np.allclose(meant.affine, found.affine, rtol=1e-6, atol=1e-6)
        and np.array_equal(meant.voxels, found.voxels, equal_nan=meant.voxels.dtype.kind == "f")
    )


def _is_utf8(name: Path | str) -> bool:
    """Whether ITK can take it: any other file name ends the whole process."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_voxel_bytes(text: TextHeader, promised: int) -> tuple[str, ...]:
    """Raise unless all voxels are there: ITK makes voxels of packed bytes that it cannot unpack.

    Returns a note if more than them is.
    """
    if text.encoding == "plain":
        check_size(text.data_file, text.offset + promised)
        if text.is_exact:
            with text.data_file.open("rb") as file:
                file.seek(text.offset + promised)
                expect_end(file)
        return ()
    if text.encoding == "text":
        check_size(text.data_file, promised, "text")
        return ()
    check_size(text.data_file, promised, "compressed")
    check_size(text.data_file, text.offset + (text.packed_bytes or 0))
    with text.data_file.open("rb") as file:
        file.seek(text.offset)
        goes_on = expect_packed(file, text.encoding, text.packed_bytes, promised)
    return (GOES_ON,) if goes_on else ()


def _read_voxels(reader: Any, path: Path, size: tuple[int, ...], index: int) -> AnyArray:
    components: int = reader.GetNumberOfComponents()
    component, frame = index % components, index // components
    if len(size) > 3:
        reader.SetExtractSize([*size[:3], *(0 for _ in size[3:])])
        position = np.unravel_index(frame, size[3:], order="F")
        reader.SetExtractIndex([0, 0, 0, *(int(at) for at in position)])
    try:
        image = reader.Execute()
    except RuntimeError as error:
        raise _unreadable(path, error) from error
    if components == 1:
        return sitk.GetArrayFromImage(image).T
    every: AnyArray = sitk.GetArrayViewFromImage(image)
    return every[..., component].copy().T


def _voxel_type(reader: Any, path: Path) -> np.dtype[Any]:
    pixel: int = reader.GetPixelIDValue()
    if pixel not in _TYPES:
        raise UnsupportedScanError(
            f"{path} stores {sitk.GetPixelIDValueAsString(pixel)} voxels; convert it to one "
            "integer or float value a voxel."
        )
    return _TYPES[pixel]


def _geometry(
    reader: Any, text: TextHeader
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Origin, spacing and direction in LPS and millimetres.

    ITK leaves the unit to its caller and does not write that of NRRD again, so a result is in
    millimetres. It turns spaces into LPS, but not those with time.
    """
    unit, axes = MILLIMETRES.get(text.unit, 1.0), reader.GetDimension()
    signs = np.array(_LPS_OF.get(text.space, (1.0, 1.0, 1.0)) if text.has_time else (1.0, 1.0, 1.0))
    direction = np.reshape(reader.GetDirection(), (axes, axes))[:3, :3] * signs[:, None]
    return (
        tuple(float(place) * unit for place in reader.GetOrigin()[:3] * signs),
        tuple(spacing * unit for spacing in reader.GetSpacing()[:3]),
        tuple(float(cosine) for cosine in direction.ravel()),
    )


def _space_notes(text: TextHeader, affine: Affine) -> tuple[str, ...]:
    """What about the axes of space has to be believed."""
    if text.space in _LPS_OF:
        return ()
    if text.space and text.space.isprintable():
        said = f'its header names the space "{text.space}", which does not say which side is left'
    else:
        said = "its header does not say to which sides of the patient its axes run"
    return (f"{said}; {assumed(affine)}",)


def _metadata(reader: Any) -> dict[str, str]:
    keys = (key for key in reader.GetMetaDataKeys() if _is_utf8(key))
    pairs = {key: str(reader.GetMetaData(key)) for key in keys}
    if _UNIT_OF_METAIMAGE in pairs:
        pairs[_UNIT_OF_METAIMAGE] = "mm"
    return {
        key: value
        for key, value in pairs.items()
        if not key.startswith(_NOT_AGAIN)
        and not value.startswith(_NOT_TEXT)
        and not _is_of_acquisition(key)
    }


def _is_of_acquisition(key: str) -> bool:
    """Whether a field tells how or as which object the scan was made, which is untrue of a result:
    its modality, say, or its SOPInstanceUID.
    """
    found = _DICOM_KEY.fullmatch(key)
    if found is None:
        return key.lower() == _MODALITY
    group, element = found[1].lower(), found[2].lower()
    return group != _OF_PATIENT and f"{group}|{element}" not in _OF_STUDY


def _affine(header: ItkHeader, path: Path) -> Affine:
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(header.direction, (3, 3)) * header.spacing
    affine[:3, 3] = header.origin
    if not all(edge > 0 for edge in header.spacing):
        raise UnreadableScanError(
            f"{path} does not say how large its voxels are: its header gives "
            f"{' x '.join(f'{edge:g}' for edge in header.spacing)} mm; repair it."
        )
    if not np.isfinite(affine).all():
        raise UnreadableScanError(
            f"{path} does not say where its voxels lie; repair the geometry in its header."
        )
    return LPS_TO_RAS @ affine


def _unreadable(path: Path, error: RuntimeError) -> UnreadableScanError:
    return UnreadableScanError(
        f"{path} is truncated or damaged ({_last_line(error)}); copy or export it again."
    )


def _last_line(error: RuntimeError) -> str:
    """What ITK says; MetaImage adds an unrelated "Reason", the last error of the system."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("Reason:")]
    return said[-1].rstrip(".") if said else "ITK gives no reason"
