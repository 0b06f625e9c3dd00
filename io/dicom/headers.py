"""Headers of DICOM files, read without their pixels."""

import io
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from .bounded_reading import read_partial
from .dataset import (
    PARSING_ERRORS,
    DataSet,
    items,
    number,
    numbers,
    places,
    pydicom,
    seconds,
    tag_of,
    with_shared_values,
    word,
    words,
)
from .enhanced import DIMENSIONS, PER_FRAME, SHARED, enhanced_frames
from .frames import Concatenation, Contrast, Frame, Instance, Moment, Technique
from .object_types import (
    NO_PLACE,
    blocker,
    is_directory,
    is_enhanced,
    is_map,
    is_result,
    modality_in,
    no_image,
)
from .recognition import Unreadable, not_dicom
from .series_files import Directory, read_directory
from .stored_text import keep_stored_text

_TAGS = (
    *("SpecificCharacterSet", "ImageType", "SOPClassUID", "SOPInstanceUID", "Modality"),
    *("Manufacturer", "SeriesDescription", "PatientID", "StudyInstanceUID", "SeriesInstanceUID"),
    *("SeriesNumber", "AcquisitionNumber", "InstanceNumber", "TemporalPositionIdentifier"),
    *("ImagePositionPatient", "ImageOrientationPatient", "FrameOfReferenceUID", "PixelSpacing"),
    *("EchoNumbers", "EchoTime", "Rows", "Columns", "SamplesPerPixel", "NumberOfFrames"),
    *("BitsAllocated", "ModalityLUTSequence", "TriggerTime", "DiffusionBValue"),
    *("DiffusionGradientOrientation", "PhotometricInterpretation", "ConcatenationUID"),
    *("InConcatenationNumber", "InConcatenationTotalNumber", "ImagesInAcquisition"),
    *("ComplexImageComponent", "KVP", "ConvolutionKernel", "InversionTime", "FlipAngle"),
    *("ContrastBolusAgent", "SliceThickness", "AcquisitionDate", "AcquisitionTime"),
    *("AcquisitionDateTime", "RepetitionTime", "ProtocolName"),
)
_TAG_NUMBERS = [tag_of(keyword) for keyword in _TAGS]
_LAST_GROUP = 0x0028
"""Last group to read; later ones do not describe single images, and private ones can be vast."""
_MOST_PARTS = 0xFFFF
"""Limit of a concatenation, by the elements' VR, US; a damaged header may give any number."""
_LAST_OF_FRAMES = 0x7FDF
"""Group before which the frames of an enhanced object are described; pixels follow."""
_OF_PET = [tag_of("NumberOfSlices")]
_GE_BLOCKS = range(0x10, 0x14)
"""Blocks in which the elements of GE's private group for parameters may begin."""
_OF_GE = [
    *(pydicom.tag.Tag(0x0043, block) for block in _GE_BLOCKS),
    *(pydicom.tag.Tag(0x0043, block << 8 | 0x2F) for block in _GE_BLOCKS),
]
_GE_CREATOR = "GEMS_PARM_01"
_GE_COMPONENTS = ("MAGNITUDE", "PHASE", "REAL", "IMAGINARY")
"""GE's components by the value of (0043,xx2F)."""
_UNPACKED = (ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian)


def read_header(
    path: Path, file: BinaryIO, start: bytes, is_bare: bool
) -> Instance | Directory | Unreadable | None:
    """Return the parsed header of a file; None if it is not DICOM.

    start: its first bytes. is_bare: whether it has no preamble. Raises OSError and MemoryError.
    """
    try:
        return _read(path, file, start, is_bare)
    except PARSING_ERRORS as error:
        return Unreadable(path, f"its header is damaged ({type(error).__name__}); copy it again")


def _read(
    path: Path, file: BinaryIO, start: bytes, is_bare: bool
) -> Instance | Directory | Unreadable | None:
    dataset, pixels_at = _common(file, start, is_bare)
    if number(dataset, "NumberOfFrames", 1) > 1 or is_enhanced(dataset):
        tags = [*_TAG_NUMBERS, tag_of(SHARED), tag_of(PER_FRAME), tag_of(DIMENSIONS)]
        dataset, pixels_at = _header(file, is_bare, _LAST_OF_FRAMES, tags)
    elif modality_in(dataset) == "PT":
        with suppress(*PARSING_ERRORS):
            dataset.update(_elements(file, start, is_bare, _OF_PET)[0])
    instance = _instance(path, dataset)
    if instance is None and is_directory(word(dataset.file_meta, "MediaStorageSOPClassUID")):
        return read_directory(path, file)
    if why_not := no_image(dataset):
        return instance or Unreadable(path, why_not, may_be_slice=False)
    if instance is None and is_bare:
        return not_dicom(path, start)
    if trouble := _unfinished(dataset, is_whole=pixels_at is not None):
        return Unreadable(path, trouble, _whole_series_uid(dataset))
    if instance is None:
        return Unreadable(path, "its header has no StudyInstanceUID; copy or export it again")
    if not instance.frames or pixels_at is None:
        return instance
    cut = _cut(dataset, os.fstat(file.fileno()).st_size - pixels_at)
    return replace(instance, cut=cut) if cut else instance


def _whole_series_uid(dataset: DataSet) -> str:
    """Return the SeriesInstanceUID unless the header may end in the middle of it, if it is cut."""
    is_whole = max(dataset.keys(), default=0) > tag_of("SeriesInstanceUID")
    return word(dataset, "SeriesInstanceUID") if is_whole else ""


def _unfinished(dataset: DataSet, *, is_whole: bool) -> str | None:
    """Return the fault of an incomplete header; is_whole: whether more follows it.

    A cut takes the end of a header away, so one with other elements of its image, but without its
    rows, was made without them.
    """
    if not is_whole and ("Rows" in dataset or "Columns" not in dataset):
        return "it ends before its pixels; copy it again"
    described, frames = len(items(dataset, PER_FRAME)), int(number(dataset, "NumberOfFrames", 1))
    if described and described != frames:
        return f"its header declares {frames} frames and describes {described}; export it again"
    return None


def _cut(dataset: DataSet, there: int) -> str | None:
    """Return how much is missing, given the bytes from the pixels to the end; or None."""
    syntax = word(dataset.file_meta, "TransferSyntaxUID")
    if syntax not in _UNPACKED:
        return None
    bits = number(dataset, "BitsAllocated") * number(dataset, "SamplesPerPixel", 1)
    pixels = number(dataset, "Rows") * number(dataset, "Columns")
    declared = int(bits * pixels * max(number(dataset, "NumberOfFrames", 1), 1)) // 8
    if there >= declared:
        return None
    return f"its header declares {declared} bytes of pixels but {max(there, 0)} follow"


def _common(file: BinaryIO, start: bytes, is_bare: bool) -> tuple[DataSet, int | None]:
    """Read what all single images have, and GE's group for parameters if the file may have it."""
    if _GE_CREATOR.encode() in start:
        with suppress(*PARSING_ERRORS):
            return _elements(file, start, is_bare, [*_TAG_NUMBERS, *_OF_GE])
    return _elements(file, start, is_bare, _TAG_NUMBERS)


def _elements(
    file: BinaryIO, start: bytes, is_bare: bool, tags: Sequence[Any]
) -> tuple[DataSet, int | None]:
    """Read elements as `_header`, from the start if it has all: parsing memory is twice as fast."""
    last_group = max(_LAST_GROUP, *(tag.group for tag in tags))
    with suppress(*PARSING_ERRORS):
        dataset, end = _header(io.BytesIO(start), is_bare, last_group, tags)
        if end is not None:
            return dataset, end
    return _header(file, is_bare, last_group, tags)


def _header(
    file: BinaryIO, is_bare: bool, last_group: int, tags: Sequence[Any]
) -> tuple[DataSet, int | None]:
    """The elements of these tags up to a group, and where the value of the next one begins; None if
    nothing follows.
    """
    end: int | None = None

    def is_after(tag: int, _kind: str | None, _length: int) -> bool:
        nonlocal end
        if tag >> 16 <= last_group:
            return False
        end = file.tell()
        return True

    file.seek(0, os.SEEK_SET)
    dataset = read_partial(file, is_after, specific_tags=tags, force=is_bare)
    return with_shared_values(keep_stored_text(dataset)), end


def _instance(path: Path, dataset: DataSet) -> Instance | None:
    """Return the instance of a header; None if it does not name its series."""
    sop_class, uid = word(dataset, "SOPClassUID"), word(dataset, "SOPInstanceUID")
    study, series = word(dataset, "StudyInstanceUID"), word(dataset, "SeriesInstanceUID")
    if not (sop_class and uid and study and series):
        return None
    why_not = blocker(dataset)
    frames: tuple[Frame, ...] = ()
    if why_not is None:
        frames = tuple(_frames(path, uid, dataset))
        if not frames:
            why_not = NO_PLACE
    return Instance(
        file=path,
        sop_class=sop_class,
        uid=uid,
        patient=word(dataset, "PatientID"),
        study=study,
        series=series,
        number=int(number(dataset, "SeriesNumber")),
        modality=modality_in(dataset),
        description=word(dataset, "SeriesDescription"),
        frames=frames,
        blocker=why_not,
        concatenation=_concatenation(dataset),
        is_result=is_result(dataset),
        is_map=is_map(dataset),
        declared=max(int(number(dataset, name)) for name in _DECLARED_COUNTS),
        protocol=word(dataset, "ProtocolName"),
        image=number(dataset, "InstanceNumber"),
    )


_DECLARED_COUNTS = ("NumberOfSlices", "ImagesInAcquisition")
"""Elements for the number of images, which vendors and archives often set wrongly."""


def _concatenation(dataset: DataSet) -> Concatenation | None:
    uid = word(dataset, "ConcatenationUID")
    if not uid:
        return None
    found = (number(dataset, f"InConcatenation{kind}") for kind in ("Number", "TotalNumber"))
    part, total = (int(min(each, _MOST_PARTS)) for each in found)
    return Concatenation(uid, part, total)


def _frames(path: Path, uid: str, dataset: DataSet) -> Iterable[Frame]:
    if items(dataset, PER_FRAME):
        return enhanced_frames(path, uid, dataset)
    if number(dataset, "NumberOfFrames", 1) != 1:
        return ()
    position = places(dataset, "ImagePositionPatient", 3)
    orientation = places(dataset, "ImageOrientationPatient", 6)
    spacing = places(dataset, "PixelSpacing", 2)
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
        reference=word(dataset, "FrameOfReferenceUID"),
        contrast=Contrast(
            modality=modality_in(dataset),
            flags=words(dataset, "ImageType")[2:],
            echo=number(dataset, "EchoTime"),
            echo_number=word(dataset, "EchoNumbers"),
            component=word(dataset, "ComplexImageComponent") or _maker_component(dataset),
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
        technique=Technique(
            voltage=number(dataset, "KVP"),
            kernel=" ".join(words(dataset, "ConvolutionKernel")),
            inversion=number(dataset, "InversionTime"),
            flip=number(dataset, "FlipAngle"),
            agent=word(dataset, "ContrastBolusAgent"),
            series=int(number(dataset, "SeriesNumber")),
            seconds=_acquired(dataset),
            thickness=number(dataset, "SliceThickness"),
            repetition=number(dataset, "RepetitionTime"),
        ),
    )
    return (frame,)


def _acquired(dataset: DataSet) -> float:
    return seconds(word(dataset, "AcquisitionDateTime")) or seconds(
        word(dataset, "AcquisitionDate"), word(dataset, "AcquisitionTime")
    )


def _maker_component(dataset: DataSet) -> str:
    """Component of the complex signal, by GE's private element (0043,xx2F)."""
    for block in _GE_BLOCKS:
        creator, element = (
            dataset.get(pydicom.tag.Tag(0x0043, at)) for at in (block, block << 8 | 0x2F)
        )
        if creator is None or element is None or creator.value is None:
            continue
        stored = creator.value
        name = stored.decode("ascii", "replace") if isinstance(stored, bytes) else str(stored)
        if name.strip(" \0") == _GE_CREATOR:
            value = element.value
            found = int.from_bytes(value, "little") if isinstance(value, bytes) else value
            if isinstance(found, int) and 0 <= found < len(_GE_COMPONENTS):
                return _GE_COMPONENTS[found]
    return ""
