"""Read a study's voxels and geometry; every failure becomes one sentence that tells its cause.

What reads a format is loaded with the first study of it.
"""

import errno
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

from .errors import UnreadableScanError
from .files.header_limits import check_start
from .files.regular import NotRegularError
from .files.streams import GZIP_ERRORS, TooManyBytesError
from .formats import nifti
from .volume import Empty, Study, Volume

nibabel: Any = _nibabel  # typed only in part


def read(study: Study, volume_index: int | None = None, empty: Empty = np.empty) -> Volume:
    """The study's volume, its voxels in their stored type.

    volume_index: which volume, from 0, of a file that holds several; a file of one ignores it.
    empty: where the memory of the voxels comes from.
    Raises UnreadableScanError for a missing, forbidden, empty, truncated, damaged or hostile file,
    and UnsupportedScanError for a sound one that is not a single 3D volume of plain numbers.
    """
    path = study.files[0]
    with causes_named(path):
        for file in study.files:
            check_start(file)
        match study.format:
            case "nifti":
                return nifti.read(study, volume_index, empty)
            case "dicom":
                from .dicom.pixels import reading as dicom

                return dicom.read(study, volume_index, empty)
            case "nrrd" | "metaimage":
                from .formats import nrrd_metaimage

                return nrrd_metaimage.read(study, volume_index, empty)


def read_each(study: Study, empty: Empty = np.empty) -> Iterator[Volume]:
    """All volumes of a study, in the order of their numbers, each read when it is asked for.

    Raises what `read` raises, for a file that is cut off once its end is reached. A DICOM series
    of several is refused.
    """
    path = study.files[0]
    with causes_named(path):
        for file in study.files:
            check_start(file)
        match study.format:
            case "nifti":
                yield from nifti.read_each(study, empty)
            case "nrrd" | "metaimage":
                from .formats import nrrd_metaimage

                yield from nrrd_metaimage.read_each(study, empty)
            case "dicom":
                yield read(study, None, empty)


def as_one_study(volumes: Sequence[Volume]) -> tuple[Volume, ...]:
    """The scans that results are made of; the first, as which they are written, knows the others.

    DICOM alone has a place for that.
    """
    first, *others = volumes
    if not others or first.format != "dicom":
        return tuple(volumes)
    from .dicom.pixels import reading as dicom

    return dicom.beside_each_other(volumes), *others


@contextmanager
def causes_named(path: Path) -> Generator[None]:
    """Name the cause behind what the file system, isal and nibabel raise."""
    try:
        yield
    except EOFError as error:
        raise UnreadableScanError(
            f"{path} is truncated: it ends before all that its header promises; copy it again."
        ) from error
    except TooManyBytesError as error:
        raise UnreadableScanError(
            f"{path} holds more than its header promises, so one of them is wrong; export it again."
        ) from error
    except GZIP_ERRORS as error:
        raise UnreadableScanError(
            f"{path} is damaged: its gzip stream cannot be unpacked ({error}); copy it again."
        ) from error
    except OSError as error:
        raise UnreadableScanError(_refusal(path, error)) from error
    except MemoryError as error:
        raise UnreadableScanError(
            f"{path} does not fit this machine's free memory; close programs or use a larger one."
        ) from error
    except (nibabel.spatialimages.HeaderDataError, ValueError) as error:
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
            return f"{file} may not be read by this user; ask for read permission."
        case errno.EISDIR:
            return f"{file} is a folder where a scan file was expected; check the path."
        case None:
            return f"{path} is damaged ({error}); copy it again."
        case _:
            return f"{file} cannot be read: the system says {error.strerror}; check its disk."
