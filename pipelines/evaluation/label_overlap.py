"""Overlap of two segmentations, label by label: Dice coefficient and surface distance."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from importlib import import_module
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from ...io.errors import listed
from ...io.volume import Volume
from ..errors import ComparisonError
from .images import Flags

LabelArray = npt.NDArray[np.int32]
PERCENTILE = 95
MOST_LABELS = 1000
"""Labels beyond which an image is a scan rather than a segmentation."""

MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class LabelOverlap:
    """Overlap of one label.

    label: its number. name: in the label table of either file; empty if there is none. dice: Dice
    coefficient. hd95: 95th percentile of the distances from the surface of each segment to that of
    the other, in millimetres, the larger of both directions; None if either image lacks the
    label. voxels_truth, voxels_result: voxels that have the label.
    """

    label: int
    name: str
    dice: float
    hd95: float | None
    voxels_truth: int
    voxels_result: int


def label_overlaps(truth: Volume, result: Volume) -> tuple[LabelOverlap, ...]:
    """Compare two segmentations on one grid, label by label; 0 is background.

    Raises ComparisonError for voxels that are no labels, for an image without any, and for label
    tables that give a number different names.
    """
    names = _joined_tables(label_table(truth), label_table(result))
    first, second = _labels(truth, "truth"), _labels(result, "result")
    boxes = [_boxes(each, truth.spacing) for each in (first, second)]
    found: list[LabelOverlap] = []
    for label in sorted(boxes[0].keys() | boxes[1].keys()):
        place = _around([box[label] for box in boxes if label in box])
        one, other = first[place] == label, second[place] == label
        counts = int(np.count_nonzero(one)), int(np.count_nonzero(other))
        dice = 2 * int(np.count_nonzero(one & other)) / sum(counts)
        hd95 = surface_distance(one, other, truth.spacing) if all(counts) else None
        found.append(LabelOverlap(label, names.get(label, ""), dice, hd95, *counts))
    return tuple(found)


def mean_dice(overlaps: Sequence[LabelOverlap]) -> float | None:
    """Return the mean over all labels; one that a segmentation lacks counts as 0."""
    return fmean(each.dice for each in overlaps) if overlaps else None


def mean_hd95(overlaps: Sequence[LabelOverlap]) -> float | None:
    """Return the mean over the labels that both segmentations have, in millimetres."""
    known = [each.hd95 for each in overlaps if each.hd95 is not None]
    return fmean(known) if known else None


def overlap_notes(overlaps: Sequence[LabelOverlap]) -> Iterator[str]:
    """Yield a note on the labels that only one of the segmentations has."""
    for kind, lacking in (
        ("result", [each for each in overlaps if not each.voxels_result]),
        ("truth", [each for each in overlaps if not each.voxels_truth]),
    ):
        if lacking:
            named = listed([_title(each.label, each.name) for each in lacking], MOST_NAMED)
            words = "Dice is 0, and HD95 is not defined"
            yield f"the segmentation of the {kind} lacks {named}: {words}"


def _title(label: int, name: str) -> str:
    return f"{label} ({name})" if name else str(label)


_LABEL = re.compile(
    r"<Label\s[^>]*?\bKey=\"(\d{1,9})\"[^>]*>\s*(?:<!\[CDATA\[(.*?)\]\]>|([^<]*))\s*</Label>",
    re.DOTALL,
)
"""Label of the table that TotalSegmentator (`--ml`) and Connectome Workbench write into NIfTI."""


def label_table(volume: Volume) -> dict[int, str]:
    """Return the names of labels in a NIfTI header's extension, by number; empty without one."""
    names: dict[int, str] = {}
    for extension in getattr(volume.header, "extensions", ()):
        content: object = extension.get_content()
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
        for number, quoted, plain in _LABEL.findall(text):
            names[int(number)] = (quoted or unescape(plain)).strip()
    names.pop(0, None)
    return names


def _joined_tables(truth: Mapping[int, str], result: Mapping[int, str]) -> dict[int, str]:
    other = [
        f"{label} is {truth[label]!r} in the truth's and {result[label]!r} in the result's"
        for label in sorted(truth.keys() & result.keys())
        if truth[label] != result[label]
    ]
    if other:
        more = len(other) - MOST_NAMED
        raise ComparisonError(
            f"The label tables of the segmentations do not match: {'; '.join(other[:MOST_NAMED])}"
            f"{f'; and {more} more' if more > 0 else ''}. Segment both images with the same model."
        )
    return {**result, **truth}


def _labels(volume: Volume, kind: str) -> LabelArray:
    """Return the labels [k, j, i]; raises ComparisonError unless they are whole numbers."""
    values = volume.voxels.T
    if (volume.slope, volume.intercept) != (1.0, 0.0) or values.dtype.kind not in "iub":
        scaled = values.astype(np.float64) * volume.slope + volume.intercept
        with np.errstate(invalid="ignore"):
            values = np.rint(scaled)
            off = ~(np.abs(scaled - values) <= _ROUNDING)
        if off.any():
            raise ComparisonError(
                f"The segmentation of the {kind} has the value {scaled[off][0]:g}, but "
                "labels are whole numbers; give label maps, not probabilities or scans."
            )
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > np.iinfo(np.int32).max:
        raise ComparisonError(
            f"The segmentation of the {kind} has values from {low} to {high}, and labels are 0 or "
            "more; give label maps, not scans."
        )
    if high == 0:
        raise ComparisonError(f"The segmentation of the {kind} has no label; check its file.")
    return np.ascontiguousarray(values, np.int32)


_ROUNDING = 1e-3
"""Deviation of a label from a whole number that a file's slope explains."""


_Box = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Start and stop along k, j and i."""


def _boxes(labels: LabelArray, spacing: Sequence[float]) -> dict[int, _Box]:
    """Return the smallest box around each label."""
    shapes = _sitk().LabelShapeStatisticsImageFilter()
    shapes.ComputePerimeterOff()
    shapes.Execute(_image(labels, spacing))
    found: Sequence[int] = shapes.GetLabels()
    if len(found) > MOST_LABELS:
        raise ComparisonError(
            f"A segmentation has {len(found)} different values, more than {MOST_LABELS} labels; "
            "give label maps, not scans."
        )
    boxes: dict[int, _Box] = {}
    for label in found:
        i, j, k, *extents = shapes.GetBoundingBox(label)
        along_k, along_j, along_i = (
            (start, start + extent) for start, extent in zip((k, j, i), extents[::-1], strict=True)
        )
        boxes[label] = along_k, along_j, along_i
    return boxes


def _around(boxes: Sequence[_Box]) -> tuple[slice, ...]:
    """Return the smallest box that contains all."""
    return tuple(
        slice(min(start for start, _ in ends), max(stop for _, stop in ends))
        for ends in zip(*boxes, strict=True)
    )


def surface_distance(one: Flags, other: Flags, spacing: Sequence[float]) -> float:
    """Return the 95th percentile of the distances between the surfaces of two segments.

    It is measured from each surface to the other one, and the larger value counts (Huttenlocher et
    al., IEEE PAMI 1993;15:850, with a rank instead of the maximum). The surface are the voxels of
    a segment with one of their six neighbours outside of it; distances are between centres of
    voxels. one, other: [k, j, i], neither empty. spacing: millimetres along i, j and k.
    """
    surfaces = _surface(one), _surface(other)
    ends = [
        float(np.percentile(_distance_to(to, spacing)[of], PERCENTILE))
        for of, to in (surfaces, surfaces[::-1])
    ]
    return max(ends)


def _surface(segment: Flags) -> Flags:
    padded = np.pad(segment, 1)
    inner = padded[1:-1, 1:-1, 1:-1].copy()
    for axis in range(3):
        for shift in (-1, 1):
            inner &= np.roll(padded, shift, axis)[1:-1, 1:-1, 1:-1]
    return segment & ~inner


def _distance_to(surface: Flags, spacing: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return each voxel's distance to the nearest voxel of a surface, in millimetres."""
    sitk = _sitk()
    image = _image(surface.astype(np.uint8), spacing)
    signed = sitk.SignedMaurerDistanceMap(image, squaredDistance=False, useImageSpacing=True)
    distances = np.abs(sitk.GetArrayFromImage(signed))
    distances[surface] = 0.0  # where the filter has its rounding instead
    return distances


def _image(array: npt.NDArray[Any], spacing: Sequence[float]) -> Any:
    image = _sitk().GetImageFromArray(array)
    image.SetSpacing([float(edge) for edge in spacing])
    return image


def _sitk() -> Any:
    return import_module("SimpleITK")  # late, as it takes a third of a second
