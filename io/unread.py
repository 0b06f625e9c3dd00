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
    read, its voxels included. volumes: how many its file holds; of a DICOM series always 1.
    """

    volume: Volume
    reading_bytes: int
    volumes: int = 1


def look_at(
    study: Study, volume_index: int | None = None, *, every_volume: bool = False
) -> UnreadScan:
    """A scan that `read` would read. Slices of a DICOM series whose headers are not looked at, all
    but the first and the last, may make more of it.

    every_volume: whether all volumes are to be read, as by `read_each`. Raises ScanError.
    """
    grid = _grid(study, volume_index, every_volume=every_volume)
    i, j, k = grid.extents[:3]
    voxels = np.broadcast_to(np.zeros((), grid.voxel_type), (i, j, k))
    volume = Volume(voxels, grid.affine, None, study.format, grid.slope, grid.intercept)
    return UnreadScan(volume, grid.reading_bytes, grid.volumes)


def _grid(study: Study, volume_index: int | None, *, every_volume: bool) -> Grid:
    if study.format != "dicom":
        return read_grid(study, every_volume=every_volume)
    from .dicom.pixels import stack_header  # late, as other scans need nothing of it

    with causes_named(study.files[0]):
        return stack_header.read_grid(study, volume_index)
