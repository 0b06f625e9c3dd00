"""AFNI's HEAD and BRIK, only read: nibabel parses the header, voxels are read without it."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

from ..errors import UnreadableScanError, UnsupportedScanError
from ..files.header_limits import check_extents, check_size, pick_volume, storage_of
from ..files.regular import is_there, open_regular
from ..files.streams import UNPACKING_BYTES, expect_end, fill, native, open_reader, skip
from ..volume import Affine, Empty, Grid, Study, Volume
from .format import Format
from .geometry import check_position, shear_notes

nibabel: Any = _nibabel  # typed only in part
_HEAD, _BRIK = ".head", ".brik"
_LARGEST_HEAD_BYTES = 1 << 25
"""Limit of a header, whose history of commands may be long."""
_TIMES: dict[Any, str] = {77001: "ms", 77002: "s", 77003: "Hz"}
"""Units of the step in time, by their code."""


def _read_header(path: Path) -> Any:
    """Read a HEAD file. Raises ScanError and OSError."""
    with open_regular(path) as file:
        text = file.read(_LARGEST_HEAD_BYTES).decode("latin-1")
    try:
        header = nibabel.brikhead.AFNIHeader.from_fileobj(io.StringIO(text))
        affine = header.get_affine()
        header.get_data_scaling()
    except Exception as error:  # nibabel raises what Python does at a damaged header
        raise UnreadableScanError(
            f"{path} lacks plain attributes, one type of voxels or IJK_TO_DICOM_REAL "
            f"({_first_line(error)}); convert it to .nii.gz with 3dAFNItoNIFTI."
        ) from error
    check_position(path, affine, "IJK_TO_DICOM_REAL does")
    if header.get_data_dtype().kind == "c":
        raise UnsupportedScanError(
            f"{path} stores complex numbers; save their magnitude as a separate file."
        )
    return header


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].strip() or type(error).__name__


def _extents(header: Any, path: Path) -> tuple[int, ...]:
    extents = tuple(map(int, header.get_data_shape()))
    check_extents(path, extents)
    return extents


def _slopes(header: Any, path: Path) -> list[float]:
    """Return the factor of each volume. Raises UnreadableScanError if one is not finite."""
    factors = header.get_data_scaling()
    slopes = [1.0] * header.get_data_shape()[3] if factors is None else factors.tolist()
    if not all(map(math.isfinite, slopes)):
        raise UnreadableScanError(
            f"{path} has a factor in BRICK_FLOAT_FACS that is not finite; repair its header."
        )
    return slopes


def _read(study: Study, header: Any, picked: range, empty: Empty) -> Iterator[Volume]:
    """Read volumes; the end of the file is checked before the last one is yielded."""
    path, brik = study.files[:2]
    extents, stored = _extents(header, path), header.get_data_dtype()
    affine: Affine = header.get_affine()
    slopes, notes = _slopes(header, path), shear_notes(affine)
    size, count = math.prod(extents[:3]) * stored.itemsize, math.prod(extents[3:])
    check_size(brik, size * count, storage_of(brik), size)
    with open_reader(brik) as stream:
        skip(stream, picked.start * size)
        for index in picked:
            raw = empty((size,), np.uint8)
            fill(stream, raw.data)
            if index == picked[-1]:
                skip(stream, (count - 1 - index) * size)
                expect_end(stream)
            voxels = native(raw.view(stored)).reshape(extents[:3], order="F")
            del raw
            further = extents[3:] if count > 1 and len(picked) == count else ()
            yield Volume(
                voxels, affine, header, "afni", slopes[index], notes=notes, further=further
            )
            del voxels


class Afni(Format):
    """A HEAD file with attributes, and a BRIK or BRIK.gz with the voxels of all volumes."""

    name = "afni"
    suffixes = (_HEAD,)
    voxel_suffixes = (_BRIK, f"{_BRIK}.gz")
    header_suffix = ".HEAD"

    def header_beside(self, voxels: Path) -> Path:
        """Return the path of the HEAD of a BRIK, its letters as large."""
        name = voxels.name[: -len(".gz")] if voxels.suffix.lower() == ".gz" else voxels.name
        is_small = name.endswith(_BRIK)
        return voxels.with_name(Path(name).with_suffix(_HEAD if is_small else ".HEAD").name)

    def _brik(self, header: Path) -> Path:
        ends = (_BRIK,) if header.suffix == _HEAD else (".BRIK",)
        plain, packed = (header.with_suffix(f"{end}{gz}") for end in ends for gz in ("", ".gz"))
        return packed if not is_there(plain) and is_there(packed) else plain

    def missing_file(self, header: Path) -> Path | None:
        """Return the BRIK of a HEAD if it does not exist, packed or not."""
        brik = self._brik(header)
        return None if is_there(brik) else brik

    def other_files(self, header: Path) -> list[Path]:
        """Return the BRIK."""
        return [self._brik(header)]

    def read_grid(self, study: Study, volume_index: int | None) -> Grid:
        """Read the grid of all volumes; slope: of the chosen one, or of the first."""
        path, brik = study.files[:2]
        header = _read_header(path)
        extents, stored = _extents(header, path), header.get_data_dtype()
        held = math.prod(extents[:3]) * stored.itemsize
        check_size(brik, held * math.prod(extents[3:]), storage_of(brik), held)
        slopes = _slopes(header, path)
        return Grid(
            extents,
            header.get_affine(),
            shear_notes(header.get_affine()),
            stored.newbyteorder("="),
            held + UNPACKING_BYTES,
            slopes[min(volume_index or 0, len(slopes) - 1)],
        )

    def read(self, study: Study, volume_index: int | None, empty: Empty) -> Volume:
        """Read one volume; raises ScanError, EOFError, OSError and what isal raises."""
        header = _read_header(study.files[0])
        extents = _extents(header, study.files[0])
        index = pick_volume(study.files[0], extents, volume_index)
        [volume] = _read(study, header, range(index, index + 1), empty)
        return volume

    def read_each(self, study: Study, empty: Empty) -> Iterator[Volume]:
        """Read all volumes, each on demand; raises what `read` raises."""
        header = _read_header(study.files[0])
        count = math.prod(_extents(header, study.files[0])[3:])
        yield from _read(study, header, range(count), empty)

    def step_of(self, volume: Volume) -> tuple[float, str]:
        """Return the step from one volume of a series to the next, and its unit."""
        header: Any = volume.header
        if not isinstance(header, nibabel.brikhead.AFNIHeader):
            return math.nan, ""
        numbers: list[Any] = np.atleast_1d(header.info.get("TAXIS_NUMS", 0)).tolist()
        unit = numbers[2] if len(numbers) > 2 else None
        return float(header.get_zooms()[3]), _TIMES.get(unit, "")


AFNI = Afni()
