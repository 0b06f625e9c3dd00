"""Read the headers and voxels of studies; every failure becomes one sentence that names its cause.

The code that reads a format is loaded with the first study of it.
"""

import errno
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

from .errors import UnreadableScanError, UnsupportedScanError, unexpected
from .files.header_limits import check_series, pick_volume
from .files.regular import NotRegularError, open_regular
from .files.streams import GZIP_ERRORS, SUBSTITUTE_BYTES, TooManyBytesError, check_start
from .formats.registry import format_named
from .volume import Empty, Grid, Study, Volume, spacing_of

nibabel: Any = _nibabel  # typed only in part


def read(study: Study, volume_index: int | None = None, empty: Empty = np.empty) -> Volume:
    """Return the study's volume, its voxels in their stored type.

    volume_index: which volume, from 0, of a file that holds several; a file of one ignores it.
    empty: allocates the memory of the voxels.
    Raises UnreadableScanError for a missing, forbidden, empty, truncated, damaged or hostile file,
    and UnsupportedScanError for an intact one that is not a single 3D volume of plain numbers.
    """
    with causes_named(study.files[0]):
        _check_starts(study)
        return format_named(study.format).read(study, volume_index, empty)


def read_each(study: Study, empty: Empty = np.empty) -> Iterator[Volume]:
    """Yield all volumes of a study, in the order of their numbers, each read on demand.

    Raises what `read` raises, for a file that is cut off once its end is reached. A DICOM series
    of several is refused.
    """
    with causes_named(study.files[0]):
        _check_starts(study)
        yield from format_named(study.format).read_each(study, empty)


def _check_starts(study: Study) -> None:
    for path in format_named(study.format).files_to_check(study):
        with open_regular(path) as file:
            start = file.read(SUBSTITUTE_BYTES)
        check_start(path, start)


def as_one_study(volumes: Sequence[Volume]) -> tuple[Volume, ...]:
    """Return the source scans; the first, in whose format results are written, may refer to the
    others.
    """
    return format_named(volumes[0].format).joined(volumes)


_HEADER_ERRORS = nibabel.spatialimages.HeaderDataError, ValueError, ArithmeticError, struct.error
"""Errors of the libraries at the numbers of a damaged header."""


@contextmanager
def causes_named(path: Path) -> Generator[None]:
    """Convert errors of the file system, isal and nibabel to ones that name the cause."""
    try:
        yield
    except EOFError as error:
        raise UnreadableScanError(
            f"{path} is truncated: the file is shorter than its header states; copy it again."
        ) from error
    except TooManyBytesError as error:
        raise UnreadableScanError(
            f"{path} is damaged: the file is longer than its header states, so one of them is "
            "wrong; export it again."
        ) from error
    except GZIP_ERRORS as error:
        raise UnreadableScanError(
            f"{path} is damaged: its gzip stream cannot be decompressed ({error}); copy it again."
        ) from error
    except OSError as error:
        raise UnreadableScanError(_refusal(path, error)) from error
    except MemoryError as error:
        raise UnreadableScanError(
            f"{path} does not fit into free memory; close other programs or use a larger machine."
        ) from error
    except _HEADER_ERRORS as error:
        raise UnreadableScanError(
            f"{path} has a damaged header ({error}); export the scan again."
        ) from error


def _refusal(path: Path, error: OSError) -> str:
    file = error.filename or path
    if isinstance(error, NotRegularError):
        return f"{file} is not a regular file; give a scan file."
    match error.errno:
        case errno.ENOENT:
            return f"{file} is missing; check the path and that its disk is mounted."
        case errno.EACCES | errno.EPERM:
            return f"{file} cannot be read: permission denied; get read permission."
        case errno.EISDIR:
            return f"{file} is a folder, not a scan file; check the path."
        case None:
            return f"{path} is damaged ({error}); copy it again."
        case _:
            return f"{file} cannot be read: {error.strerror}; check its disk."


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Summary of a scan file's header.

    extents: i, j, k. spacing: along them, in millimetres. volumes: how many it holds. unreadable,
    unsupported: why it would fail; None for each that does not apply. notes: assumptions about its
    geometry.
    """

    extents: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()
    volumes: int = 0
    unreadable: str | None = None
    unsupported: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def refusal(self) -> str | None:
        """Reason why it would not be translated, or None."""
        return self.unreadable or self.unsupported


def read_file_header(
    study: Study, volume_index: int | None = None, *, every_volume: bool = False
) -> FileHeader:
    """Summarise the header of a study that is no DICOM series, with its faults.

    volume_index: the volume that is to be read; without one, a file of several is unsupported,
    unless every volume is to be read.
    """
    try:
        grid = read_grid(study)
    except UnreadableScanError as error:
        return FileHeader(unreadable=str(error))
    except UnsupportedScanError as error:
        return FileHeader(unsupported=str(error))
    except Exception as error:  # as in a batch, a failure affects only its study
        return FileHeader(unreadable=unexpected(error))
    path = study.files[0]
    found = FileHeader(grid.extents[:3], spacing_of(grid.affine), grid.volumes, notes=grid.notes)
    try:
        if every_volume:
            check_series(path, grid.extents, is_series=grid.is_series)
        else:
            pick_volume(path, grid.extents, volume_index)
    except UnsupportedScanError as error:
        return replace(found, unsupported=str(error))
    return found


def read_study_header(
    study: Study, volume_index: int | None = None, *, every_volume: bool = False
) -> FileHeader:
    """Return `read_file_header` of a study of one scan or several.

    Extents and spacing are those of the first, errors those of any; a blocker counts as one.
    """
    headers = [
        read_file_header(scan, volume_index, every_volume=every_volume) for scan in study.channels
    ]
    if len(headers) == 1 and study.blocker is None:
        return headers[0]
    reason = study.blocker.reason if study.blocker else None
    if every_volume and reason is None:
        reason = differing_counts([header.volumes for header in headers])
    return replace(
        headers[0],
        unreadable=next((header.unreadable for header in headers if header.unreadable), None),
        unsupported=next((header.unsupported for header in headers if header.unsupported), reason),
        notes=tuple(note for header in headers for note in header.notes),
    )


def differing_counts(volumes: Sequence[int]) -> str | None:
    """Return why scans with so many volumes cannot be translated volume by volume, or None."""
    if len(set(volumes)) == 1:
        return None
    counts = " and ".join(map(str, volumes))
    return (
        f"its scans contain {counts} volumes, but setting volume=all needs equal numbers; select "
        "one with setting volume=N"
    )


def read_grid(study: Study, volume_index: int | None = None, *, every_volume: bool = False) -> Grid:
    """Read the grid of a study, without the voxels. Raises ScanError.

    every_volume: whether all of its volumes are to be read, one by one.
    """
    found = format_named(study.format)
    with causes_named(study.files[0]):
        if not found.is_series:  # of which no more than two files are opened
            _check_starts(study)
        grid = found.read_grid(study, volume_index)
    if every_volume:
        check_series(study.files[0], grid.extents, is_series=grid.is_series)
    return grid


@dataclass(frozen=True, slots=True)
class UnreadScan:
    """Size of a scan, and memory for reading it.

    volume: with one voxel in the place of all. reading_bytes: of memory, held at most while it is
    read, its voxels included. volumes: how many its file holds; of a DICOM series always 1.
    """

    volume: Volume
    reading_bytes: int
    volumes: int = 1


def look_at(
    study: Study, volume_index: int | None = None, *, every_volume: bool = False
) -> UnreadScan:
    """Return the scan that `read` would read, without its voxels. For a DICOM series only the first
    and last headers are read; the other slices may change its grid or type.

    every_volume: whether all volumes are to be read, as by `read_each`. Raises ScanError.
    """
    grid = read_grid(study, volume_index, every_volume=every_volume)
    i, j, k = grid.extents[:3]
    voxels = np.broadcast_to(np.zeros((), grid.voxel_type), (i, j, k))
    volume = Volume(voxels, grid.affine, None, study.format, grid.slope, grid.intercept)
    return UnreadScan(volume, grid.reading_bytes, grid.volumes)
