"""NIfTI and Analyze files written in the header of their source, which is read again to be sure."""

import io
import math
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import numpy.typing as npt

from ..errors import ScanError, WriteError
from ..files.atomic import whole_file, whole_files
from ..files.streams import GZIP_ERRORS, open_reader, open_writer, write_volumes
from ..volume import Volume
from .format import ResultToWrite
from .nifti_header import (
    Header,
    SpmHeader,
    affine_of,
    header_in,
    image_beside,
    is_single_file,
    read_header,
    scaling_of,
    set_mark,
)
from .spm import mat_beside

nibabel: Any = _nibabel  # typed only in part

GEOMETRY_FIELDS = (
    *("qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d"),
    *("qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z", "xyzt_units"),
)
# Kinds of NIfTI's fifth axis (vector, matrix, ...) say nothing about one volume picked from it.
_FIRST_AXIS_OF_COMPONENTS = 5


def write(result: ResultToWrite) -> dict[str, str]:
    """Store a volume at a path that ends as its source does, or is one file of NIfTI.

    A single file is written slab by slab as the voxels arrive. Raises WriteError and then leaves
    nothing behind. Returns the SHA-256 of each file, in hexadecimal.
    """
    volume, target = result.volume, result.target
    header = _header_for(volume, target)
    if is_single_file(target):
        with whole_file(target, result.gate) as part:
            with open_writer(part, "r+b") as stream:
                stream.write(_stored(header))
                write_volumes(stream, volume, result.arrival, result.series)
            _verify(part, target, header, volume)
        return {target.name: stream.sha256}
    with whole_files(target, result.gate, (image_beside(target), mat_beside(target))) as part:
        with open_writer(part) as head:
            head.write(_stored(header))
        with open_writer(image_beside(part)) as stream:
            write_volumes(stream, volume, result.arrival, result.series)
        if isinstance(volume.header, SpmHeader):
            mat_beside(part).write_bytes(volume.header.mat)
        _verify(part, target, header, volume)
    return {target.name: head.sha256, image_beside(target).name: stream.sha256}


def can_store(volume: Volume, dtype: "np.dtype[Any]") -> bool:
    """Return whether the header of a volume that was read has a code for a voxel type."""
    header: Header = header_in(volume).copy()
    try:
        header.set_data_dtype(dtype)
    except (nibabel.spatialimages.HeaderDataError, nibabel.spatialimages.HeaderTypeError):
        return False
    return True


def _header_for(volume: Volume, target: Path) -> Header:
    source = header_in(volume)
    if not isinstance(source, nibabel.analyze.AnalyzeHeader):
        raise WriteError(f"{target} was not written: its source is not NIfTI or Analyze.")
    if getattr(source, "is_single", False) != is_single_file(target):
        raise WriteError(
            f"{target} was not written: it must have the same suffix as its source; rename it."
        )
    header = source.as_byteswapped("<")  # which drops the extensions
    if hasattr(source, "extensions"):
        header.extensions = source.extensions
    if volume.mark:
        set_mark(header, volume.mark)
    try:
        header.set_data_dtype(volume.voxels.dtype)
        if scaling_of(header, target) != (volume.slope, volume.intercept):
            header.set_slope_inter(volume.slope, volume.intercept)
    except (nibabel.spatialimages.HeaderDataError, nibabel.spatialimages.HeaderTypeError) as error:
        raise WriteError(
            f"{target} was not written: this format cannot store {volume.voxels.dtype} times "
            f"{volume.slope:g} plus {volume.intercept:g}; convert the source to NIfTI."
        ) from error
    _fit_extents(header, (*volume.shape, *volume.further))
    if not volume.keeps_unit:
        header["cal_min"] = header["cal_max"] = 0
        if "intent_code" in header:
            header.set_intent("none")
    header["vox_offset"] = 0  # nibabel puts the first place after the extensions
    return header


def _fit_extents(header: Header, shape: tuple[int, ...]) -> None:
    extents = tuple(int(extent) for extent in header.get_data_shape())
    if extents == shape or (extents[:3] == shape and math.prod(extents[3:]) == 1):
        return
    header.set_data_shape(shape)
    if len(extents) >= _FIRST_AXIS_OF_COMPONENTS and "intent_code" in header:
        header.set_intent("none")


def _stored(header: Header) -> bytes:
    stored = io.BytesIO()  # nibabel seeks, which a gzip stream cannot
    header.write_to(stored)
    return stored.getvalue()


def _verify(part: Path, target: Path, header: Header, volume: Volume) -> None:
    """Raise WriteError unless the header on disk is as intended and agrees with `volume`."""
    try:
        with open_reader(part) as stream:
            found = read_header(stream, target)
    except (ScanError, EOFError, *GZIP_ERRORS) as error:
        raise WriteError(
            f"{target} was not written completely: its header cannot be read back; choose another "
            "output folder."
        ) from error
    source = header_in(volume)
    affine = affine_of(source, target) if isinstance(volume.header, SpmHeader) else volume.affine
    same = (
        found == header
        and found.get_data_dtype() == volume.voxels.dtype
        and tuple(found.get_data_shape())[:3] == volume.shape
        and math.prod(found.get_data_shape()[3:]) == math.prod(volume.further)
        and _close(affine_of(found, target), affine, atol=1e-6)
        and _close(scaling_of(found, target), (volume.slope, volume.intercept))
        and all(_equal(found, source, field) for field in GEOMETRY_FIELDS)
    )
    if not same:
        raise WriteError(
            f"{target} was not written: its header would lose the position of the source; please "
            "report this."
        )


def _equal(found: Header, source: Header, field: str) -> bool:
    if field not in found:
        return True
    one, other = found[field], source[field]
    return one.tolist() == other.tolist() or np.array_equal(one, other, equal_nan=True)


def _close(one: npt.ArrayLike, other: npt.ArrayLike, atol: float = 0.0) -> bool:
    return np.array_equal(one, other) or np.allclose(one, other, rtol=1e-6, atol=atol)
