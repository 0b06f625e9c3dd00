"""NRRD and MetaImage in this program's RAS+ affine."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import ScanError, UnreadableScanError, UnsupportedScanError, WriteError
from ..files.atomic import whole_files
from ..files.file_writers import GzipWriter, HashedFile
from ..files.header_limits import check_series, pick_volume
from ..files.regular import open_regular
from ..files.streams import GOES_ON, all_there, write_volumes
from ..volume import LPS_TO_RAS, Affine, AnyArray, Empty, Grid, Study, SyntheticMark, Volume
from . import metaimage_header, nrrd_header
from .format import Format, HeaderLabels, ResultToWrite
from .geometry import MILLIMETRES, assumed, check_position, shear_notes, unit_notes
from .marks import FILE_NOTES, WHOLE_MARK, json_of, line_of, mark_in_text
from .stored_voxels import StoredVoxels, read_series, read_voxels, scratch_bytes
from .text_header import LONGEST_HEADER_BYTES, HeaderFile, TextHeader, TextStorage, text_of

_NRRD_SUFFIXES = (".nrrd", ".nhdr")
_VOXELS_BESIDE = {".mhd": (".raw", ".zraw"), ".nhdr": (".raw", ".raw.gz")}
"""Suffixes of the file of voxels that are stored as they are, and of packed ones."""
_CAN_STAND: dict[str, re.Pattern[bytes]] = {
    "nrrd": re.compile(rb"(?!LIST)[^\s%][^\r\n\0%]*"),
    "metaimage": re.compile(rb"[^\s%][^\r\n\0%]*"),
}
"""Names of files that ITK finds by a header; others it takes for patterns or cuts."""
_DICOM_KEY = re.compile(r"(?:DICOM_)?([0-9a-f]{4})[|_]([0-9a-f]{4})(?:_.*)?", re.IGNORECASE)
"""Names that ITK and dcm2niix give to elements of the DICOM series that a file was made of."""
_OF_PATIENT = "0010"
_OF_STUDY = {
    *("0008|0020", "0008|0030", "0008|0050", "0008|1030"),
    *("0020|000d", "0020|0010", "0020|0052"),
}
"""Date, time, accession number and description; identifiers of study and frame of reference."""
_MODALITY = "modality"
_NRRD_MAGIC = b"NRRD"
_SEGMENTS = b"\nSegment0_ID:="
"""Text that 3D Slicer writes into the NRRD file of a segmentation."""
_START_BYTES, _LONGEST_LINE = 1 << 13, 1 << 15
_FIELD = re.compile(rb"\s*[A-Za-z]+\s*[=:]")
"""Start of a MetaImage file."""


def read_text_header(path: Path) -> TextHeader:
    """Read the header of a NRRD or MetaImage file. Raises ScanError and OSError."""
    with open_regular(path) as file:
        lines = HeaderFile(path, file)
        if path.suffix.lower() in _NRRD_SUFFIXES:
            return nrrd_header.read_header(lines)
        return metaimage_header.read_header(lines)


def _is_series(header: TextHeader) -> bool:
    return bool(header.series_axes) or math.prod(header.extents[3:]) == 1


def _header(study: Study) -> TextHeader:
    """Return the header of a study, whose voxels are only in its own files."""
    header = read_text_header(study.files[0])
    own = set(study.files)
    if foreign := [file for file in header.data_files if file not in own]:
        raise UnreadableScanError(
            f"{study.files[0]} refers to a voxel file that was not found with it: {foreign[0]}; "
            "add it to the inputs or run the command again."
        )
    return header


def _write(result: ResultToWrite, part: Path) -> dict[str, str]:
    """Write to `part`, named as the target, and voxels next to it if the suffix requires that.

    Returns the SHA-256 of those files that were hashed as they were written, in hexadecimal.
    """
    volume, target = result.volume, result.target
    header = volume.header
    if not isinstance(header, TextHeader):
        raise WriteError(f"{target} was not written: its source is not NRRD or MetaImage.")
    if volume.voxels.dtype.str[1:] not in nrrd_header.TYPE_NAMES or (
        (volume.slope, volume.intercept) != (1.0, 0.0)
    ):
        raise WriteError(
            f"{target} was not written: this format stores plain integers and floats without a "
            f"scale, not {volume.voxels.dtype} times {volume.slope:g} plus {volume.intercept:g}; "
            "use setting output-type=float32, or setting format=nifti."
        )
    header = _of_result(header, volume.format, volume.mark)
    beside = voxels_beside(part, header.storage.is_packed)
    hashes = _write_files(result, header, part, beside)
    _verify(volume, header, part, beside, target)
    return hashes


def voxels_beside(target: Path, is_packed: bool) -> Path | None:
    """Return the path of a result's voxels if its suffix puts them into a file of their own."""
    suffixes = _VOXELS_BESIDE.get(target.suffix.lower())
    return target.with_suffix(suffixes[is_packed]) if suffixes else None


def _of_result(header: TextHeader, kind: str, mark: SyntheticMark | None) -> TextHeader:
    """Return the header in millimetres, with a mark and without lines untrue of a result."""
    scale = MILLIMETRES.get(header.unit, 1.0)
    (x, y, z), (u, v, w) = header.origin, header.spacing
    kept = [line for line in header.metadata if not _is_of_acquisition(line)]
    if mark:
        kept = [*_mark_lines(mark, kind), *(line for line in kept if not _is_mark(line))]
    return replace(
        header,
        origin=(x * scale, y * scale, z * scale),
        spacing=(u * scale, v * scale, w * scale),
        metadata=tuple(kept),
    )


def _mark_lines(mark: SyntheticMark, kind: str) -> list[bytes]:
    if kind == "nrrd":  # in whose values a backslash begins an escape
        pairs = f"{FILE_NOTES}:={line_of(mark)}", f"{WHOLE_MARK}:={json_of(mark)}"
        return [pair.replace("\\", "\\\\").encode() for pair in pairs]
    return [f"{FILE_NOTES} = {line_of(mark)}".encode(), f"{WHOLE_MARK} = {json_of(mark)}".encode()]


def _is_mark(line: bytes) -> bool:
    """Return whether a line is an earlier mark, in whatever field, or uses the key of one."""
    text = text_of(line)
    return _key(text) in (FILE_NOTES, WHOLE_MARK) or mark_in_text(text) is not None


def _key(line: str) -> str:
    return re.split(r":=|[=:]", line, maxsplit=1)[0].strip()


def _is_of_acquisition(line: bytes) -> bool:
    """Return whether a line describes how, or as which object, the scan was made.

    Such a line is untrue of a result: its modality, say, or its SOPInstanceUID.
    """
    key = _key(text_of(line))
    found = _DICOM_KEY.fullmatch(key)
    if found is None:
        return key.lower() == _MODALITY
    group, element = found[1].lower(), found[2].lower()
    return group != _OF_PATIENT and f"{group}|{element}" not in _OF_STUDY


def _write_files(
    result: ResultToWrite, header: TextHeader, part: Path, beside: Path | None
) -> dict[str, str]:
    volume, series = result.volume, result.series
    is_packed = header.storage.is_packed
    head = _head(volume, header, beside, 0)
    voxels_file = beside or part
    with voxels_file.open("wb") as file:
        hashed = HashedFile(file)
        if beside is None:
            hashed.write(head)
        if is_packed:
            packing = "gzip" if volume.format == "nrrd" else "zlib"
            with GzipWriter(hashed, packing) as packer:
                write_volumes(packer, volume, all_there, series)
        else:
            write_volumes(hashed, volume, all_there, series)
    hashes = {voxels_file.name: hashed.sha256}
    if beside is None and (volume.format == "nrrd" or not is_packed):
        return hashes
    # MetaImage says in front how long the packed voxels are.
    packed_bytes = voxels_file.stat().st_size - (0 if beside else len(head))
    head = _head(volume, header, beside, packed_bytes)
    if beside is None:
        with part.open("r+b") as file:
            file.write(head)
        return {}
    part.write_bytes(head)
    return {**hashes, part.name: sha256(head).hexdigest()}


def _head(volume: Volume, header: TextHeader, beside: Path | None, packed_bytes: int) -> bytes:
    is_packed = header.storage.is_packed
    name = os.fsencode(beside.name) if beside else None
    shape, voxel_type = (*volume.shape, *volume.further), volume.voxels.dtype
    if volume.format == "nrrd":
        encoding = "gzip" if is_packed else "raw"
        return nrrd_header.header_bytes(header, shape, voxel_type, encoding, name)
    size = packed_bytes if is_packed else None
    return metaimage_header.header_bytes(header, shape, voxel_type, size, name)


def _verify(
    volume: Volume, meant: TextHeader, part: Path, beside: Path | None, target: Path
) -> None:
    """Raise WriteError unless the header on disk is as intended and its voxels are there."""
    try:
        found = read_text_header(part)
        with StoredVoxels(found.storage, math.prod(found.sizes)):
            affine = _affine(found, target)
    except (ScanError, OSError) as error:
        raise WriteError(
            f"{target} was not written completely ({error}); choose another output folder."
        ) from error
    same = (
        found.extents == (*volume.shape, *volume.further)
        and found.storage.voxel_type == volume.voxels.dtype.newbyteorder("<")
        and found.storage.files == (beside or part,)
        and sorted(found.metadata) == sorted(meant.metadata)  # MetaImage has dates first
        and np.allclose(affine, volume.affine, rtol=1e-6, atol=1e-6)
    )
    if not same:
        raise WriteError(
            f"{target} was not written: it does not read back as written; please report this."
        )


def _affine(header: TextHeader, path: Path) -> Affine:
    """Return the voxel to RAS+ map, in millimetres."""
    if not all(edge > 0 for edge in header.spacing):
        raise UnreadableScanError(
            f"{path} has no valid voxel size: its header gives "
            f"{' x '.join(f'{edge:g}' for edge in header.spacing)} {header.unit}; repair the "
            "header."
        )
    scale = MILLIMETRES.get(header.unit, 1.0)
    directions = np.reshape(header.direction, (3, 3))
    affine = np.eye(4)
    affine[:3, :3] = directions * header.spacing * scale
    affine[:3, 3] = np.multiply(header.origin, scale)
    check_position(path, affine, "its axes do")
    return LPS_TO_RAS @ affine


def _notes(header: TextHeader, affine: Affine) -> tuple[str, ...]:
    """Return notes on what is unverified about the place of the voxels."""
    notes = *unit_notes(header.unit), *shear_notes(affine)
    if header.space in nrrd_header.LPS_OF:
        return notes
    if header.space:
        said = f'its header gives the space "{header.space}", which does not define left and right'
    else:
        said = "its header does not give the anatomical directions of its axes"
    return *notes, f"{said}; {assumed(affine)}"


def _texts_of_lines(file: BinaryIO, *, is_nrrd: bool) -> Iterator[str]:
    """Yield the values of the fields of a header, from the start of a file."""
    file.seek(0)
    for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
        is_end = not line.strip() if is_nrrd else line.startswith(b"ElementDataFile")
        if is_end or file.tell() > LONGEST_HEADER_BYTES:
            return
        text = line.decode("ascii", "replace").strip()
        yield text.replace("\\\\", "\\") if is_nrrd else text


class _TextFormat(Format):
    """A text header, with the voxels in the same file or in others that it names."""

    has_scale = False

    def other_files(self, header: Path) -> list[Path]:
        """Return the voxel files that a header names; none of one that cannot be read."""
        try:
            files = read_text_header(header).data_files
        except (ScanError, OSError):
            return []
        return [file for file in files if file != header]

    def read_grid(self, study: Study, volume_index: int | None) -> Grid:
        """Read the grid of all volumes, without voxels. Raises ScanError and OSError."""
        del volume_index
        header = _header(study)
        affine = _affine(header, study.files[0])
        with StoredVoxels(header.storage, math.prod(header.sizes)):  # which looks at their files
            voxel_type = header.storage.voxel_type.newbyteorder("=")
            held = math.prod(header.extents[:3]) * voxel_type.itemsize + scratch_bytes(header)
        notes, is_series = _notes(header, affine), _is_series(header)
        return Grid(header.extents, affine, notes, voxel_type, held, is_series=is_series)

    def read(self, study: Study, volume_index: int | None, empty: Empty) -> Volume:
        """Read one volume or component; raises what `read_grid` and `read_voxels` raise."""
        path = study.files[0]
        header = _header(study)
        affine = _affine(header, path)
        index = pick_volume(path, header.extents, volume_index)
        voxels, goes_on = read_voxels(header, index, empty)
        notes = *((GOES_ON,) if goes_on else ()), *_notes(header, affine)
        return Volume(voxels, affine, header, study.format, notes=notes)

    def read_each(self, study: Study, empty: Empty) -> Iterator[Volume]:
        """Read all volumes, each on demand.

        Raises what `read` raises, and UnsupportedScanError for components that lie between the
        voxels of one volume.
        """
        path = study.files[0]
        header = _header(study)
        affine = _affine(header, path)
        check_series(path, header.extents, is_series=_is_series(header))
        noted, count = _notes(header, affine), math.prod(header.extents[3:])
        further = header.extents[3:] if count > 1 else ()

        def volume(found: tuple[AnyArray, bool]) -> Volume:
            voxels, goes_on = found
            notes = *((GOES_ON,) if goes_on else ()), *noted
            return Volume(voxels, affine, header, study.format, notes=notes, further=further)

        yield from map(volume, read_series(header, empty))

    def step_of(self, volume: Volume) -> tuple[float, str]:
        """Return the step from one volume of a series to the next, and its unit."""
        header = volume.header
        if not (isinstance(header, TextHeader) and header.series_axes):
            return math.nan, ""
        axis = header.series_axes[0]
        return axis.step, text_of(axis.unit).strip('"')

    def converted(self, volume: Volume, target: Path, step: tuple[float, str]) -> Volume:
        """Return the volume with a header for one file with packed voxels, in LPS and millimetres.

        Raises UnsupportedScanError for one of a series.
        """
        del target, step
        kind = self.name
        if volume.further:
            raise UnsupportedScanError(
                f"A 4D series cannot be written as {kind}; use setting format=nifti."
            )
        affine, (i, j, k) = LPS_TO_RAS @ volume.affine, volume.shape
        x, y, z = affine[:3, 3].tolist()
        directions = affine[:3, :3] / volume.spacing
        header = TextHeader(
            (i, j, k),
            (0, 1, 2),
            (),
            (x, y, z),
            volume.spacing,
            tuple(directions.ravel().tolist()),
            "mm",
            "lps",
            TextStorage("gzip" if kind == "nrrd" else "zlib", volume.voxels.dtype, ()),
            (b"kinds: domain domain domain",) if kind == "nrrd" else (),
            (),
        )
        return replace(volume, header=header, format=kind)

    def check_name(self, target: Path) -> None:
        """Raise WriteError if the header could not name its file of voxels."""
        beside = voxels_beside(target, is_packed=False)
        if beside and not _CAN_STAND[self.name].fullmatch(os.fsencode(beside.name)):
            raise WriteError(
                f"{target} cannot be written: the header could not contain the name of its voxels; "
                "rename the source."
            )

    def write(self, result: ResultToWrite) -> dict[str, str]:
        """Store the volume in the header of its source."""
        files = self.result_files(result.target)
        with whole_files(result.target, result.gate, files) as part:
            return _write(result, part)

    def result_files(self, target: Path) -> tuple[Path, ...]:
        """Return the header and the files that its voxels may be in."""
        suffixes = _VOXELS_BESIDE.get(target.suffix.lower(), ())
        return target, *(target.with_suffix(voxels) for voxels in suffixes)

    def result_files_made(self, target: Path, source: Study) -> tuple[Path, ...]:
        """Return the header, and its file of voxels, which is packed if the source's is."""
        if target.suffix.lower() not in _VOXELS_BESIDE:
            return self.result_files(target)
        with suppress(ScanError, OSError):
            beside = voxels_beside(target, read_text_header(source.files[0]).storage.is_packed)
            return (target, beside) if beside else (target,)
        return (target,)


class Nrrd(_TextFormat):
    """Nearly raw raster data."""

    name = "nrrd"
    suffixes = _NRRD_SUFFIXES
    result_suffixes = (".nrrd",)
    writes = "nrrd"

    def labels(self, file: BinaryIO) -> HeaderLabels | None:
        """Return the header's lines, and whether 3D Slicer wrote segments."""
        start = file.read(_START_BYTES)
        if not start.startswith(_NRRD_MAGIC):
            return None
        contents = "segments" if _SEGMENTS in start else None
        return HeaderLabels(_texts_of_lines(file, is_nrrd=True), contents)


class MetaImage(_TextFormat):
    """ITK's MetaImage."""

    name = "metaimage"
    suffixes = (".mha", ".mhd")
    result_suffixes = (".mha",)
    writes = "mha"

    def labels(self, file: BinaryIO) -> HeaderLabels | None:
        """Return the header's lines."""
        if not _FIELD.match(file.readline(_LONGEST_LINE)):
            return None
        return HeaderLabels(_texts_of_lines(file, is_nrrd=False))


NRRD, METAIMAGE = Nrrd(), MetaImage()
