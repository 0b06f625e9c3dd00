"""Which images of which scans a result refers to as those that it is made of."""

from collections.abc import Iterator

import numpy as np

from ..geometry import depth_of, normal_of
from ..instance import DataSet, Frame, number, word
from ..library import pydicom
from ..pixels.reading import DicomHeader
from .modules import source_purpose

_BEYOND = 0.999
"""Spacings between slices; one so far from a voxel has no part in its interpolated value."""

_ALIKE_MM = 1e-3


def source_images(header: DicomHeader, at: int) -> list[DataSet]:
    """Items of SourceImageSequence for slice `at` of a result in the place of the first scan.

    They are the first scan's slice there, and of each other scan the slices between which it lies.
    """
    same = "NO" if header.resampled else "YES"
    items = [_item(header, at, same)]
    for scan in header.others:
        for index in _around(scan, header.frames[at]):
            is_there = _is_same_place(scan.frames[index], header.frames[at])
            moved = scan.resampled or not is_there
            items.append(_item(scan, index, "NO" if moved else same))
    return items


def evidence(header: DicomHeader) -> list[DataSet]:
    """All objects of all scans, by study and series: items of SourceImageEvidenceSequence."""
    studies: dict[str, DataSet] = {}
    for scan in header.scans:
        classes = {
            frame.instance: word(dataset, "SOPClassUID")
            for frame, dataset in zip(scan.frames, scan.headers, strict=True)
        }
        series = pydicom.Dataset()
        series.SeriesInstanceUID = scan.series.uid
        series.ReferencedSOPSequence = [_reference(cls, uid) for uid, cls in classes.items()]
        if scan.series.study not in studies:
            study = studies[scan.series.study] = pydicom.Dataset()
            study.StudyInstanceUID = scan.series.study
            study.ReferencedSeriesSequence = []
        studies[scan.series.study].ReferencedSeriesSequence.append(series)
    return list(studies.values())


def _item(scan: DicomHeader, at: int, preserved: str) -> DataSet:
    """preserved: whether its pixels lie where those of the result do, YES or NO."""
    frame, source = scan.frames[at], scan.headers[at]
    item = _reference(word(source, "SOPClassUID"), frame.instance)
    if scan.enhanced or number(source, "NumberOfFrames", 1) > 1:
        item.ReferencedFrameNumber = frame.number + 1
    item.SpatialLocationsPreserved = preserved
    item.PurposeOfReferenceCodeSequence = [source_purpose()]
    return item


def _reference(sop_class: str, instance: str) -> DataSet:
    item = pydicom.Dataset()
    item.ReferencedSOPClassUID = sop_class
    item.ReferencedSOPInstanceUID = instance
    return item


def _around(scan: DicomHeader, frame: Frame) -> Iterator[int]:
    """Slices of a scan that have a part in what is interpolated within a frame; one where it is one
    of them, and none where the scan does not reach it.
    """
    normal = normal_of(scan.frames[0])
    places = np.array([depth_of(each, normal) for each in scan.frames])
    row, column = np.reshape(frame.orientation, (2, 3))
    height, width = (frame.rows - 1) * frame.spacing[0], (frame.columns - 1) * frame.spacing[1]
    start = depth_of(frame, normal)
    along, down = width * float(row @ normal), height * float(column @ normal)
    ends = start, start + along, start + down, start + along + down
    reach = _BEYOND * float(np.abs(np.diff(places)).mean())
    near = (places > min(ends) - reach) & (places < max(ends) + reach)
    yield from map(int, np.flatnonzero(near))


def _is_same_place(one: Frame, other: Frame) -> bool:
    """Whether the pixels of both lie at the same places."""
    return (one.rows, one.columns) == (other.rows, other.columns) and all(
        np.allclose(ours, theirs, rtol=0, atol=_ALIKE_MM)
        for ours, theirs in (
            (one.position, other.position),
            (one.orientation, other.orientation),
            (one.spacing, other.spacing),
        )
    )
