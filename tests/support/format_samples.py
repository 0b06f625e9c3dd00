"""A scan of every registered format, written without the product; a new format adds its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import nrrd as _nrrd
import numpy as np
import SimpleITK as _SimpleITK
from scipy.io import netcdf_file as _netcdf_file

from cuda_cyclegan.io.volume import LPS_TO_RAS, Affine, AnyArray

from .dicom_phantoms import Phantom
from .io_files import OBLIQUE, ramp

nibabel: Any = _nibabel
nrrd: Any = _nrrd
sitk: Any = _SimpleITK
netcdf_file: Any = _netcdf_file

SHAPE = (9, 10, 11)
"""Large enough for the search, which skips DICOM series of few slices."""


@dataclass(frozen=True)
class Sample:
    """files: of the scan, the header first. values: of each of its volumes. affine: RAS+."""

    files: tuple[Path, ...]
    values: tuple[AnyArray, ...]
    affine: Affine


def _volumes(slopes: tuple[float, ...], intercept: float = 0.0) -> tuple[AnyArray, ...]:
    raw = ramp(SHAPE).astype(np.float64)
    return tuple((raw + 100 * at) * slope + intercept for at, slope in enumerate(slopes))


def nifti(folder: Path) -> Sample:
    """Two volumes of one slope and intercept."""
    raw = np.stack([ramp(SHAPE), ramp(SHAPE) + 100], axis=3)
    image = nibabel.Nifti1Image(raw, OBLIQUE)
    image.header.set_slope_inter(2.0, -5.0)
    nibabel.Nifti1Image(raw, OBLIQUE).to_filename(folder / "scan.nii")
    content = bytearray((folder / "scan.nii").read_bytes())
    content[112:120] = np.array([2.0, -5.0], "<f4").tobytes()
    (folder / "scan.nii").write_bytes(content)
    return Sample((folder / "scan.nii",), _volumes((2.0, 2.0), -5.0), OBLIQUE)


def nrrd_series(folder: Path) -> Sample:
    """Two volumes along a fourth axis."""
    raw = np.stack([ramp(SHAPE), ramp(SHAPE) + 100], axis=3)
    affine = LPS_TO_RAS @ OBLIQUE
    header = {
        "space": "left-posterior-superior",
        "space directions": np.vstack([affine[:3, :3].T, np.full(3, np.nan)]),
        "space origin": affine[:3, 3],
        "kinds": ["domain", "domain", "domain", "list"],
        "encoding": "raw",
    }
    nrrd.write(str(folder / "scan.nrrd"), raw, header)
    return Sample((folder / "scan.nrrd",), _volumes((1.0, 1.0)), OBLIQUE)


def metaimage(folder: Path) -> Sample:
    """One volume: ITK has no series over time in this format."""
    affine = LPS_TO_RAS @ OBLIQUE
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    directions = np.linalg.qr(affine[:3, :3] / edges)[0]
    image = sitk.GetImageFromArray(np.ascontiguousarray(ramp(SHAPE).T))
    image.SetOrigin(affine[:3, 3].tolist())
    image.SetSpacing(edges.tolist())
    image.SetDirection(directions.ravel().tolist())
    sitk.WriteImage(image, str(folder / "scan.mha"))
    affine[:3, :3] = directions * edges
    return Sample((folder / "scan.mha",), _volumes((1.0,)), LPS_TO_RAS @ affine)


def dicom(folder: Path) -> Sample:
    """One volume."""
    phantom = Phantom("CT", slices=SHAPE[2], slope=2.0)
    values = phantom.voxels().T * phantom.slope + phantom.intercept
    return Sample(tuple(phantom.write(folder / "series")), (values,), phantom.affine())


def afni(folder: Path) -> Sample:
    """Two volumes with factors of their own."""
    raw = np.stack([ramp(SHAPE), ramp(SHAPE) + 100], axis=3)
    (folder / "scan+orig.BRIK").write_bytes(raw.astype("<i2").tobytes(order="F"))
    matrix = (np.diag([-1.0, -1.0, 1.0, 1.0]) @ OBLIQUE)[:3].ravel().tolist()
    attributes = {
        "TYPESTRING": "'3DIM_HEAD_ANAT~",
        "DATASET_RANK": [3, 2],
        "DATASET_DIMENSIONS": list(SHAPE),
        "BYTEORDER_STRING": "'LSB_FIRST~",
        "BRICK_TYPES": [1, 1],
        "BRICK_FLOAT_FACS": [0.5, 0.25],
        "IJK_TO_DICOM_REAL": matrix,
        "DELTA": [1.0, 1.0, 1.5],
        "TAXIS_NUMS": [2, 0, 77002],
        "TAXIS_FLOATS": [0.0, 2.5, 0.0, 0.0, 0.0],
    }
    (folder / "scan+orig.HEAD").write_text("\n" + "\n\n".join(map(_attribute, attributes.items())))
    files = folder / "scan+orig.HEAD", folder / "scan+orig.BRIK"
    return Sample(files, _volumes((0.5, 0.25)), OBLIQUE)


def _attribute(item: tuple[str, Any]) -> str:
    name, value = item
    kind = "string" if isinstance(value, str) else type(value[0]).__name__
    kind = {"int": "integer"}.get(kind, kind)
    text = value if isinstance(value, str) else " " + " ".join(map(repr, value))
    return f"type  = {kind}-attribute\nname  = {name}\ncount = {len(value)}\n{text}"


def minc(folder: Path) -> Sample:
    """Two volumes along time, each slice with a range of its own."""
    cosines = np.linalg.qr(OBLIQUE[:3, :3])[0]
    start, step = (-3.0, 4.0, 5.0), (1.0, -1.5, 2.0)
    names = ("zspace", "yspace", "xspace")
    raw = np.stack([ramp(SHAPE), ramp(SHAPE) + 100])
    low = np.arange(2 * SHAPE[0], dtype=np.float64).reshape(2, SHAPE[0])
    high = low + 0.25 * (low + 1)
    with netcdf_file(folder / "scan.mnc", "w") as file:
        for name, extent in zip(("time", *names), raw.shape, strict=True):
            file.createDimension(name, extent)
            axis = file.createVariable(name, "i", ())
            axis.spacing = b"regular__"
            if name in names:
                at = names.index(name)
                axis.start, axis.step = start[at], step[at]
                axis.direction_cosines = cosines[:, at]
        image = file.createVariable("image", "h", ("time", *names))
        image.signtype, image.valid_range = b"signed__", np.array([0.0, 2000.0])
        image[:] = raw
        for name, ends in (("image-min", low), ("image-max", high)):
            file.createVariable(name, "d", ("time", "zspace"))[:] = ends
    slopes = ((high - low) / 2000)[:, :, None, None]
    values = raw * slopes + low[:, :, None, None]
    affine = np.eye(4)
    affine[:3, :3] = cosines * step
    affine[:3, 3] = cosines @ start
    return Sample((folder / "scan.mnc",), tuple(values), affine)


SAMPLES: dict[str, Callable[[Path], Sample]] = {
    "nifti": nifti,
    "nrrd": nrrd_series,
    "metaimage": metaimage,
    "dicom": dicom,
    "afni": afni,
    "minc": minc,
}
"""Samples by the name of the format."""
