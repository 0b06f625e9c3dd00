"""What the headers of NIfTI, NRRD and MetaImage files say, without their voxels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .errors import UnreadableScanError, UnsupportedScanError
from .files.header_limits import check_series, check_start, pick_volume
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


def read_file_header(
    study: Study, volume_index: int | None = None, *, every_volume: bool = False
) -> FileHeader:
    """The header of a study that is no DICOM series; whatever is wrong with it is in the answer.

    volume_index: the volume that is to be read; without one, a file of several is unsupported,
    unless every volume is to be read.
    """
    try:
        grid = read_grid(study)
    except UnreadableScanError as error:
        return FileHeader(unreadable=str(error))
    except UnsupportedScanError as error:
        return FileHeader(unsupported=str(error))
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
    """As `read_file_header`, of a study of one scan or several: extents and spacing of the first,
    and what is wrong with any; an obstacle counts as that.
    """
    headers = [
        read_file_header(scan, volume_index, every_volume=every_volume) for scan in study.channels
    ]
    if len(headers) == 1 and study.obstacle is None:
        return headers[0]
    reason = study.obstacle.reason if study.obstacle else None
    if every_volume and reason is None:
        reason = differing_counts([header.volumes for header in headers])
    return replace(
        headers[0],
        unreadable=next((header.unreadable for header in headers if header.unreadable), None),
        unsupported=next((header.unsupported for header in headers if header.unsupported), reason),
        notes=tuple(note for header in headers for note in header.notes),
    )


def differing_counts(volumes: Sequence[int]) -> str | None:
    """Why the scans of a study, with so many volumes each, cannot be translated volume by volume;
    None if they can.
    """
    if len(set(volumes)) == 1:
        return None
    counts = " and ".join(map(str, volumes))
    return (
        f"its scans hold {counts} volumes, and setting volume=all takes as many of each; choose "
        "one with setting volume=N"
    )


def read_grid(study: Study, *, every_volume: bool = False) -> Grid:
    """Where the voxels of a study lie that is no DICOM series. Raises ScanError.

    every_volume: whether all of its volumes are to be read, one by one.
    """
    grid = _read_grid(study)
    if every_volume:
        check_series(study.files[0], grid.extents, is_series=grid.is_series)
    return grid


def _read_grid(study: Study) -> Grid:
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
