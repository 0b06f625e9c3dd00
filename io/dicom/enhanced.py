"""Frames of enhanced multi-frame objects, whose geometry lies in functional groups."""

from collections.abc import Iterator
from pathlib import Path

from .instance import DataSet, Frame, Moment, items, number, numbers, word, words

SHARED = "SharedFunctionalGroupsSequence"
PER_FRAME = "PerFrameFunctionalGroupsSequence"
_FRAME_TYPES = ("MRImageFrameTypeSequence", "CTImageFrameTypeSequence", "PETFrameTypeSequence")


def enhanced_frames(path: Path, uid: str, dataset: DataSet) -> Iterator[Frame]:
    """The frames of one file; none at all if any of them does not say where it lies."""
    rows, columns = int(number(dataset, "Rows")), int(number(dataset, "Columns"))
    frames: list[Frame] = []
    for index, groups in enumerate(frame_groups(dataset)):
        position = numbers(groups("PlanePositionSequence"), "ImagePositionPatient", 3)
        orientation = numbers(groups("PlaneOrientationSequence"), "ImageOrientationPatient", 6)
        spacing = numbers(groups("PixelMeasuresSequence"), "PixelSpacing", 2)
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
                contrast=_contrast(groups),
                moment=_moment(groups),
                image=float(index),
            )
        )
    yield from frames


class FrameGroups:
    """The functional groups of one frame: its own, and those that all frames share."""

    def __init__(self, own: DataSet, shared: DataSet) -> None:
        self.own = own
        self.shared = shared

    def __call__(self, keyword: str) -> DataSet:
        """The one item of a group, or an empty data set."""
        found = items(self.own, keyword) or items(self.shared, keyword)
        return found[0] if found else {}


def frame_groups(dataset: DataSet) -> Iterator[FrameGroups]:
    """The groups of every frame, in the file's order."""
    shared = items(dataset, SHARED)
    for own in items(dataset, PER_FRAME):
        yield FrameGroups(own, shared[0] if shared else {})


def _moment(groups: FrameGroups) -> Moment:
    content, diffusion = groups("FrameContentSequence"), groups("MRDiffusionSequence")
    directions = items(diffusion, "DiffusionGradientDirectionSequence")
    direction: DataSet = directions[0] if directions else {}
    return Moment(
        temporal=number(content, "TemporalPositionIndex"),
        trigger=number(groups("CardiacSynchronizationSequence"), "NominalCardiacTriggerDelayTime"),
        acquisition=number(content, "FrameAcquisitionNumber"),
        diffusion=(
            number(diffusion, "DiffusionBValue"),
            *numbers(direction, "DiffusionGradientOrientation", 3),
        ),
    )


def _contrast(groups: FrameGroups) -> tuple[str, ...]:
    types: DataSet = next((found for kind in _FRAME_TYPES if (found := groups(kind))), None)
    return (
        *(words(types, "FrameType")[2:] if types else ()),
        f"echo {number(groups('MREchoSequence'), 'EffectiveEchoTime'):.3f}",
        word(groups("FrameContentSequence"), "StackID"),
    )
