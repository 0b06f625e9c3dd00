"""NIfTI-1, NIfTI-2 and Analyze 7.5: nibabel handles headers, voxels are read without it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from ..errors import UnsupportedScanError
from ..files.header_limits import check_extents, check_size, pick_volume, storage_of
from ..files.nifti_start import HeaderStart, gzip_unpacker
from ..files.regular import is_there, read_regular
from ..files.streams import (
    GOES_ON,
    GZIP_ERRORS,
    GZIP_MAGIC,
    UNPACKING_BYTES,
    end_of_gzip,
    expect_end,
    fill,
    is_gzip_name,
    native,
    open_reader,
    skip,
)
from ..volume import Affine, Empty, Grid, Study, Volume
from . import nifti_writing
from .format import Format, HeaderLabels, ResultToWrite
from .geometry import shear_notes
from .nifti_header import (
    NO_SCANS,
    Header,
    SpmHeader,
    affine_of,
    as_nifti,
    header_beside,
    header_in,
    header_notes,
    image_beside,
    is_analyze,
    is_single_file,
    read_header,
    scaling_of,
    voxel_type_of,
    with_unit_quaternion,
)
from .spm import MAT_SUFFIX, mat_beside, read_mat

_Pick: TypeAlias = Callable[[Path, Sequence[int]], range]
"""Function that picks the volumes of a file to read, by its path and the extents of all axes."""


def _read_picked(study: Study, pick: _Pick, empty: Empty) -> Iterator[Volume]:
    """Read volumes; if other bytes follow a gzip stream, read the remaining ones up to its end.

    Only a file that fails is searched for that end, as this unpacks it once more.
    """
    done = 0

    def counted(volume: Volume) -> Volume:
        nonlocal done
        done += 1
        return volume

    try:
        yield from map(counted, _read(study, pick, empty, {}))
        return
    except (EOFError, *GZIP_ERRORS):
        packed = [path for path in study.files[:2] if is_gzip_name(path)]
        ends = {path: end for path in packed if (end := end_of_gzip(path)) is not None}
        if not ends:
            raise
    rest = _read(study, lambda path, extents: pick(path, extents)[done:], empty, ends)
    yield from map(partial(_noted, after=(GOES_ON,)), rest)


def _noted(volume: Volume, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Volume:
    return replace(volume, notes=(*before, *volume.notes, *after))


def _read(study: Study, pick: _Pick, empty: Empty, ends: Mapping[Path, int]) -> Iterator[Volume]:
    """Read volumes; ends: how many bytes of a packed file to read, if not all."""
    path = study.files[0]
    with open_reader(path, ends.get(path)) as stream:
        header, notes = with_unit_quaternion(read_header(stream, path))
        if is_single_file(path):
            offset = header.get_data_offset()
            volumes = _read_volumes(stream, path, header, offset, pick, empty)
            yield from map(partial(_noted, before=notes), volumes)
            return
    image, *mats = study.files[1:]
    offset = int(header["vox_offset"])
    with open_reader(image, ends.get(image)) as stream:
        check_size(image, offset, storage_of(image))
        skip(stream, offset)
        volumes = _read_volumes(stream, image, header, offset, pick, empty, *mats)
        yield from map(partial(_noted, before=notes), volumes)


def _placed_by_spm(volume: Volume, mat: Path, volume_index: int) -> Volume:
    """Return the volume placed by the .mat file next to it; only Analyze leaves that open."""
    analyze: Header = volume.header
    if not is_analyze(analyze):
        return volume
    affine = read_mat(mat, volume_index)
    if affine is None:
        return replace(volume, notes=(*volume.notes, _NOT_OF_SPM))
    header = SpmHeader(analyze, read_regular(mat))
    return replace(volume, affine=affine, header=header, notes=_spm_notes(affine))


_NOT_OF_SPM = "the .mat file next to it is not from SPM and is ignored"


def _spm_notes(affine: Affine) -> tuple[str, ...]:
    return "its position is taken from the SPM .mat file next to it", *shear_notes(affine)


def _header_at(path: Path, end: int | None) -> Header:
    with open_reader(path, end) as stream:
        return read_header(stream, path)


def _read_volumes(
    stream: BinaryIO,
    path: Path,
    header: Header,
    offset: int,
    pick: _Pick,
    empty: Empty,
    mat: Path | None = None,
) -> Iterator[Volume]:
    """Read volumes; the end of the stream is checked before the last one is yielded.

    mat: the SPM file next to it, if there is one. No volume is kept here while the next one is
    read.
    """
    extents = tuple(int(extent) for extent in header.get_data_shape())
    check_extents(path, extents)
    stored = voxel_type_of(header, path)
    picked = pick(path, extents)
    affine = affine_of(header, path)
    volume_bytes = math.prod(extents[:3]) * stored.itemsize
    all_bytes = volume_bytes * math.prod(extents[3:])
    check_size(path, offset + all_bytes, storage_of(path), volume_bytes)
    slope, intercept = scaling_of(header, path)
    notes = header_notes(header, affine)
    skip(stream, picked.start * volume_bytes)
    for index in picked:
        raw = empty((volume_bytes,), np.uint8)
        fill(stream, raw.data)
        if index == picked[-1]:
            skip(stream, all_bytes - (index + 1) * volume_bytes)
            expect_end(stream)
        voxels = native(raw.view(stored)).reshape(extents[:3], order="F")
        volume = Volume(voxels, affine, header, "nifti", slope, intercept, notes=notes)
        del raw, voxels
        yield _placed_by_spm(volume, mat, index) if mat else volume
        del volume


_FIRST_BYTES, _MOST_BYTES = 2048, 1 << 15
"""Bytes of a NIfTI file that are searched for labels: a usual header with an extension, and one
with the longest names."""
_EXTENSION_HEADER_BYTES = 8


def _start_of(stored: bytes) -> bytes:
    """The first bytes of a file, unpacked if it is gzip: up to the voxels if these come soon."""
    if not stored.startswith(GZIP_MAGIC):
        return stored
    unpacker = gzip_unpacker()
    start = unpacker.decompress(stored, _FIRST_BYTES)
    if (header := HeaderStart.of(start)) and _end_of_header(header) > _FIRST_BYTES:
        start += unpacker.decompress(unpacker.unconsumed_tail, _MOST_BYTES - _FIRST_BYTES)
    return start


def _extensions(header: HeaderStart) -> Iterator[str]:
    start, size = header.start, header.size
    if not header.magic.startswith(b"n") or not start[size : size + 1].strip(b"\0"):
        return
    end = min(_end_of_header(header), len(start))
    at = size + 4
    while at + _EXTENSION_HEADER_BYTES <= end:
        length, _ = header.numbers("ii", at)
        if length < _EXTENSION_HEADER_BYTES:
            return
        content = start[at + _EXTENSION_HEADER_BYTES : min(at + length, end)]
        yield content.rstrip(b"\0").decode("ascii", "replace")
        at += length


def _end_of_header(header: HeaderStart) -> int:
    """Return the offset of voxels in the same file; if elsewhere, more than is read."""
    offset, is_single = header.voxel_offset, header.magic.startswith(b"n+")
    return int(offset) if is_single and header.size < offset < _MOST_BYTES else _MOST_BYTES


class Nifti(Format):
    """One file with header and voxels, or a pair .hdr and .img, perhaps with a .mat of SPM."""

    name = "nifti"
    suffixes = (".nii", ".nii.gz", ".hdr", ".hdr.gz")
    voxel_suffixes = (".img", ".img.gz")
    header_suffix = ".hdr"
    result_suffixes = (".nii", ".nii.gz")
    writes = "nifti"

    def header_beside(self, voxels: Path) -> Path:
        """Return the path of the .hdr of an .img."""
        return header_beside(voxels)

    def missing_file(self, header: Path) -> Path | None:
        """Return the .img of a .hdr if it does not exist."""
        if is_single_file(header) or is_there(image_beside(header)):
            return None
        return image_beside(header)

    def other_files(self, header: Path) -> list[Path]:
        """Return the .img of a .hdr, and the .mat of SPM if it exists."""
        if is_single_file(header):
            return []
        mat = mat_beside(header)
        return [image_beside(header), mat] if is_there(mat) else [image_beside(header)]

    def files_to_check(self, study: Study) -> tuple[Path, ...]:
        """Return the files of a pair, of which not every reader opens each."""
        return () if is_single_file(study.files[0]) else study.files

    def labels(self, file: BinaryIO) -> HeaderLabels | None:
        """Return texts of extensions and of the description, and the meaning of the intent."""
        header = HeaderStart.of(_start_of(file.read(_MOST_BYTES)))
        if header is None:
            return None
        contents = None if header.intent is None else NO_SCANS.get(header.intent)
        return HeaderLabels((*_extensions(header), *header.texts), contents)

    def read_grid(self, study: Study, volume_index: int | None) -> Grid:
        """Read the grid of all volumes, without voxels; raises what `read` raises."""
        del volume_index
        path = study.files[0]
        image = path if is_single_file(path) else study.files[1]
        try:
            header = _header_at(path, None)
        except (EOFError, *GZIP_ERRORS):
            end = end_of_gzip(path) if is_gzip_name(path) else None
            if end is None:
                raise
            header = _header_at(path, end)
        header, notes = with_unit_quaternion(header)
        extents = tuple(int(extent) for extent in header.get_data_shape())
        check_extents(path, extents)
        voxel_type = voxel_type_of(header, path)
        stored_bytes = math.prod(extents) * voxel_type.itemsize
        held = math.prod(extents[:3]) * voxel_type.itemsize
        check_size(image, int(header["vox_offset"]) + stored_bytes, storage_of(image), held)
        affine = affine_of(header, path)
        grid = Grid(
            extents,
            affine,
            (*notes, *header_notes(header, affine)),
            voxel_type.newbyteorder("="),
            held + UNPACKING_BYTES,
            *scaling_of(header, path),
        )
        mats = () if is_single_file(path) or not is_analyze(header) else study.files[2:]
        if not mats:
            return grid
        placed = read_mat(mats[0], 0)
        if placed is None:
            return replace(grid, notes=(*grid.notes, _NOT_OF_SPM))
        return replace(grid, affine=placed, notes=_spm_notes(placed))

    def read(self, study: Study, volume_index: int | None, empty: Empty) -> Volume:
        """Read one volume; raises ScanError, EOFError, OSError and what isal and nibabel raise."""

        def pick(path: Path, extents: Sequence[int]) -> range:
            index = pick_volume(path, extents, volume_index)
            return range(index, index + 1)

        [volume] = _read_picked(study, pick, empty)
        return volume

    def read_each(self, study: Study, empty: Empty) -> Iterator[Volume]:
        """Read all volumes, each on demand; raises what `read` raises."""

        def one_of_all(volume: Volume) -> Volume:
            further = tuple(int(extent) for extent in header_in(volume).get_data_shape()[3:])
            return replace(volume, further=further if math.prod(further) > 1 else ())

        # Not in a loop, whose variable would hold a volume while the next is read; so below.
        every = _read_picked(study, lambda _, extents: range(math.prod(extents[3:])), empty)
        yield from map(one_of_all, every)

    def converted(self, volume: Volume, target: Path, step: tuple[float, str]) -> Volume:
        """Return the volume with a NIfTI header; the volume itself for a pair of files."""
        return as_nifti(volume, *step) if is_single_file(target) else volume

    def write(self, result: ResultToWrite) -> dict[str, str]:
        """Store the volume in the header of its source."""
        return nifti_writing.write(result)

    def is_written_in_order(self, target: Path) -> bool:
        """Return whether header and voxels share the file."""
        return is_single_file(target)

    def check_voxel_type(self, volume: Volume, dtype: "np.dtype[Any]") -> None:
        """Raise UnsupportedScanError for a type that the source's header has no code for."""
        if not nifti_writing.can_store(volume, dtype):
            raise UnsupportedScanError(
                f"The result cannot be stored as {dtype}, which Analyze does not have; convert the "
                "scan to NIfTI, or use another setting output-type."
            )

    def result_files(self, target: Path) -> tuple[Path, ...]:
        """Return the file, or header, voxels and the .mat of SPM."""
        if is_single_file(target):
            return (target,)
        return target, image_beside(target), mat_beside(target)

    def result_files_for(self, target: Path, source: Study) -> tuple[Path, ...]:
        """Return the files without the .mat unless the source has one."""
        has_mat = any(file.suffix == MAT_SUFFIX for file in source.files)
        files = self.result_files(target)
        return tuple(file for file in files if has_mat or file.suffix != MAT_SUFFIX)


NIFTI = Nifti()
