"""A scan before its voxels are read, by its header alone."""

from dataclasses import dataclass

import numpy as np

from .file_headers import read_grid
from .reading import causes_named
from .volume import Grid, Study, Volume


@dataclass(frozen=True, slots=True)
class UnreadScan:
    """What reading a scan gives, and takes.

    volume: with one voxel in the place of all. reading_bytes: of memory, held at most while it is
    read, its voxels included.
    """

    volume: Volume
    reading_bytes: int


def look_at(study: Study, volume_index: int | None = None) -> UnreadScan:
    """A scan that `read` would read. Slices of a DICOM series whose headers are not looked at, all
    but the first and the last, may make more of it.

    Raises ScanError.
    """
    grid = _grid(study, volume_index)
    i, j, k = grid.extents[:3]
    voxels = np.broadcast_to(np.zeros((), grid.voxel_type), (i, j, k))
    volume = Volume(voxels, grid.affine, None, study.format, grid.slope, grid.intercept)
    return UnreadScan(volume, grid.reading_bytes)


def _grid(study: Study, volume_index: int | None) -> Grid:
    if study.format != "dicom":
        return read_grid(study)
    from .dicom.pixels import stack_header  # late, as other scans need nothing of it

    with causes_named(study.files[0]):
        return stack_header.read_grid(study, volume_index)
