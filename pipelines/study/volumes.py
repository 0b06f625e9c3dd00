"""Scans of a study: their headers before reading, and their volumes one after another."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from re import sub

import numpy as np

from ...io.reading import UnreadScan, differing_counts, look_at, read, read_each
from ...io.volume import Empty, Study, Volume
from ...io.writing import as_at
from ..errors import PreparationError
from ..settings import TranslateOptions
from .grids import grid_difference
from .plan import INTENSITY_BYTES, StudyPlan

_COPIES_OF_SCAN, _COPIES_OF_RESULT = 3, 2
"""Float32 copies of the values while a channel is resampled: of the scan, and of the result."""


@dataclass(frozen=True, slots=True)
class UnreadStudy:
    """A study as its headers describe it.

    volumes: as in Scans, each with one voxel in the place of all. reading_bytes: peak memory of
    reading all of them. count: volumes in each scan that are translated one by one.
    """

    volumes: tuple[Volume, ...]
    reading_bytes: int
    count: int = 1


def look_at_study(study: Study, options: TranslateOptions) -> UnreadStudy:
    """Return a study as `StudyTranslator.read` would read it. Raises ScanError, and
    PreparationError for scans with different numbers of volumes if every one is requested.
    """
    every = options.every_volume
    scans = [look_at(scan, options.volume_index, every_volume=every) for scan in study.channels]
    counts = [scan.volumes for scan in scans]
    if every and (difference := differing_counts(counts)):
        raise PreparationError(f"The study cannot be translated: {difference}.")
    first = scans[0].volume
    moved = first.with_voxels(np.broadcast_to(np.zeros((), np.float32), first.shape))
    volumes, resampling = list[Volume](), 0
    for scan in scans:
        is_moved = scan.volume is not first and grid_difference(scan.volume, first) is not None
        volumes.append(moved if is_moved else scan.volume)
        if is_moved:
            copies = (
                _COPIES_OF_SCAN * scan.volume.voxels.size + _COPIES_OF_RESULT * moved.voxels.size
            )
            resampling += copies * INTENSITY_BYTES
    volumes[0] = as_at(Path(study.name), volumes[0])
    read = sum(scan.volume.voxels.nbytes for scan in scans)
    reading = max(_one_after_another(scans), read + resampling)
    return UnreadStudy(tuple(volumes), reading, counts[0] if every else 1)


def first_index(scan: Study, options: TranslateOptions) -> int | None:
    """Return the index of the first volume to read; None refuses scans of several. Those of a DICOM
    series cannot all be read.
    """
    return 0 if options.every_volume and not scan.is_dicom else options.volume_index


def _one_after_another(scans: Sequence[UnreadScan]) -> int:
    """Return the peak bytes of reading scans one after another, all of which stay."""
    stay = most = 0
    for scan in scans:
        most = max(most, stay + scan.reading_bytes)
        stay += scan.volume.voxels.nbytes
    return most


class StudyVolumes:
    """Reader of the scans of a study, volume by volume if every volume is requested.

    Files stay open from the first volume to the last, so that packed ones are unpacked once. No
    volume is kept here. One thread at a time may call.

    count: number of volumes; 1 if one is requested. number: index of the volume that was read last.
    unchanged: context entered for each reading.
    """

    def __init__(
        self,
        study: Study,
        options: TranslateOptions,
        empty: Empty = np.empty,
        unchanged: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Raises ScanError and PreparationError."""
        self.count = look_at_study(study, options).count if options.every_volume else 1
        self.number = -1
        self.unchanged = unchanged
        reads = read_each if self.is_series else partial(_alone, options)
        self._each = [reads(scan, empty) for scan in study.channels]

    @property
    def is_series(self) -> bool:
        """Whether there are several volumes."""
        return self.count > 1

    @property
    def current(self) -> str:
        """The volume that was read last, in words; empty if there is only one."""
        return f"volume {self.number} of its {self.count}" if self.is_series else ""

    @property
    def left(self) -> int:
        """Number of volumes still to be read."""
        return self.count - 1 - self.number

    def next(self) -> Iterator[Volume]:
        """Read the next volume of each scan; raises what `read` raises."""
        self.number += 1
        return map(next, self._each)

    def notes_of(self, scan: Volume, plan: StudyPlan) -> tuple[str, ...]:
        """Return a note if later volumes may not fit the voxel type that the first one decides."""
        open_types = [kind for kind in plan.results if kind.voxel_type is None]
        is_open = any(kind.asked or scan.voxels.dtype.kind != "f" for kind in open_types)
        if self.number or not (self.is_series and is_open):
            return ()
        return (
            "the whole result gets the voxel type that the output of this volume needs; a volume "
            "that needs another type fails, and float32 suits all",
        )

    def close(self) -> None:
        """Close the files."""
        self._each.clear()


def _alone(options: TranslateOptions, scan: Study, empty: Empty) -> Iterator[Volume]:
    yield read(scan, first_index(scan, options), empty)


def notes_of_volumes(noted: Sequence[tuple[int, str]], count: int) -> Iterator[str]:
    """Join notes on volumes of a series, each with its volume's index, to notes on all `count` of
    them.

    Notes on several volumes that differ only in their figures appear once.
    """
    alike: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, note in dict.fromkeys(noted):
        alike[sub(r"[\d.]+", "#", note)].append((number, note))
    for notes in alike.values():
        numbers = {number for number, _ in notes}
        (first, text), *_ = notes
        if len(numbers) == count and len({note for _, note in notes}) == 1:
            yield text
        elif len(numbers) == 1:
            yield f"volume {first}: {text}"
        else:
            yield f"volume {first}: {text}; likewise {len(numbers) - 1} more of {count} volumes"
