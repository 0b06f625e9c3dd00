"""Write a volume the way its source was written, whole or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ScanError, UnsupportedScanError
from .files.atomic import whole_files, whole_folder
from .files.parts import NO_GATE, Gate
from .files.streams import Arrival, all_there
from .formats import nifti_writing
from .formats.nifti import as_nifti, image_beside, is_single_file
from .formats.nrrd_metaimage import VOXELS_BESIDE, read_text_header, step_of, voxels_beside
from .formats.spm import MAT_SUFFIX, mat_beside
from .maps import MapKind, map_name
from .search import SUFFIXES, scan_stem, suffix_of
from .volume import AnyArray, Derivation, Format, Study, Volume


def write(
    volume: Volume,
    target: Path,
    derivation: Derivation | None = None,
    gate: Gate = NO_GATE,
    arrival: Arrival = all_there,
    series: Iterable[AnyArray] | None = None,
) -> dict[str, str]:
    """Store `volume` at `target` in its source's format and header; the suffix says which variant.

    A DICOM series becomes a folder, which tells the derivation; what was not NIfTI becomes NIfTI
    where the suffix says so, and so do NRRD and MetaImage.
    Changed in the header is only what the voxels change: their type, slope and intercept, the
    number of volumes, and if they are in another unit the display range and the intent. Raises
    WriteError and then leaves nothing behind.

    arrival: of the voxels, for which a result that `is_written_in_order` waits slab by slab; the
    gate is passed once all are written. series: voxels of all volumes of a series, in place of
    those of `volume`; not of DICOM.

    Returns the SHA-256, in hexadecimal, of those files that were hashed as they were written.
    """
    volume = as_at(target, volume)
    match volume.format:
        case "nifti":
            return nifti_writing.write(volume, target, gate, arrival, series)
        case "dicom":
            if derivation is None:
                raise TypeError("a DICOM series cannot be written without its derivation")
            from .dicom.derived.writing import write_series

            with whole_folder(target, gate) as folder:
                write_series(volume, folder, derivation)
        case "nrrd" | "metaimage":
            from .formats import nrrd_metaimage

            with whole_files(target, gate) as part:
                return nrrd_metaimage.write(volume, part, target, series)
    return {}


def as_at(target: Path, volume: Volume) -> Volume:
    """The volume in the format of its target, in a new header if that is another one."""
    wanted = SUFFIXES.get(suffix_of(target), volume.format)
    if wanted == volume.format:
        return volume
    match wanted:
        case "nifti":
            return as_nifti(volume, *step_of(volume)) if is_single_file(target) else volume
        case "nrrd" | "metaimage":
            from .formats import nrrd_metaimage

            return nrrd_metaimage.as_text(volume, wanted)
        case "dicom":
            raise TypeError("no suffix stands for a DICOM series")


def is_written_in_order(volume: Volume, target: Path) -> bool:
    """Whether `write` takes nothing but the header and then slice after slice, as they lie."""
    order = sorted(range(3), key=lambda axis: volume.voxels.strides[axis])
    return is_single_file(target) and order == [0, 1, 2]


def is_series(source: Format, target: Path) -> bool:
    """Whether a result at `target`, of a scan of this format, is a DICOM series, which is the one
    kind that tells its derivation.
    """
    return source == "dicom" and suffix_of(target) not in SUFFIXES


def notes_of_result(volume: Volume, target: Path) -> tuple[str, ...]:
    """What a user should know of how `write` stores a result of this volume at `target`."""
    if not is_series(volume.format, target):
        return ()
    from .dicom.derived.source import mending_notes
    from .dicom.pixels.reading import DicomHeader

    return mending_notes(volume.header) if isinstance(volume.header, DicomHeader) else ()


def check_voxel_type(volume: Volume, target: Path, dtype: "np.dtype[Any]") -> None:
    """Raise UnsupportedScanError if a result of this volume at `target` cannot be of this type."""
    if is_series(volume.format, target):
        if dtype.kind == "f":
            raise UnsupportedScanError(
                f"The result of a DICOM series is stored as 16-bit integers, not as {dtype}; use "
                "setting format=nifti, or another setting output-type."
            )
    elif volume.format == "nifti" and not nifti_writing.can_store(volume, dtype):
        raise UnsupportedScanError(
            f"The result cannot be stored as {dtype}, which Analyze does not have; convert the "
            "scan to NIfTI, or use another setting output-type."
        )


def files_at(target: Path) -> list[Path]:
    """The files of a result that is there: those of its folder, or those beside each other."""
    if target.is_dir():
        return sorted(path for path in target.rglob("*") if not path.is_dir())
    # Path.exists raises where a name is too long.
    return [path for path in places(target) if os.path.exists(path)]  # noqa: PTH110


def places(target: Path) -> tuple[Path, ...]:
    """Every file that `write` may make for `target`, which comes first."""
    suffix = target.suffix.lower()
    if target.name.lower().endswith((".hdr", ".hdr.gz")):
        return target, image_beside(target), mat_beside(target)
    return target, *(target.with_suffix(voxels) for voxels in VOXELS_BESIDE.get(suffix, ()))


def places_for(target: Path, source: Study) -> tuple[Path, ...]:
    """Those of `places` that a result of `source` may take: SPM's .mat if the source has one."""
    has_mat = any(file.suffix == MAT_SUFFIX for file in source.files)
    return tuple(place for place in places(target) if has_mat or place.suffix != MAT_SUFFIX)


def places_made(target: Path, source: Study) -> tuple[Path, ...]:
    """Those of `places` that `write` makes of a source, whose voxels may be packed: as far as its
    header can be read.
    """
    if target.suffix.lower() not in VOXELS_BESIDE:
        return places(target)
    with suppress(ScanError, OSError):
        beside = voxels_beside(target, read_text_header(source.files[0]).storage.is_packed)
        return (target, beside) if beside else (target,)
    return (target,)


def map_beside(target: Path, kind: MapKind) -> Path:
    """Where a map about the result at `target` stands: a file or folder as the result is.

    No result can have its place, as `discover` takes nothing of such a name for a scan.
    """
    stem = scan_stem(target)
    return target.with_name(map_name(stem, kind, target.name[len(stem) :]))
