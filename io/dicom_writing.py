"""A derived DICOM series of single images, in the geometry of its source."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydicom.uid import (
    CTImageStorage,
    MRImageStorage,
    SecondaryCaptureImageStorage,
)

from .dicom import DicomHeader
from .dicom_identity import derived_number, derived_uid
from .dicom_instance import DataSet, Frame, number, word
from .dicom_library import Template, pydicom, quiet
from .dicom_modality import modality_of
from .dicom_modules import (
    ACQUIRED,
    FRAME_OF_REFERENCE,
    PATIENT,
    SERIES,
    STUDY,
    TEXT,
    derivation_elements,
    equipment_elements,
    in_plain_text,
    kept,
    series_text,
    source_image,
)
from .dicom_storage import StoredPixels, as_decimal, stored_pixels, window
from .errors import WriteError
from .volume import Derivation, Volume

SOP_CLASSES = {"CT": CTImageStorage, "MR": MRImageStorage}
"""Of the modalities whose images can be made from geometry and pixels alone."""
_ALWAYS_THERE = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime"),
    *("ReferringPhysicianName", "StudyID", "AccessionNumber", "PositionReferenceIndicator"),
    "PatientPosition",
)
_PLANE = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness"),
    "SliceLocation",
)


@dataclass(frozen=True, slots=True)
class _Result:
    """All that the slices of one derived series share."""

    header: DicomHeader
    stored: StoredPixels
    derivation: Derivation
    modality: str
    sop_class: str


def write_series(volume: Volume, folder: Path, derivation: Derivation) -> None:
    """Write one file a slice into an empty folder. Raises WriteError and OSError."""
    header = volume.header
    if not isinstance(header, DicomHeader):
        raise WriteError(f"{folder} was not written: its source was not read as DICOM.")
    modality = modality_of(derivation.target) or header.series.modality
    result = _Result(
        header,
        stored_pixels(volume, header),
        in_plain_text(derivation),
        modality,
        SOP_CLASSES.get(modality, SecondaryCaptureImageStorage),
    )
    digits = max(4, len(str(len(header.frames))))
    with quiet():
        for at, dataset in enumerate(_datasets(result), 1):
            dataset.save_as(folder / f"{at:0{digits}}.dcm", enforce_file_format=True)


def _datasets(result: _Result) -> Iterator[DataSet]:
    common = _common(result)
    series = derived_uid(result.derivation, result.header.series.uid, result.header.series.label)
    common.SeriesInstanceUID = series
    common.SOPInstanceUID = series
    template = Template(common)
    preserved = "NO" if result.header.resampled else "YES"
    for at, (frame, source) in enumerate(
        zip(result.header.frames, result.header.headers, strict=True)
    ):
        dataset = template.copy()
        dataset.update(kept(source, ACQUIRED))
        dataset.update(_plane(frame, source, result.header.resampled))
        uid = derived_uid(result.derivation, series, str(at))
        dataset.SOPInstanceUID = uid
        dataset.InstanceNumber = at + 1
        several = frame.number + 1 if number(source, "NumberOfFrames", 1) > 1 else None
        dataset.SourceImageSequence = [
            source_image(word(source, "SOPClassUID"), frame.instance, several, preserved)
        ]
        dataset.PixelData = result.stored.pixels[at].tobytes()
        dataset["PixelData"].VR = "OW"
        yield dataset


def _common(result: _Result) -> DataSet:
    source, series = result.header.headers[0], result.header.series
    dataset = kept(source, (*TEXT, *PATIENT, *STUDY, *SERIES, *FRAME_OF_REFERENCE))
    for keyword in _ALWAYS_THERE:
        if keyword not in dataset:
            setattr(dataset, keyword, None)
    dataset.update(equipment_elements(source, result.derivation))
    dataset.update(derivation_elements(source, result.derivation, series.uneven))
    dataset.SOPClassUID = result.sop_class
    dataset.Modality = result.modality
    dataset.SeriesNumber = derived_number(series)
    dataset.SeriesDescription = series_text(result.derivation)
    dataset.update(_image(result))
    return dataset


def _image(result: _Result) -> DataSet:
    dataset = pydicom.Dataset()
    pixels, scale = result.stored.pixels, result.stored.scale
    dataset.ImageType = ["DERIVED", "SECONDARY", "AXIAL" if result.modality == "CT" else "OTHER"]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    _, dataset.Rows, dataset.Columns = pixels.shape
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit = 15
    dataset.PixelRepresentation = int(result.stored.signed)
    if result.stored.padding is not None:
        kind = "SS" if result.stored.signed else "US"
        dataset.add_new("PixelPaddingValue", kind, result.stored.padding)
    center, width = window(result.stored, result.modality)
    dataset.WindowCenter, dataset.WindowWidth = as_decimal(center), as_decimal(width)
    if result.modality == "CT" or (scale.slope, scale.intercept) != (1.0, 0.0):
        dataset.RescaleSlope = as_decimal(scale.slope)
        dataset.RescaleIntercept = as_decimal(scale.intercept)
        dataset.RescaleType = "HU" if result.modality == "CT" else "US"
    dataset.update(_of_class(result.sop_class))
    return dataset


def _of_class(sop_class: str) -> DataSet:
    """What a class demands of every image, where nothing was acquired."""
    dataset = pydicom.Dataset()
    if sop_class == CTImageStorage:
        dataset.KVP = dataset.AcquisitionNumber = None
    elif sop_class == MRImageStorage:
        dataset.ScanningSequence, dataset.SequenceVariant = "RM", "NONE"
        dataset.ScanOptions = dataset.MRAcquisitionType = None
        dataset.RepetitionTime = dataset.EchoTime = dataset.EchoTrainLength = None
    else:
        dataset.ConversionType = "WSD"
    return dataset


def _plane(frame: Frame, source: DataSet, resampled: bool) -> DataSet:
    """Where the slice lies, as the source writes it if it does."""
    dataset = kept(source, ["SliceThickness"] if resampled else _PLANE)
    if "ImagePositionPatient" not in dataset:
        dataset.ImagePositionPatient = [as_decimal(value) for value in frame.position]
        dataset.ImageOrientationPatient = [as_decimal(value) for value in frame.orientation]
        dataset.PixelSpacing = [as_decimal(value) for value in frame.spacing]
    if "SliceThickness" not in dataset:
        dataset.SliceThickness = None
    return dataset
