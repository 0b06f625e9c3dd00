"""DICOM series as a format; pydicom and the modules that use it are loaded with the first one."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedScanError
from ..files.atomic import whole_folder
from ..volume import Empty, Grid, Study, Volume
from .format import Format, ResultToWrite


class Dicom(Format):
    """A series of images, found by their contents, and a folder of images as its result."""

    name = "dicom"
    writes = "dicom"
    is_series = True

    def read_grid(self, study: Study, volume_index: int | None) -> Grid:
        """Read the grid of the images' places; see `reading.read_grid`."""
        from ..dicom.pixels import reading

        return reading.read_grid(study, volume_index)

    def read(self, study: Study, volume_index: int | None, empty: Empty) -> Volume:
        """Read one volume of the series."""
        from ..dicom.pixels import reading

        return reading.read(study, volume_index, empty)

    def read_each(self, study: Study, empty: Empty) -> Iterator[Volume]:
        """Read the one volume; a series of several is refused."""
        yield self.read(study, None, empty)

    def joined(self, volumes: Sequence[Volume]) -> tuple[Volume, ...]:
        """Return the scans; the header of the first lists the others as its sources."""
        if len(volumes) == 1:
            return tuple(volumes)
        from ..dicom.pixels import reading

        return reading.with_other_scans(volumes), *volumes[1:]

    def write(self, result: ResultToWrite) -> dict[str, str]:
        """Store a derived series in the folder `target`, with its derivation."""
        if result.derivation is None:
            raise TypeError("a DICOM series cannot be written without its derivation")
        from ..dicom.derived.writing import write_series

        with whole_folder(result.target, result.gate) as folder:
            write_series(result.volume, folder, result.derivation)
        return {}

    def result_notes(self, volume: Volume) -> tuple[str, ...]:
        """Return notes on changed elements of the source."""
        from ..dicom.derived.elements import result_notes
        from ..dicom.pixels.reading import DicomHeader

        return result_notes(volume.header) if isinstance(volume.header, DicomHeader) else ()

    def check_voxel_type(self, volume: Volume, dtype: "np.dtype[Any]") -> None:
        """Raise UnsupportedScanError for floating-point numbers."""
        del volume
        if dtype.kind == "f":
            raise UnsupportedScanError(
                f"The result of a DICOM series is stored as 16-bit integers, not as {dtype}; use "
                "setting format=nifti, or another setting output-type."
            )


DICOM = Dicom()
