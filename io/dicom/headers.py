"""Headers of DICOM files, read without their pixels."""

import io
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .enhanced import PER_FRAME, SHARED, enhanced_frames
from .instance import DataSet, Frame, Instance, Moment, items, number, numbers, word, words
from .kinds import is_directory, is_enhanced, obstacle
from .library import PARSING_ERRORS, pydicom, read_partial, tag_of

SCANNING_THREADS = 4
"""They hide the latency of network disks; parsing itself shares the interpreter."""
_MAGIC_AT, _MAGIC = 128, b"DICM"
_MOST_HEADERS_BYTES = 1 << 15
"""What of a header is asked for ends within so many bytes, nearly always."""
_OLD_SUFFIXES = (".dcm", ".dicom", ".ima")
"""Files so named may lack the preamble, as those from before the standard had one do."""
_TAGS = (
    *("SpecificCharacterSet", "ImageType", "SOPClassUID", "SOPInstanceUID", "Modality"),
    *("Manufacturer", "SeriesDescription", "StudyInstanceUID", "SeriesInstanceUID"),
    *("SeriesNumber", "AcquisitionNumber", "InstanceNumber", "TemporalPositionIdentifier"),
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "EchoNumbers"),
    *("EchoTime", "Rows", "Columns", "SamplesPerPixel", "NumberOfFrames", "BitsAllocated"),
    *("ModalityLUTSequence", "TriggerTime", "DiffusionBValue", "DiffusionGradientOrientation"),
)
_TAG_NUMBERS = [tag_of(keyword) for keyword in _TAGS]
_LAST_GROUP = 0x0028
"""Everything about a single image stands before it; behind it, private groups can be vast."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A DICOM file whose header cannot be taken, and why.

    reason: in words for the report.
    """

    file: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Headers:
    """What a scan of files came to; others: the files that are not DICOM, or an index of DICOM.

    instances: the readable files of DICOM. unreadable: those that are damaged.
    """

    instances: tuple[Instance, ...]
    unreadable: tuple[Unreadable, ...]
    others: tuple[Path, ...]


def scan(files: Sequence[Path]) -> Headers:
    """Read the headers of those files that are DICOM, in their order."""
    with ThreadPoolExecutor(SCANNING_THREADS) as pool:
        found = list(pool.map(_read, files, chunksize=16))
    return Headers(
        tuple(each for each in found if isinstance(each, Instance)),
        tuple(each for each in found if isinstance(each, Unreadable)),
        tuple(path for path, each in zip(files, found, strict=True) if each is None),
    )


def _read(path: Path) -> Instance | Unreadable | None:
    try:
        with path.open("rb") as file:
            start = file.read(_MOST_HEADERS_BYTES)
            old = start[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC
            if old and path.suffix.lower() not in _OLD_SUFFIXES:
                return None
            dataset = _short_header(start, old) or _long_header(file, old)
            if number(dataset, "NumberOfFrames", 1) > 1 or is_enhanced(dataset):
                file.seek(0, os.SEEK_SET)
                tags = [*_TAGS, SHARED, PER_FRAME]
                dataset = pydicom.dcmread(
                    file, stop_before_pixels=True, specific_tags=tags, force=old
                )
            if is_directory(word(dataset.file_meta, "MediaStorageSOPClassUID")):
                return None
            return _instance(path, dataset) or (None if old else _anonymous(path))
    except OSError as error:
        return Unreadable(path, f"it cannot be opened: {error.strerror or error}")
    except MemoryError:
        return Unreadable(path, "its header promises more than this machine's memory holds")
    except PARSING_ERRORS as error:
        return Unreadable(path, f"its header is damaged ({type(error).__name__}); copy it again")


def _short_header(start: bytes, old: bool) -> DataSet | None:
    """The header if it ends within the file's start: parsing from memory takes half the time."""
    buffer = io.BytesIO(start)
    try:
        dataset = read_partial(buffer, _is_behind, specific_tags=_TAG_NUMBERS, force=old)
    except PARSING_ERRORS:
        return None
    return dataset if buffer.tell() < len(start) else None


def _long_header(file: BinaryIO, old: bool) -> DataSet:
    file.seek(0, os.SEEK_SET)
    return read_partial(file, _is_behind, specific_tags=_TAG_NUMBERS, force=old)


def _is_behind(tag: int, _kind: str | None, _length: int) -> bool:
    return tag >> 16 > _LAST_GROUP


def _anonymous(path: Path) -> Unreadable:
    return Unreadable(path, "its header does not say of which study it is; copy or export it again")


def _instance(path: Path, dataset: DataSet) -> Instance | None:
    """What the header says; None if it does not even say of which series it is."""
    sop_class, uid = word(dataset, "SOPClassUID"), word(dataset, "SOPInstanceUID")
    study, series = word(dataset, "StudyInstanceUID"), word(dataset, "SeriesInstanceUID")
    if not (sop_class and uid and study and series):
        return None
    why_not = obstacle(dataset)
    frames: tuple[Frame, ...] = ()
    if why_not is None:
        frames = tuple(_frames(path, uid, dataset))
        if not frames:
            why_not = "its images do not say where in the patient they lie"
    return Instance(
        file=path,
        sop_class=sop_class,
        uid=uid,
        study=study,
        series=series,
        number=int(number(dataset, "SeriesNumber")),
        modality=word(dataset, "Modality"),
        description=word(dataset, "SeriesDescription"),
        frames=frames,
        obstacle=why_not,
    )


def _frames(path: Path, uid: str, dataset: DataSet) -> Iterable[Frame]:
    if items(dataset, PER_FRAME):
        return enhanced_frames(path, uid, dataset)
    if number(dataset, "NumberOfFrames", 1) != 1:
        return ()
    position = numbers(dataset, "ImagePositionPatient", 3)
    orientation = numbers(dataset, "ImageOrientationPatient", 6)
    spacing = numbers(dataset, "PixelSpacing", 2)
    if not (position and orientation and spacing):
        return ()
    frame = Frame(
        file=path,
        number=0,
        instance=uid,
        rows=int(number(dataset, "Rows")),
        columns=int(number(dataset, "Columns")),
        spacing=spacing,
        orientation=orientation,
        position=position,
        contrast=(
            *words(dataset, "ImageType")[2:],
            f"echo {word(dataset, 'EchoNumbers')} {number(dataset, 'EchoTime'):.3f}",
        ),
        moment=Moment(
            temporal=number(dataset, "TemporalPositionIdentifier"),
            trigger=number(dataset, "TriggerTime"),
            acquisition=number(dataset, "AcquisitionNumber"),
            diffusion=(
                number(dataset, "DiffusionBValue"),
                *numbers(dataset, "DiffusionGradientOrientation", 3),
            ),
        ),
        image=number(dataset, "InstanceNumber"),
    )
    return (frame,)
