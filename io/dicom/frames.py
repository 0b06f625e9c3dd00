"""Records of a DICOM file and its frames, from headers alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Moment:
    """Values that may distinguish frames at one place; zeros if the header has none.

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
    """Properties that the frames of one volume share besides geometry.

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
    """Acquisition parameters of a frame; zeros and empty text if the header has none.

    voltage: of the X-ray tube, in kV. kernel: ConvolutionKernel. inversion, repetition: times in
    milliseconds. flip: angle in degrees. agent: ContrastBolusAgent, free text that is never shown.
    series: SeriesNumber. seconds: start of the acquisition, on a scale that all frames share.
    thickness: SliceThickness in millimetres, which may be wrong.
    """

    voltage: float = 0.0
    kernel: str = ""
    inversion: float = 0.0
    flip: float = 0.0
    agent: str = ""
    series: int = 0
    seconds: float = 0.0
    thickness: float = 0.0
    repetition: float = 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One 2D image: its file, and its place in the patient (LPS+, millimetres).

    number: which frame of the file, from 0. spacing: between rows, then between columns.
    orientation: cosines along a row, then along a column. position: centre of the first pixel.
    reference: the frame of reference of these. image: its instance number, or its
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
    """An enhanced object that is stored in several files, as one of them describes it.

    uid: the object's. number: of this file, from 1. total: how many there are; 0 if unknown.
    """

    uid: str
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class Instance:
    """One DICOM file.

    patient: its identifier, never shown. description: free text that may name a patient; shown only
    to those who ask for it. blocker: why it cannot be part of a volume, in words for the report,
    or None. cut: how much of its pixels is missing, in words. sop_class, uid: its SOPClassUID and
    SOPInstanceUID. study, series: their instance UIDs. number: SeriesNumber. modality: such as MR.
    frames: one, unless it is enhanced. declared: number of images that it declares for its series,
    or 0. image: its InstanceNumber. concatenation: the one that it is part of, usually None.
    is_result: whether this program wrote it. is_map: whether this program wrote it as a map of a
    result. protocol: ProtocolName, free text that is never shown.
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
    blocker: str | None = None
    cut: str | None = None
    concatenation: Concatenation | None = None
    is_result: bool = False
    is_map: bool = False
    declared: int = 0
    protocol: str = ""
    image: float = 0.0
