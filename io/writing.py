"""Write a volume the way its source was written, whole or not at all."""

import io
import math
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

from .errors import ScanError, WriteError
from .files.atomic import whole_file, whole_files, whole_folder
from .files.parts import NO_GATE, Gate
from .files.streams import (
    GZIP_ERRORS,
    Arrival,
    all_there,
    is_gzip_name,
    open_reader,
    open_writer,
    write_voxels,
)
from .formats.nifti import (
    Header,
    SpmHeader,
    affine_of,
    as_nifti,
    image_beside,
    is_single_file,
    read_header,
    scaling_of,
)
from .formats.spm import mat_beside
from .maps import MapKind, map_name
from .search import SUFFIXES, suffix_of
from .volume import Derivation, Volume

nibabel: Any = _nibabel  # typed only in part

GEOMETRY_FIELDS = (
    *("qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d"),
    *("qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z", "xyzt_units"),
)
_VOXELS_BESIDE = {".mhd": (".raw", ".zraw"), ".nhdr": (".raw", ".raw.gz")}
# Kinds of NIfTI's fifth axis (vector, matrix, ...) say nothing about one volume picked from it.
FIRST_AXIS_OF_COMPONENTS = 5


def write(
    volume: Volume,
    target: Path,
    derivation: Derivation | None = None,
    gate: Gate = NO_GATE,
    arrival: Arrival = all_there,
) -> dict[str, str]:
    """Store `volume` at `target` in its source's format and header; the suffix says which variant.

    A DICOM series becomes a folder, which tells the derivation; what was not NIfTI becomes NIfTI
    where the suffix says so.
    Changed in the header is only what the voxels change: their type, slope and intercept, the
    number of volumes, and if they are in another unit the display range and the intent. Raises
    WriteError and then leaves nothing behind.

    arrival: of the voxels, for which a result that `is_written_in_order` waits slab by slab; the
    gate is passed once all are written.

    Returns the SHA-256, in hexadecimal, of those files that were hashed as they were written.
    """
    if volume.format != "nifti" and is_single_file(target):
        volume = as_nifti(volume)
    if volume.format == "dicom":
        if derivation is None:
            raise TypeError("a DICOM series cannot be written without its derivation")
        from .dicom.derived.writing import write_series

        with whole_folder(target, gate) as folder:
            write_series(volume, folder, derivation)
        return {}
    if volume.format != "nifti":
        from .formats import nrrd_metaimage

        with whole_files(target, gate) as part:
            nrrd_metaimage.write(volume, part, target)
        return {}
    header = _header_for(volume, target)
    if is_single_file(target):
        with whole_file(target, gate) as part:
            with open_writer(part, is_gzip_name(target), "r+b") as stream:
                stream.write(_stored(header))
                write_voxels(stream, volume.voxels, arrival)
            _verify(part, target, header, volume)
        return {target.name: stream.sha256}
    with whole_files(target, gate) as part:
        with open_writer(part, is_gzip_name(target)) as head:
            head.write(_stored(header))
        with open_writer(image_beside(part), is_gzip_name(target)) as stream:
            write_voxels(stream, volume.voxels)
        if isinstance(volume.header, SpmHeader):
            mat_beside(part).write_bytes(volume.header.mat)
        _verify(part, target, header, volume)
    return {target.name: head.sha256, image_beside(target).name: stream.sha256}


def is_written_in_order(volume: Volume, target: Path) -> bool:
    """Whether `write` takes nothing but the header and then slice after slice, as they lie."""
    order = sorted(range(3), key=lambda axis: volume.voxels.strides[axis])
    return is_single_file(target) and order == [0, 1, 2]


def notes_of_result(volume: Volume, target: Path) -> tuple[str, ...]:
    """What a user should know of how `write` stores a result of this volume at `target`."""
    if volume.format != "dicom" or is_single_file(target):
        return ()
    from .dicom.derived.source import mending_notes
    from .dicom.reading import DicomHeader

    return mending_notes(volume.header) if isinstance(volume.header, DicomHeader) else ()


def files_at(target: Path) -> list[Path]:
    """The files of a result that is there: those of its folder, or those beside each other."""
    if target.is_dir():
        return sorted(path for path in target.rglob("*") if not path.is_dir())
    return [path for path in places(target) if path.exists()]


def places(target: Path) -> tuple[Path, ...]:
    """Every file that `write` may make for `target`, which comes first."""
    suffix = target.suffix.lower()
    if target.name.lower().endswith((".hdr", ".hdr.gz")):
        return target, image_beside(target), mat_beside(target)
    return target, *(target.with_suffix(voxels) for voxels in _VOXELS_BESIDE.get(suffix, ()))


def map_beside(target: Path, kind: MapKind) -> Path:
    """Where a map about the result at `target` stands: a file or folder as the result is.

    No result can have its place, as `discover` takes nothing of such a name for a scan.
    """
    suffix = target.name[-len(found) :] if (found := suffix_of(target)) in SUFFIXES else ""
    return target.with_name(map_name(target.name.removesuffix(suffix), kind, suffix))


def _header_for(volume: Volume, target: Path) -> Header:
    source = _nifti_header(volume)
    if not isinstance(source, nibabel.analyze.AnalyzeHeader):
        raise WriteError(f"{target} was not written: its source was not read as NIfTI or Analyze.")
    if getattr(source, "is_single", False) != is_single_file(target):
        raise WriteError(f"{target} was not written: it must end as its source does; rename it.")
    header = source.as_byteswapped("<")  # which drops the extensions
    if hasattr(source, "extensions"):
        header.extensions = source.extensions
    try:
        header.set_data_dtype(volume.voxels.dtype)
        if scaling_of(header, target) != (volume.slope, volume.intercept):
            header.set_slope_inter(volume.slope, volume.intercept)
    except (nibabel.spatialimages.HeaderDataError, nibabel.spatialimages.HeaderTypeError) as error:
        raise WriteError(
            f"{target} was not written: this format cannot store {volume.voxels.dtype} times "
            f"{volume.slope:g} plus {volume.intercept:g}; convert the source to NIfTI."
        ) from error
    _fit_extents(header, volume.shape)
    if not volume.keeps_unit:
        header["cal_min"] = header["cal_max"] = 0
        if "intent_code" in header:
            header.set_intent("none")
    header["vox_offset"] = 0  # nibabel puts the first place behind the extensions
    return header


def _nifti_header(volume: Volume) -> Header:
    return volume.header.header if isinstance(volume.header, SpmHeader) else volume.header


def _fit_extents(header: Header, shape: tuple[int, int, int]) -> None:
    extents = tuple(int(extent) for extent in header.get_data_shape())
    if extents[:3] == shape and math.prod(extents[3:]) == 1:
        return
    header.set_data_shape(shape)
    if len(extents) >= FIRST_AXIS_OF_COMPONENTS and "intent_code" in header:
        header.set_intent("none")


def _stored(header: Header) -> bytes:
    stored = io.BytesIO()  # nibabel seeks, which a gzip stream cannot
    header.write_to(stored)
    return stored.getvalue()


def _verify(part: Path, target: Path, header: Header, volume: Volume) -> None:
    """Raise WriteError unless the header on disk is the one meant and says what `volume` says."""
    try:
        with open_reader(part, is_gzip_name(target)) as stream:
            found = read_header(stream, target)
    except (ScanError, EOFError, *GZIP_ERRORS) as error:
        raise WriteError(
            f"{target} was not written whole, as its header cannot be read again; choose another "
            "output folder."
        ) from error
    source = _nifti_header(volume)
    affine = affine_of(source, target) if isinstance(volume.header, SpmHeader) else volume.affine
    same = (
        found == header
        and found.get_data_dtype() == volume.voxels.dtype
        and tuple(found.get_data_shape())[:3] == volume.shape
        and np.allclose(affine_of(found, target), affine, rtol=1e-6, atol=1e-6)
        and np.allclose(
            scaling_of(found, target), (volume.slope, volume.intercept), rtol=1e-6, atol=0
        )
        and all(_equal(found, source, field) for field in GEOMETRY_FIELDS)
    )
    if not same:
        raise WriteError(
            f"{target} was not written: its header would not say where the source's voxels lie; "
            "report this."
        )


def _equal(found: Header, source: Header, field: str) -> bool:
    return field not in found or np.array_equal(found[field], source[field], equal_nan=True)
