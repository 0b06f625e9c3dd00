"""Frames of enhanced multi-frame objects, with geometry in functional groups."""

from collections.abc import Iterator
from pathlib import Path

from .dataset import DataSet, items, number, numbers, places, pydicom, seconds, tag_of, word, words
from .frames import Contrast, Frame, Moment, Technique
from .object_types import modality_in

SHARED = "SharedFunctionalGroupsSequence"
PER_FRAME = "PerFrameFunctionalGroupsSequence"
DIMENSIONS = "DimensionIndexSequence"
_FRAME_TYPES = ("MRImageFrameTypeSequence", "CTImageFrameTypeSequence", "PETFrameTypeSequence")


_NOTHING: DataSet = pydicom.Dataset()
"""Stand-in for a group that is missing; never changed."""
_AGENTS = "ContrastBolusUsageSequence"
_OF_PLACES = {tag_of("StackID"), tag_of("InStackPositionNumber"), tag_of("ImagePositionPatient")}
"""Dimensions that give the place of a frame, for which its position is more exact."""


def enhanced_frames(path: Path, uid: str, dataset: DataSet) -> Iterator[Frame]:
    """Yield the frames of one file; none at all if the position of any is missing."""
    reference, modality = word(dataset, "FrameOfReferenceUID"), modality_in(dataset)
    dimensions, series = _other_dimensions(dataset), int(number(dataset, "SeriesNumber"))
    component = word(dataset, "ComplexImageComponent")
    rows, columns = int(number(dataset, "Rows")), int(number(dataset, "Columns"))
    frames: list[Frame] = []
    for index, groups in enumerate(frame_groups(dataset)):
        position = places(groups("PlanePositionSequence"), "ImagePositionPatient", 3)
        orientation = places(groups("PlaneOrientationSequence"), "ImageOrientationPatient", 6)
        spacing = places(groups("PixelMeasuresSequence"), "PixelSpacing", 2)
        if not (position and orientation and spacing):
            return
        frames.append(
            Frame(
                file=path,
                number=index,
                instance=uid,
                rows=rows,
                columns=columns,
                spacing=spacing,
                orientation=orientation,
                position=position,
                reference=reference,
                contrast=_contrast(groups, modality, component),
                moment=_moment(groups, dimensions),
                image=float(index),
                technique=_technique(groups, series),
            )
        )
    yield from frames


class FrameGroups:
    """The functional groups of one frame: its own, and those that all frames share."""

    def __init__(self, own: DataSet, shared: DataSet) -> None:
        self.own = own
        self.shared = shared

    def __call__(self, keyword: str) -> DataSet:
        """Return the one item of a group, or an empty data set."""
        found = items(self.own, keyword) or items(self.shared, keyword)
        return found[0] if found else _NOTHING


def frame_groups(dataset: DataSet) -> Iterator[FrameGroups]:
    """Yield the groups of every frame, in the file's order."""
    shared = items(dataset, SHARED)
    for own in items(dataset, PER_FRAME):
        yield FrameGroups(own, shared[0] if shared else pydicom.Dataset())


def _other_dimensions(dataset: DataSet) -> tuple[int, ...]:
    """Return those of the object's dimensions, counted from 0, that are not places."""
    pointers = (item.get("DimensionIndexPointer") for item in items(dataset, DIMENSIONS))
    return tuple(at for at, pointer in enumerate(pointers) if pointer not in _OF_PLACES)


def _moment(groups: FrameGroups, dimensions: tuple[int, ...]) -> Moment:
    content, diffusion = groups("FrameContentSequence"), groups("MRDiffusionSequence")
    directions = items(diffusion, "DiffusionGradientDirectionSequence")
    direction: DataSet = directions[0] if directions else pydicom.Dataset()
    values = words(content, "DimensionIndexValues")
    return Moment(
        temporal=number(content, "TemporalPositionIndex"),
        trigger=number(groups("CardiacSynchronizationSequence"), "NominalCardiacTriggerDelayTime"),
        acquisition=number(content, "FrameAcquisitionNumber"),
        diffusion=(
            number(diffusion, "DiffusionBValue"),
            *numbers(direction, "DiffusionGradientOrientation", 3),
        ),
        index=tuple(int(values[at]) for at in dimensions if at < len(values)),
        labelling=word(groups("MRArterialSpinLabelingSequence"), "ASLContext"),
    )


def _technique(groups: FrameGroups, series: int) -> Technique:
    reconstruction, modifier = groups("CTReconstructionSequence"), groups("MRModifierSequence")
    timing = groups("MRTimingAndRelatedParametersSequence")
    agents = items(groups.own, _AGENTS) or items(groups.shared, _AGENTS)
    return Technique(
        voltage=number(groups("CTXRayDetailsSequence"), "KVP"),
        kernel=" ".join(words(reconstruction, "ConvolutionKernel")),
        inversion=number(modifier, "InversionTimes"),
        flip=number(timing, "FlipAngle"),
        agent=" ".join(word(agent, "ContrastBolusAgentAdministered") for agent in agents),
        series=series,
        seconds=seconds(word(groups("FrameContentSequence"), "FrameAcquisitionDateTime")),
        thickness=number(groups("PixelMeasuresSequence"), "SliceThickness"),
        repetition=number(timing, "RepetitionTime"),
    )


def _contrast(groups: FrameGroups, modality: str, component: str) -> Contrast:
    types: DataSet = next((found for kind in _FRAME_TYPES if (found := groups(kind))), None)
    return Contrast(
        modality=modality,
        flags=words(types, "FrameType")[2:] if types else (),
        echo=number(groups("MREchoSequence"), "EffectiveEchoTime"),
        stack=word(groups("FrameContentSequence"), "StackID"),
        component=(word(types, "ComplexImageComponent") if types else "") or component,
    )
