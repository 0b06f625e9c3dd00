"""A study before its scans are read, by their headers: what is planned, and what reading takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...io.reading import UnreadScan, differing_counts, look_at
from ...io.volume import Study, Volume
from ...io.writing import as_at
from ..errors import PreparationError
from ..settings import TranslateOptions
from .voxels.grids import grid_difference

_FLOAT = np.dtype(np.float32)
_COPIES_OF_SCAN, _COPIES_OF_RESULT = 3, 2
"""Of values in float32 while a channel is resampled: what it is made of, and what becomes of it."""


@dataclass(frozen=True, slots=True)
class UnreadStudy:
    """What reading a study gives, and takes.

    volumes: as of Scans, each with one voxel in the place of all. reading_bytes: of memory, held at
    most until all of them are there. count: how many volumes each scan holds that are translated
    one by one.
    """

    volumes: tuple[Volume, ...]
    reading_bytes: int
    count: int = 1


def look_at_study(study: Study, options: TranslateOptions) -> UnreadStudy:
    """A study that `read_study` would read. Raises ScanError, and PreparationError for scans that
    hold different numbers of volumes where every one is asked for.
    """
    every = options.every_volume
    scans = [look_at(scan, options.volume_index, every_volume=every) for scan in study.channels]
    counts = [scan.volumes for scan in scans]
    if every and (difference := differing_counts(counts)):
        raise PreparationError(f"The study cannot be translated: {difference}.")
    first = scans[0].volume
    moved = first.with_voxels(np.broadcast_to(np.zeros((), _FLOAT), first.shape))
    volumes, resampling = list[Volume](), 0
    for scan in scans:
        is_moved = grid_difference(scan.volume, first) is not None
        volumes.append(moved if is_moved else scan.volume)
        if is_moved:
            copies = (
                _COPIES_OF_SCAN * scan.volume.voxels.size + _COPIES_OF_RESULT * moved.voxels.size
            )
            resampling += copies * _FLOAT.itemsize
    volumes[0] = as_at(Path(study.name), volumes[0])
    read = sum(scan.volume.voxels.nbytes for scan in scans)
    reading = max(_one_after_another(scans), read + resampling)
    return UnreadStudy(tuple(volumes), reading, counts[0] if every else 1)


def first_index(scan: Study, options: TranslateOptions) -> int | None:
    """The number of the volume of a scan that is read first. Those of a DICOM series cannot all be
    read, so that one of several is refused.
    """
    return 0 if options.every_volume and scan.format != "dicom" else options.volume_index


def _one_after_another(scans: Sequence[UnreadScan]) -> int:
    """Bytes held at most while scans are read, all of which stay."""
    stay = most = 0
    for scan in scans:
        most = max(most, stay + scan.reading_bytes)
        stay += scan.volume.voxels.nbytes
    return most
