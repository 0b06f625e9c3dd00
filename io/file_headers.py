"""What the headers of NIfTI, NRRD and MetaImage files say, without their voxels."""

import math
from dataclasses import dataclass, replace

from .errors import UnreadableScanError, UnsupportedScanError
from .files.header_limits import check_start, pick_volume
from .reading import causes_named
from .volume import Grid, Study, spacing_of


@dataclass(frozen=True, slots=True)
class FileHeader:
    """A look at a scan file.

    extents: i, j, k. spacing: along them, in millimetres. volumes: how many it holds. unreadable,
    unsupported: why it would fail; None for each that is not so. notes: what of its geometry has to
    be believed.
    """

    extents: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()
    volumes: int = 0
    unreadable: str | None = None
    unsupported: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def refusal(self) -> str | None:
        """Why it would not be translated."""
        return self.unreadable or self.unsupported


def read_file_header(study: Study, volume_index: int | None = None) -> FileHeader:
    """The header of a study that is no DICOM series; whatever is wrong with it is in the answer.

    volume_index: the volume that is to be read; without one, a file of several is unsupported.
    """
    try:
        grid = read_grid(study)
    except UnreadableScanError as error:
        return FileHeader(unreadable=str(error))
    except UnsupportedScanError as error:
        return FileHeader(unsupported=str(error))
    volumes = math.prod(grid.extents[3:])
    found = FileHeader(grid.extents[:3], spacing_of(grid.affine), volumes, notes=grid.notes)
    try:
        pick_volume(study.files[0], grid.extents, volume_index)
    except UnsupportedScanError as error:
        return replace(found, unsupported=str(error))
    return found


def read_study_header(study: Study, volume_index: int | None = None) -> FileHeader:
    """As `read_file_header`, of a study of one scan or several: extents and spacing of the first,
    and what is wrong with any; an obstacle counts as that.
    """
    headers = [read_file_header(scan, volume_index) for scan in study.channels]
    if len(headers) == 1 and study.obstacle is None:
        return headers[0]
    reason = study.obstacle.reason if study.obstacle else None
    return replace(
        headers[0],
        unreadable=next((header.unreadable for header in headers if header.unreadable), None),
        unsupported=next((header.unsupported for header in headers if header.unsupported), reason),
        notes=tuple(note for header in headers for note in header.notes),
    )


def read_grid(study: Study) -> Grid:
    """Where the voxels of a study lie that is no DICOM series. Raises ScanError."""
    with causes_named(study.files[0]):
        for file in study.files:
            check_start(file)
        match study.format:
            case "nifti":
                from .formats import nifti

                return nifti.read_grid(study)
            case "nrrd" | "metaimage":
                from .formats import nrrd_metaimage

                return nrrd_metaimage.read_grid(study)
            case "dicom":
                raise TypeError("the grid of a DICOM series stands in all of its slices")
