"""Interface of a scan format for the code that finds, reads and writes scans."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import WriteError
from ..files.parts import NO_GATE, Gate
from ..files.streams import Arrival, all_there
from ..volume import AnyArray, Derivation, Empty, Grid, Study, Volume


@dataclass(frozen=True, slots=True)
class HeaderLabels:
    """Texts of a header, and the kind of its voxels.

    texts: those that may hold the mark of a result. contents: such as "segments", in words; None if
    the voxels may be those of a scan.
    """

    texts: Iterable[str]
    contents: str | None = None


@dataclass(frozen=True, slots=True)
class ResultToWrite:
    """Volume to store, and where and when it is stored.

    target: path of the result; its suffix selects the variant. derivation: recorded by DICOM. gate:
    passed once all voxels are written. arrival: of the voxels, slab by slab. series: voxels of all
    volumes of a series, in place of those of `volume`; not of DICOM.
    """

    volume: Volume
    target: Path
    derivation: Derivation | None = None
    gate: Gate = NO_GATE
    arrival: Arrival = all_there
    series: Iterable[AnyArray] | None = None


class Format(ABC):
    """A format of scans. `FORMATS` in registry.py lists the instances.

    name: as reports and records have it. suffixes: of the files that are opened first, in small
    letters; none for DICOM, whose files are recognised by their contents. voxel_suffixes: of files
    of voxels that `header_beside` describes. header_suffix: of those headers. result_suffixes: of
    files that can hold the result of any scan. writes: value of setting format that selects the
    last of them; None for a format that is only read. has_scale: whether its files have a slope and
    an intercept. is_series: whether a scan and a result are many files in a folder, without a
    suffix.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    voxel_suffixes: tuple[str, ...] = ()
    header_suffix: str = ""
    result_suffixes: tuple[str, ...] = ()
    writes: str | None = None
    has_scale: bool = True
    is_series: bool = False

    def header_beside(self, voxels: Path) -> Path:
        """Return the path of the header that describes a file of voxels."""
        return voxels

    def missing_file(self, header: Path) -> Path | None:
        """Return a file that must exist next to a header and does not, or None."""
        del header
        return None

    def other_files(self, header: Path) -> list[Path]:
        """Return the files that belong to a header; those of a damaged header fail when read."""
        del header
        return []

    def files_to_check(self, study: Study) -> tuple[Path, ...]:
        """Return the files whose start nothing checks when they are read."""
        return study.files

    def labels(self, file: BinaryIO) -> HeaderLabels | None:
        """Return the labels in a header, or None if the file is of another format.

        file: open for reading, at its start. Raises OSError and zlib.error.
        """
        del file
        return None

    @abstractmethod
    def read_grid(self, study: Study, volume_index: int | None) -> Grid:
        """Read the grid of all volumes, without voxels; raises what `read` raises."""

    @abstractmethod
    def read(self, study: Study, volume_index: int | None, empty: Empty) -> Volume:
        """Read one volume; raises ScanError, and what `causes_named` of io/reading.py explains."""

    @abstractmethod
    def read_each(self, study: Study, empty: Empty) -> Iterator[Volume]:
        """Read all volumes, each on demand; raises what `read` raises."""

    def joined(self, volumes: Sequence[Volume]) -> tuple[Volume, ...]:
        """Return the scans of one study; the first refers to the others if the format can."""
        return tuple(volumes)

    def step_of(self, volume: Volume) -> tuple[float, str]:
        """Return the step from one volume of a series to the next and its unit; NaN if unknown."""
        del volume
        return math.nan, ""

    def converted(self, volume: Volume, target: Path, step: tuple[float, str]) -> Volume:
        """Return a volume of another format with a header of this one. Raises ScanError.

        step: from one volume of a series to the next, and its unit.
        """
        del target, step
        raise TypeError(f"{volume.format} is not converted to {self.name}")

    def write(self, result: ResultToWrite) -> dict[str, str]:
        """Store a result of this format, as `write` of io/writing.py describes."""
        raise TypeError(f"{self.name} is only read, not {result.target}")

    def is_written_in_order(self, target: Path) -> bool:
        """Return whether `write` needs the header and then slice after slice."""
        del target
        return False

    def result_notes(self, volume: Volume) -> tuple[str, ...]:
        """Return notes for the user about how a result of this volume is stored."""
        del volume
        return ()

    def check_voxel_type(self, volume: Volume, dtype: "np.dtype[Any]") -> None:
        """Raise UnsupportedScanError if a result cannot have this voxel type.

        volume: as `converted` returns it.
        """
        del volume, dtype

    def check_name(self, target: Path) -> None:
        """Raise WriteError if a result of this name could not be written, or not read again."""
        if self.writes is None:
            raise WriteError(
                f"{target} was not written: {self.name} files are only read; choose a name that "
                "ends in .nii.gz."
            )

    def result_files(self, target: Path) -> tuple[Path, ...]:
        """Return every path that `write` may use for `target`, which comes first."""
        return (target,)

    def result_files_for(self, target: Path, source: Study) -> tuple[Path, ...]:
        """Return those of `result_files` that a result of `source` may use."""
        del source
        return self.result_files(target)

    def result_files_made(self, target: Path, source: Study) -> tuple[Path, ...]:
        """Return those of `result_files` that `write` makes, as far as the source can be read."""
        del source
        return self.result_files(target)
