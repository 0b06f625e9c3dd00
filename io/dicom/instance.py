"""What this program knows of a DICOM file and of its frames before it reads a pixel."""

import math
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from sys import intern
from typing import Any, TypeAlias

from ..volume import FARTHEST_PLACE_MM
from .library import PARSING_ERRORS, tag_of

DataSet: TypeAlias = Any
"""A pydicom data set; its elements have no static types."""

_MOMENT = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d(?:\.\d+)?)", re.ASCII)
"""Start of a date-time, or of a date with a time behind it; an offset from UTC may follow."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What may tell apart frames that lie at one place; zeros where the header says nothing.

    temporal: position in time, from 1. trigger: milliseconds from the heart beat. acquisition: its
    number. diffusion: b-value and direction of the gradient. index: of an enhanced frame, in the
    dimensions of its object that are not places. labelling: of arterial spins, LABEL or CONTROL.
    """

    temporal: float
    trigger: float
    acquisition: float
    diffusion: tuple[float, ...]
    index: tuple[int, ...] = ()
    labelling: str = ""


@dataclass(frozen=True, slots=True)
class Contrast:
    """What the frames of one volume share besides geometry.

    modality: such as MR. flags: values of the image type from the third on. echo: its time in
    milliseconds. echo_number: EchoNumbers. stack: StackID, of an enhanced object. component: of the
    complex signal, such as PHASE, from ComplexImageComponent or the maker's own element; empty if
    neither is set.
    """

    modality: str
    flags: tuple[str, ...]
    echo: float
    echo_number: str = ""
    stack: str = ""
    component: str = ""


@dataclass(frozen=True, slots=True)
class Technique:
    """How a frame was acquired; zeros and empty text where the header says nothing.

    voltage: of the X-ray tube, in kV. kernel: ConvolutionKernel. inversion: time in milliseconds.
    flip: angle in degrees. agent: ContrastBolusAgent, free text that is never shown. series:
    SeriesNumber. seconds: start of the acquisition, on a scale that all frames share. thickness:
    SliceThickness in millimetres, which may be wrong.
    """

    voltage: float = 0.0
    kernel: str = ""
    inversion: float = 0.0
    flip: float = 0.0
    agent: str = ""
    series: int = 0
    seconds: float = 0.0
    thickness: float = 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One 2D image: where it is stored, and where it lies in the patient (LPS+, millimetres).

    number: which frame of the file, from 0. spacing: between rows, then between columns.
    orientation: cosines along a row, then along a column. position: of the first pixel's centre.
    reference: the frame of reference in which these are told. image: its instance number, or its
    place in a multi-frame file. contrast: what the frames of one volume share besides geometry,
    such as their echo. instance: its SOPInstanceUID. rows, columns: of pixels. moment: when it was
    taken. technique: how it was acquired.
    """

    file: Path
    number: int
    instance: str
    rows: int
    columns: int
    spacing: tuple[float, ...]
    orientation: tuple[float, ...]
    position: tuple[float, ...]
    reference: str
    contrast: Contrast
    moment: Moment
    image: float
    technique: Technique = Technique()


Stack: TypeAlias = tuple[Frame, ...]
"""Slices of one volume, sorted along their normal."""


@dataclass(frozen=True, slots=True)
class Concatenation:
    """An enhanced object that is stored in several files, as one of them tells of it.

    uid: the object's. number: of this file, from 1. total: how many there are; 0 where none tells.
    """

    uid: str
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class Instance:
    """One DICOM file.

    patient: its identifier, never shown. description: free text that may name a patient; shown only
    to those who ask for it. obstacle: why nothing of it becomes a volume, in words for the report;
    None if it may. cut: how much of its pixels is missing, in words. sop_class, uid: its
    SOPClassUID and SOPInstanceUID. study, series: their instance UIDs. number: SeriesNumber.
    modality: such as MR. frames: one, unless it is enhanced. promised: images that it says its
    series has, 0 if it does not. concatenation: of which it is a part; None mostly. is_result:
    whether this program made it. is_map: whether it made it as a map beside a result.
    """

    file: Path
    sop_class: str
    uid: str
    patient: str
    study: str
    series: str
    number: int
    modality: str
    description: str
    frames: tuple[Frame, ...] = ()
    obstacle: str | None = None
    cut: str | None = None
    concatenation: Concatenation | None = None
    is_result: bool = False
    is_map: bool = False
    promised: int = 0


def numbers(dataset: DataSet, keyword: str, count: int) -> tuple[float, ...]:
    """The element's values if they are `count` finite numbers, else nothing."""
    value = _value(dataset, keyword)
    values = [value] if isinstance(value, int | float) else value
    try:
        found = tuple(float(each) for each in values or ())
    except (TypeError, ValueError):
        return ()
    return found if len(found) == count and all(map(math.isfinite, found)) else ()


def places(dataset: DataSet, keyword: str, count: int) -> tuple[float, ...]:
    """As `numbers`, of millimetres or cosines; nothing if one leads farther than any patient is."""
    found = numbers(dataset, keyword, count)
    return found if all(abs(each) < FARTHEST_PLACE_MM for each in found) else ()


def number(dataset: DataSet, keyword: str, default: float = 0.0) -> float:
    """The element's first value if it is a finite number, else the default."""
    found = numbers(dataset, keyword, 1)
    return found[0] if found else default


def is_no_number(dataset: DataSet, keyword: str) -> bool:
    """Whether the element holds something, and that is not one finite number."""
    element = dataset.get_item(tag_of(keyword))
    raw = b"" if element is None or element.value is None else element.value
    stored = raw.strip(b" \0") if isinstance(raw, bytes) else str(raw)
    return bool(stored) and not numbers(dataset, keyword, 1)


def words(dataset: DataSet, keyword: str) -> tuple[str, ...]:
    """The element's values as text, without padding."""
    value = _value(dataset, keyword)
    if value is None or value == "":
        return ()
    values = [value] if isinstance(value, str) or not hasattr(value, "__iter__") else value
    # A search holds the words of many thousand images, most of which the images of a series share.
    return tuple(intern(str(each).strip(" \0")) for each in values)


def word(dataset: DataSet, keyword: str) -> str:
    """The element's first value as text, or nothing."""
    found = words(dataset, keyword)
    return found[0] if found else ""


def items(dataset: DataSet, keyword: str) -> tuple[DataSet, ...]:
    """The items of a sequence, or none."""
    value = _value(dataset, keyword)
    return tuple(value) if value is not None and not isinstance(value, str | bytes) else ()


def seconds(*texts: str) -> float:
    """A DICOM date-time, or date and time, in seconds since year 1; 0 if it is incomplete."""
    found = _MOMENT.match("".join(texts).replace(":", ""))
    if found is None:
        return 0.0
    year, month, day, hours, minutes = map(int, found.group(1, 2, 3, 4, 5))
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        return 0.0
    return days * 86400.0 + hours * 3600.0 + minutes * 60.0 + float(found.group(6))


def _value(dataset: DataSet, keyword: str) -> Any:
    """An element's value; None where it is missing or its text is no value of its kind."""
    try:
        element = dataset.get(tag_of(keyword))  # which takes half as long as by the keyword
    except PARSING_ERRORS:
        return None
    return None if element is None else element.value
