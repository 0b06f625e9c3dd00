"""Headers of NIfTI-1, NIfTI-2 and Analyze 7.5, as nibabel reads them, with checks and notes."""

import io
import logging
import math
import struct
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import nibabel as _nibabel
import numpy as np

from ..errors import UnreadableScanError, UnsupportedScanError
from ..files.nifti_start import MAGIC_PLACES
from ..files.streams import is_gzip_name, read_exactly
from ..volume import Affine, AnyArray, SyntheticMark, Volume
from .geometry import MILLIMETRES, assumed, shear_notes, unit_notes
from .marks import json_of, line_of, mark_in_text

nibabel: Any = _nibabel  # typed only in part
Header: TypeAlias = Any  # one of nibabel's header classes

_LARGEST_HEADER_BYTES = 64 << 20
_SHORTEST_HEADER_BYTES = 348
_UNREADABLE_AT_LEVEL = 40  # nibabel's own threshold for a header that cannot be used
# For good, as several threads read: what is unusual in a header either gets a note or is rejected.
warnings.filterwarnings("ignore", module="nibabel")
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())

_UNITS = {1: "m", 2: "mm", 3: "um"}
"""Units by the code in xyzt_units."""


_HEADERS = {
    (348, b"n+1\0", True): nibabel.Nifti1Header,
    (348, b"ni1\0", False): nibabel.nifti1.Nifti1PairHeader,
    (540, b"n+2\0", True): nibabel.Nifti2Header,
    (540, b"ni2\0", False): nibabel.nifti2.Nifti2PairHeader,
}


@dataclass(frozen=True, slots=True)
class SpmHeader:
    """Analyze header, and the .mat file next to it with the place of the voxels."""

    header: Header
    mat: bytes


def is_single_file(path: Path) -> bool:
    """Return whether header and voxels share this file, as in .nii and .nii.gz."""
    name = path.name.lower()
    return name.endswith((".nii", ".nii.gz"))


def image_beside(header: Path) -> Path:
    """Return the path of the voxels of a .hdr: x.hdr -> x.img, X.HDR.gz -> X.IMG.gz."""
    return _renamed(header, "hdr", "img")


def header_beside(image: Path) -> Path:
    """Return the path of the header of an .img."""
    return _renamed(image, "img", "hdr")


def _renamed(path: Path, old: str, new: str) -> Path:
    packing = path.suffix if is_gzip_name(path) else ""
    base = path.name.removesuffix(packing)
    ending = new.upper() if base.endswith(old.upper()) else new
    return path.with_name(base[: -len(old)] + ending + packing)


def header_in(volume: Volume) -> Header:
    """Return the header of NIfTI or Analyze that a volume was read with."""
    return volume.header.header if isinstance(volume.header, SpmHeader) else volume.header


def read_header(stream: BinaryIO, path: Path) -> Header:
    """Parse and check a header, its extensions included; `stream` is then at its end."""
    single = is_single_file(path)
    start = read_exactly(stream, _SHORTEST_HEADER_BYTES)
    header_class = _class_of(start, single, path)
    start += read_exactly(stream, header_class.sizeof_hdr - len(start))
    header = header_class(start, check=False)
    voxel_type_of(header, path)
    _check_edges(header, path)
    _check_offset(header, 0, path)  # nibabel makes an integer of it
    fixed = _fixed(header_class, start)
    header = header_class(fixed, check=False)
    _check_offset(header, len(start) if single else 0, path)
    if header_class is nibabel.spm2analyze.Spm2AnalyzeHeader:
        return header
    if single:
        rest = read_exactly(stream, header.get_data_offset() - len(start))
    else:
        rest = stream.read(_LARGEST_HEADER_BYTES)
    return header_class.from_fileobj(io.BytesIO(fixed + rest), check=False)


@lru_cache  # needed before a scan is read and when it is read
def _fixed(header_class: Any, stored: bytes) -> bytes:
    """Return a header with what nibabel can repair; raises its HeaderDataError for the rest."""
    header = header_class(stored, check=False)
    header.check_fix(_log, _UNREADABLE_AT_LEVEL)
    return header.binaryblock


def with_unit_quaternion(header: Header) -> tuple[Header, tuple[str, ...]]:
    """The header with a quaternion of length 1, and a note, where rounding made it longer than
    nibabel takes.
    """
    if is_analyze(header) or int(header["qform_code"]) <= 0:
        return header, ()
    vector = [float(header[f"quatern_{name}"]) for name in "bcd"]
    length = math.hypot(*vector)
    beyond = length * length - 1.0
    if not abs(float(header.quaternion_threshold)) < beyond <= _MOST_ROUNDING:
        return header, ()
    header = header.copy()
    for name, value in zip("bcd", vector, strict=True):
        header[f"quatern_{name}"] = value / length
    return header, (
        "the quaternion of its qform is slightly longer than 1 from rounding (its square by "
        f"{beyond:.1g}); it is normalised",
    )


_MOST_ROUNDING = 1.000001e-6
"""Limit by which the square of a quaternion may exceed 1; one that is longer is damaged."""


def _check_offset(header: Header, least: int, path: Path) -> None:
    """Refuse voxels that begin before a byte, or nowhere."""
    offset = float(header["vox_offset"])
    if not least <= offset <= _LARGEST_HEADER_BYTES:
        raise UnreadableScanError(
            f"{path} has a damaged header: its voxels start at byte {offset:g}; export it again."
        )


def _check_edges(header: Header, path: Path) -> None:
    """Refuse meaningless voxel edges, before nibabel replaces them.

    Those of an sform are its columns. In Analyze only their signs show which side is left.
    """
    edges = [float(edge) for edge in header["pixdim"][1:4]]
    if is_analyze(header):
        edges = [abs(edge) for edge in edges]
    elif int(header["sform_code"]) > 0:
        return
    for axis, edge in zip("ijk", edges, strict=True):
        if not edge > 0:
            raise UnreadableScanError(
                f"{path} has no valid voxel size: its header gives {edge:g} mm along {axis}; "
                "export it again or repair the header's pixdim."
            )


def affine_of(header: Header, path: Path) -> Affine:
    """Return the voxel to RAS+ map that nibabel takes: sform, else qform, else from the extents.

    The unit is mm, which nibabel leaves to its caller.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a NaN may signal
        affine: Affine = np.asarray(header.get_best_affine(), dtype=np.float64)
        affine[:3] *= MILLIMETRES[unit_of(header)]
    if not _is_invertible(affine.tobytes()):
        raise UnreadableScanError(
            f"{path} has no valid position: its affine cannot be inverted; repair the header's "
            "sform or qform."
        )
    return affine


@lru_cache  # needed before a scan is read, when it is read, and for its result
def _is_invertible(stored: bytes) -> bool:
    affine = np.frombuffer(stored).reshape(4, 4)
    if not np.isfinite(affine).all():
        return False
    with np.errstate(over="ignore"):
        squares = np.square(affine[:3, :3]).sum(axis=0)  # 0 or infinite of absurd edges
    scale = np.abs(affine[:3, :3]).max()
    rank = np.linalg.matrix_rank(affine[:3, :3] / (scale or 1))
    return bool(rank == 3 and (np.isfinite(squares) & (squares > 0)).all())


def unit_of(header: Header) -> str:
    """Return the unit of lengths; codes without a meaning count as unknown, and as mm."""
    return _UNITS.get(int(header["xyzt_units"]) & 7, "mm") if "xyzt_units" in header else "mm"


def header_notes(header: Header, affine: Affine) -> tuple[str, ...]:
    """Return notes on what is unverified about the place and the kind of the voxels."""
    notes = *unit_notes(unit_of(header)), *shear_notes(affine)
    if not is_analyze(header) and (kind := NO_SCANS.get(int(header["intent_code"]))):
        notes = *notes, f"its header declares its voxels as {kind}"
    if is_analyze(header):
        return *notes, f"Analyze files do not record which side is left; {assumed(affine)}"
    if int(header["sform_code"]) == int(header["qform_code"]) == 0:
        said = "its header has neither sform nor qform"
        return *notes, f"{said}; {assumed(affine)}"
    return *notes, *_disagreement(header)


NO_SCANS = {
    **dict.fromkeys(range(2, 25), "statistical values"),
    **dict.fromkeys((1002, 1003), "segmentation labels"),
    1006: "displacements",
    1007: "vectors",
    **dict.fromkeys(range(3000, 3100), "CIFTI values of surfaces"),
}
"""Intents of NIfTI that voxels of a scan do not have."""


_APART_BEYOND = 0.5
"""Edges of a voxel between its places by sform and qform; less may come from rounding."""


def _disagreement(header: Header) -> tuple[str, ...]:
    """Return a note on a qform that puts the voxels elsewhere than the sform, or, without a qform,
    on voxel sizes that are not those of the sform; or none.
    """
    if int(header["sform_code"]) <= 0:
        return ()
    if int(header["qform_code"]) <= 0:
        return _other_sizes(header)
    sform = header.get_sform()
    ends = np.array([*product(*((0, extent - 1) for extent in header.get_data_shape()[:3]))])
    with np.errstate(all="ignore"):  # a header may hold any numbers
        try:
            difference = sform - header.get_qform()
        except ValueError:
            difference = np.full((4, 4), np.nan)
        apart = np.linalg.norm(ends @ difference[:3, :3].T + difference[:3, 3], axis=1).max()
    if not np.isfinite(apart):
        return ("its qform is damaged; the sform is used",)
    if apart <= _APART_BEYOND * np.linalg.norm(sform[:3, :3], axis=0).min():
        return ()
    by_sform, by_qform = _axes(sform), _axes(header.get_qform())
    return (
        f"its sform and qform place voxels up to {apart * MILLIMETRES[unit_of(header)]:.1f} mm "
        f"apart (axes {by_sform} and {by_qform}); the sform is used, but other programs may use "
        "the qform",
    )


_SIZES_APART_BEYOND = 0.01
"""Relative difference of a voxel size from that of the sform; less may come from rounding."""


def _other_sizes(header: Header) -> tuple[str, ...]:
    sizes = np.abs(np.asarray(header["pixdim"][1:4], np.float64))
    steps = np.linalg.norm(header.get_sform()[:3, :3], axis=0)
    if np.allclose(sizes, steps, rtol=_SIZES_APART_BEYOND, atol=0):
        return ()
    scale = MILLIMETRES[unit_of(header)]
    by_pixdim, by_sform = ("x".join(f"{x * scale:.3g}" for x in each) for each in (sizes, steps))
    return (
        f"its pixdim gives voxels of {by_pixdim} mm, and its sform of {by_sform} mm; the sform is "
        "used, but other programs may use pixdim",
    )


def _axes(affine: Affine) -> str:
    """Return axis codes such as RAS, with ? for an axis without length."""
    return "".join(axis or "?" for axis in nibabel.aff2axcodes(affine))


def is_analyze(header: Header) -> bool:
    return "sform_code" not in header


def scaling_of(header: Header, path: Path) -> tuple[float, float]:
    """Slope and intercept; 1 and 0 if the header leaves them unset, as 0 or NaN."""
    if "scl_slope" in header and np.isinf(header["scl_slope"]):
        raise UnreadableScanError(
            f"{path} has a damaged header: its scl_slope is infinite; export the scan again."
        )
    slope, intercept = header.get_slope_inter()
    return 1.0 if slope is None else float(slope), 0.0 if intercept is None else float(intercept)


def _class_of(start: bytes, single: bool, path: Path) -> Any:
    for order in "<>":
        (size,) = struct.unpack(f"{order}i", start[:4])
        if size not in MAGIC_PLACES:
            continue
        magic = start[MAGIC_PLACES[size]]
        if (size, magic, single) in _HEADERS:
            return _HEADERS[size, magic, single]
        if (size, magic, not single) in _HEADERS:
            there = "in a separate file" if single else "in the same file"
            raise UnreadableScanError(
                f"{path} does not match its name: its header places the voxels {there}; rename it."
            )
        if size == 348 and not single:
            return nibabel.spm2analyze.Spm2AnalyzeHeader
    kind = "NIfTI" if single else "NIfTI or Analyze"
    raise UnreadableScanError(f"{path} is not a {kind} file despite its name; check the file.")


def voxel_type_of(header: Header, path: Path) -> np.dtype[Any]:
    try:
        stored: np.dtype[Any] = header.get_data_dtype()
    except (nibabel.spatialimages.HeaderDataError, KeyError):
        stored = np.dtype(np.void)
    if stored.kind not in "iuf" or stored.itemsize > 8:
        raise UnsupportedScanError(
            f"{path} stores {_type_name(header)} voxels; convert it to one integer or float value "
            "per voxel."
        )
    return stored


def _type_name(header: Header) -> str:
    try:
        return nibabel.nifti1.data_type_codes.label[int(header["datatype"])]
    except KeyError:
        return "unknown"


_SCANNER = 1
"""The code of a space that is the scanner's own."""


_SHEARED_BEYOND = 1e-4


_TIMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "sec"),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), "msec"),
    **dict.fromkeys(("us", "usec", "microsecond", "microseconds"), "usec"),
}
"""Units of time by their names in other formats."""


def as_nifti(volume: Volume, step: float = math.nan, unit: str = "") -> Volume:
    """The same volume with a NIfTI header: sform, and qform where the axes are perpendicular.

    step, unit: from one volume of a series to the next, if known.
    """
    header = nibabel.Nifti1Header()
    header.set_data_dtype(volume.voxels.dtype)
    header.set_data_shape((*volume.shape, *volume.further))
    header.set_xyzt_units("mm", _TIMES.get(unit.lower(), "unknown") if step > 0 else "unknown")
    if volume.further and step > 0:
        header["pixdim"][4] = step
    header.set_sform(volume.affine, _SCANNER)
    header["pixdim"][1:4] = volume.spacing
    if _is_perpendicular(volume.affine[:3, :3] / volume.spacing):
        header.set_qform(volume.affine, _SCANNER)
    return replace(volume, header=header, format="nifti")


_COMMENT = 6
"""Code of an extension that holds plain text."""


def set_mark(header: Header, mark: SyntheticMark) -> None:
    """Mark a header's image as synthetic: in `descrip`, and in an extension with whole names if
    the format has any. Earlier marks of this program are replaced.

    The extension is the first, so that it is found without reading the others.
    """
    header["descrip"] = line_of(mark).encode()
    if not hasattr(header, "extensions"):
        return
    others = [each for each in header.extensions if not _is_mark(each)]
    own = nibabel.nifti1.Nifti1Extension(_COMMENT, json_of(mark).encode())
    header.extensions = type(header.extensions)([own, *others])


def _is_mark(extension: Any) -> bool:
    if extension.get_code() != _COMMENT:
        return False
    return mark_in_text(bytes(extension.get_content()).decode("ascii", "replace")) is not None


def _is_perpendicular(directions: AnyArray) -> bool:
    return np.allclose(directions.T @ directions, np.eye(3), atol=_SHEARED_BEYOND)
