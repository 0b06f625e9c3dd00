"""Volumes from images that nibabel and SimpleITK hold in memory, and back."""

from dataclasses import replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
import numpy.typing as npt

from .discovery import find_scan
from .errors import UnsupportedScanError
from .formats.geometry import MILLIMETRES
from .formats.marks import FILE_NOTES, WHOLE_MARK, json_of, line_of
from .formats.nifti_header import as_nifti, set_mark, unit_of
from .reading import read
from .volume import LPS_TO_RAS, Affine, AnyArray, Volume

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image
    from nibabel.spatialimages import SpatialImage
    from SimpleITK import Image

AnyPath: TypeAlias = str | PathLike[str]
AnyScan: TypeAlias = Union[Volume, "SpatialImage", "Image", AnyPath]
"""A scan in memory, or the path of one."""


def _read_path(source: object) -> Volume | None:
    """Return the one volume at a path; None if the source is no path. Raises ScanError."""
    if not isinstance(source, str | PathLike):
        return None
    return read(find_scan(Path(cast("AnyPath", source))))


def as_volume(scan: AnyScan) -> Volume:
    """Return the volume of a scan in memory, a file or a folder of one scan. Raises ScanError."""
    source: Any = scan
    if isinstance(source, Volume):
        sound = volume_of(source.voxels, source.affine)
        return replace(source, voxels=sound.voxels, affine=sound.affine)
    if (volume := _read_path(source)) is not None:
        return volume
    if _is_of_nibabel(source):
        return from_nibabel(source)
    if _is_of_simpleitk(source):
        return from_simpleitk(source)
    if hasattr(source, "__array__"):
        raise UnsupportedScanError(
            "An array needs its affine; pass both, as in translate(voxels, affine)."
        )
    raise UnsupportedScanError(
        f"A {_type(source)} is not a scan; pass a path, a Volume, a nibabel or SimpleITK image, or "
        "an array with its affine."
    )


def volume_of(voxels: npt.ArrayLike, affine: npt.ArrayLike) -> Volume:
    """Return a volume of an array, which it shares where it can.

    voxels: [i, j, k], whole or floating-point numbers. affine: (4, 4), from (i, j, k, 1) to
    millimetres in RAS+. Raises UnsupportedScanError for other shapes and types.
    """
    if np.ma.is_masked(voxels):
        raise UnsupportedScanError(
            "The array has masked voxels, whose values are undefined; fill them first."
        )
    try:
        stored, grid = np.asarray(voxels), np.array(affine, np.float64)
    except (TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise UnsupportedScanError(
            f"A {_type(voxels)} with a {_type(affine)} is not an array with an affine: {reason}."
        ) from error
    if stored.ndim != 3 or 0 in stored.shape or grid.shape != (4, 4):
        raise UnsupportedScanError(
            f"A scan is a 3D array [i, j, k] with a (4, 4) affine, not shape {stored.shape} with "
            f"affine {grid.shape}; select one 3D volume."
        )
    is_usable = np.isfinite(grid).all() and grid.any()  # else it is refused when it is used
    if is_usable and not np.allclose(grid[3], (0, 0, 0, 1), rtol=0, atol=1e-6):
        raise UnsupportedScanError(
            f"The affine's last row is {tuple(grid[3].tolist())}, not (0, 0, 0, 1); translations "
            "belong in its last column."
        )
    if stored.dtype == np.float16:
        stored = stored.astype(np.float32)
    if stored.dtype.kind not in "iuf" or stored.dtype.itemsize > 8:
        raise UnsupportedScanError(
            f"Voxels must be integers or floating-point numbers, not {stored.dtype}; convert the "
            "array."
        )
    native: AnyArray = stored.astype(stored.dtype.newbyteorder("="), copy=False)
    return Volume(native, grid, None, "nifti")


def from_nibabel(image: "SpatialImage | AnyPath") -> Volume:
    """Return the volume of a 3D image that nibabel opened or created, with its stored voxels.

    image: or the path of a scan, which is read as `translate_file` reads it. Raises ScanError
    unless it is one volume of plain numbers with an affine.

    >>> import nibabel, numpy
    >>> image = nibabel.Nifti1Image(numpy.zeros((4, 5, 6), numpy.int16), numpy.eye(4))
    >>> from_nibabel(image).shape
    (4, 5, 6)
    """
    source: Any = image
    if (volume := _read_path(source)) is not None:
        return volume
    if not _is_of_nibabel(source):
        raise UnsupportedScanError(
            f"A {_type(source)} is neither a nibabel image nor a path; pass one of these."
        )
    if source.affine is None:
        raise UnsupportedScanError("The image has no affine, so its position is unknown; set one.")
    nibabel: Any = import_module("nibabel")
    if not isinstance(source.header, nibabel.AnalyzeImage.header_class):
        return volume_of(_one_volume(np.asarray(source.dataobj)), source.affine)
    voxels, slope, intercept = source.dataobj, 1.0, 0.0
    if hasattr(voxels, "get_unscaled"):  # of a file, whose scaling is applied late
        voxels, slope, intercept = voxels.get_unscaled(), voxels.slope, voxels.inter
    affine: Affine = np.array(source.affine, np.float64)
    affine[:3] *= MILLIMETRES[unit_of(source.header)]
    read = volume_of(_one_volume(voxels), affine)
    header = source.header.copy()
    return Volume(read.voxels, affine, header, "nifti", float(slope), float(intercept))


def _one_volume(voxels: AnyArray) -> AnyArray:
    """Remove axes of one element after the third, such as a time axis of one time point."""
    return voxels if np.prod(voxels.shape[3:]) != 1 else voxels.reshape(voxels.shape[:3])


def to_nibabel(volume: AnyScan) -> "Nifti1Image":
    """Return the volume as a NIfTI image in memory, in the header of its file where that was NIfTI.

    volume: or an image, or a path. The image's voxels are those stored, or float32 values where a
    slope or intercept belongs to them. Raises ScanError for what is no scan.

    >>> import numpy
    >>> to_nibabel(volume_of(numpy.ones((4, 5, 6), numpy.int16), numpy.eye(4))).shape
    (4, 5, 6)
    """
    nibabel: Any = import_module("nibabel")
    volume = as_volume(volume)
    kept: Any = volume.header
    if not isinstance(kept, nibabel.Nifti1Header) or unit_of(kept) != "mm":
        kept = as_nifti(volume).header
    header = kept.copy()
    voxels = _unscaled(volume)
    header.set_data_dtype(voxels.dtype)
    header.set_slope_inter(1, 0)
    if volume.mark:
        set_mark(header, volume.mark)
    is_first = header.sizeof_hdr == nibabel.Nifti1Header.sizeof_hdr
    kind = nibabel.Nifti1Image if is_first else nibabel.Nifti2Image
    return kind(voxels, volume.affine, header, dtype=voxels.dtype)


def from_simpleitk(image: "Image | AnyPath") -> Volume:
    """Return the volume of a 3D image of SimpleITK, with a copy of its voxels.

    image: or the path of a scan, which is read as `translate_file` reads it. Raises ScanError
    unless it has three axes and one plain number per voxel.

    >>> import SimpleITK
    >>> from_simpleitk(SimpleITK.Image(4, 5, 6, SimpleITK.sitkInt16)).shape
    (4, 5, 6)
    """
    sitk: Any = import_module("SimpleITK")
    source: Any = image
    if (volume := _read_path(source)) is not None:
        return volume
    if not _is_of_simpleitk(source):
        raise UnsupportedScanError(
            f"A {_type(source)} is neither a SimpleITK image nor a path; pass one of these."
        )
    if source.GetDimension() != 3 or source.GetNumberOfComponentsPerPixel() != 1:
        raise UnsupportedScanError("The image is not a single 3D volume; extract one from it.")
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(source.GetDirection(), (3, 3)) * source.GetSpacing()
    affine[:3, 3] = source.GetOrigin()
    return volume_of(sitk.GetArrayFromImage(source).T, LPS_TO_RAS @ affine)


def to_simpleitk(volume: AnyScan) -> "Image":
    """Return the volume as an image of SimpleITK, whose axes are x, y, z for [i, j, k], in LPS.

    volume: or an image, or a path. The image's voxels are those stored, or float32 values where a
    slope or intercept belongs to them. Raises ScanError for what is no scan.

    >>> import numpy
    >>> to_simpleitk(volume_of(numpy.ones((4, 5, 6), numpy.int16), numpy.eye(4))).GetSize()
    (4, 5, 6)
    """
    sitk: Any = import_module("SimpleITK")
    volume = as_volume(volume)
    image = sitk.GetImageFromArray(np.ascontiguousarray(_unscaled(volume).T))
    affine = LPS_TO_RAS @ volume.affine
    image.SetSpacing(volume.spacing)
    image.SetOrigin(affine[:3, 3].tolist())
    image.SetDirection((affine[:3, :3] / volume.spacing).ravel().tolist())
    if volume.mark:
        image.SetMetaData(FILE_NOTES, line_of(volume.mark))
        image.SetMetaData(WHOLE_MARK, json_of(volume.mark))
    return image


def _unscaled(volume: Volume) -> AnyArray:
    """Return its values: the stored voxels themselves if slope is 1 and intercept is 0."""
    if (volume.slope, volume.intercept) == (1.0, 0.0):
        return volume.voxels
    return volume.values()


def _is_of_nibabel(source: object) -> bool:
    return hasattr(source, "dataobj") and hasattr(source, "affine")


def _is_of_simpleitk(source: object) -> bool:
    return hasattr(source, "GetNumberOfComponentsPerPixel") and hasattr(source, "GetDirection")


def _type(source: object) -> str:
    return type(source).__name__
