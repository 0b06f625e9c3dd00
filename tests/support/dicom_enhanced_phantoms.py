"""A phantom's slices as one enhanced multi-frame object."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
from pydicom.uid import EnhancedCTImageStorage, EnhancedMRImageStorage, ExplicitVRLittleEndian
from support.dicom_phantoms import Phantom

pydicom: Any = _pydicom


def write_enhanced(
    phantom: Phantom,
    path: Path,
    *,
    times: int = 1,
    echoes: tuple[float, ...] = (10.0,),
    slopes: tuple[float, ...] = (1.0,),
) -> "np.ndarray[Any, Any]":
    """Store an object whose frames run over time, then echo, then slices from top to bottom.

    slopes: given to frames in turn. Returns the values [time, echo, slice, row, column].
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    slices = list(phantom.datasets())
    data = _common(slices[0], phantom)
    per_frame: list[Any] = []
    stored: list[Any] = []
    values = np.zeros((times, len(echoes), *phantom.voxels().shape))
    for time in range(times):
        for at_echo, echo in enumerate(echoes):
            for at in reversed(range(phantom.slices)):
                slope = slopes[len(per_frame) % len(slopes)]
                pixels = slices[at].pixel_array + np.int16(100 * at_echo + 7 * time)
                per_frame.append(_groups(slices[at], time, echo, slope))
                stored.append(pixels)
                values[time, at_echo, at] = pixels * slope
    data.NumberOfFrames = len(per_frame)
    data.PerFrameFunctionalGroupsSequence = per_frame
    data.PixelData = np.array(stored).tobytes()
    data["PixelData"].VR = "OW"
    data.save_as(path, enforce_file_format=True)
    return values


def _common(first: Any, phantom: Phantom) -> Any:
    data = pydicom.Dataset()
    names = [element.keyword for element in first if not element.tag.is_private]
    moved = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "EchoTime")
    gone = ("EchoNumbers", "RescaleSlope", "RescaleIntercept", "RescaleType", "SliceThickness")
    for name in names:
        if name not in (*moved, *gone):
            data[name] = first[name]
    enhanced = {"CT": EnhancedCTImageStorage, "MR": EnhancedMRImageStorage}
    data.SOPClassUID = enhanced[phantom.modality]
    data.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    data.ApplicableSafetyStandardAgency = "IEC"
    data.BurnedInAnnotation = "NO"
    shared = pydicom.Dataset()
    shared.PixelMeasuresSequence = [_item(PixelSpacing=first.PixelSpacing, SliceThickness="9")]
    shared.PlaneOrientationSequence = [_item(ImageOrientationPatient=first.ImageOrientationPatient)]
    data.SharedFunctionalGroupsSequence = [shared]
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return data


def _groups(single: Any, time: int, echo: float, slope: float) -> Any:
    groups = pydicom.Dataset()
    groups.FrameContentSequence = [_item(StackID="1", TemporalPositionIndex=time + 1)]
    groups.PlanePositionSequence = [_item(ImagePositionPatient=single.ImagePositionPatient)]
    groups.MREchoSequence = [_item(EffectiveEchoTime=echo)]
    groups.PixelValueTransformationSequence = [
        _item(RescaleSlope=str(slope), RescaleIntercept="0", RescaleType="US")
    ]
    return groups


def _item(**values: Any) -> Any:
    item = pydicom.Dataset()
    for name, value in values.items():
        setattr(item, name, value)
    return item
