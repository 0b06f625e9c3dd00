"""Write a volume the way its source was written, whole or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .files.parts import NO_GATE, Gate
from .files.streams import Arrival, all_there
from .formats.dicom import DICOM
from .formats.format import ResultToWrite
from .formats.registry import format_at, format_named, result_format, scan_stem
from .maps import MapKind, map_name
from .volume import AnyArray, Derivation, Study, Volume


def write(
    volume: Volume,
    target: Path,
    derivation: Derivation | None = None,
    gate: Gate = NO_GATE,
    arrival: Arrival = all_there,
    series: Iterable[AnyArray] | None = None,
) -> dict[str, str]:
    """Store `volume` at `target` in its source's format and header; the suffix selects the variant.

    A DICOM series becomes a folder, which records the derivation; a scan of another format than
    that of the suffix is converted.
    In the header only what depends on the voxels changes: their type, slope and intercept, the
    number of volumes, and if they are in another unit the display range and the intent. Raises
    WriteError and then leaves nothing behind.

    arrival: of the voxels, for which a result that `is_written_in_order` waits slab by slab; the
    gate is passed once all are written. series: voxels of all volumes of a series, in place of
    those of `volume`; not of DICOM.

    Returns the SHA-256, in hexadecimal, of those files that were hashed as they were written.
    """
    volume = as_at(target, volume)
    format_named(volume.format).check_name(target)
    result = ResultToWrite(volume, target, derivation, gate, arrival, series)
    return format_named(volume.format).write(result)


def as_at(target: Path, volume: Volume) -> Volume:
    """Return the volume in the format of its target, in a new header if that is another one.

    Raises WriteError if its name cannot be that of a result.
    """
    source, wanted = format_named(volume.format), result_format(volume.format, target)
    wanted.check_name(target)
    if wanted is source:
        return volume
    return wanted.converted(volume, target, source.step_of(volume))


def is_written_in_order(volume: Volume, target: Path) -> bool:
    """Return whether `write` needs only the header and then slice after slice, in their order."""
    order = sorted(range(3), key=lambda axis: volume.voxels.strides[axis])
    return (format_at(target) or DICOM).is_written_in_order(target) and order == [0, 1, 2]


def is_series(source: str, target: Path) -> bool:
    """Whether a result at `target` is a DICOM series, the one kind that records its derivation.

    source: format of its scan.
    """
    return result_format(source, target).is_series


def notes_of_result(volume: Volume, target: Path) -> tuple[str, ...]:
    """Return notes for the user about how `write` stores a result of this volume at `target`."""
    return result_format(volume.format, target).result_notes(volume)


def check_voxel_type(volume: Volume, dtype: "np.dtype[Any]") -> None:
    """Raise UnsupportedScanError if a result cannot be of this type; volume: from `as_at`."""
    format_named(volume.format).check_voxel_type(volume, dtype)


def files_at(target: Path) -> list[Path]:
    """Return the files of an existing result: those in its folder, or its header and voxels."""
    if target.is_dir():
        return sorted(path for path in target.rglob("*") if not path.is_dir())
    # Path.exists raises where a name is too long.
    return [path for path in result_files(target) if os.path.exists(path)]  # noqa: PTH110


def result_files(target: Path) -> tuple[Path, ...]:
    """Return every file that `write` may make for `target`, which comes first."""
    return (format_at(target) or DICOM).result_files(target)


def result_files_for(target: Path, source: Study) -> tuple[Path, ...]:
    """Return those of `result_files` that a result of `source` may take."""
    return (format_at(target) or DICOM).result_files_for(target, source)


def result_files_made(target: Path, source: Study) -> tuple[Path, ...]:
    """Return those of `result_files` that `write` makes of a source, as far as it can be read."""
    return (format_at(target) or DICOM).result_files_made(target, source)


def map_beside(target: Path, kind: MapKind) -> Path:
    """Return the path of a map about the result at `target`: a file or folder as the result is.

    No result can have its place, as `discover` accepts no scan of such a name.
    """
    stem = scan_stem(target)
    return target.with_name(map_name(stem, kind, target.name[len(stem) :]))
