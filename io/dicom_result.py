"""What all objects of a derived series share."""

from dataclasses import dataclass

from .dicom import DicomHeader
from .dicom_identity import derived_number, derived_uid
from .dicom_instance import DataSet
from .dicom_library import pydicom
from .dicom_modality import modality_of
from .dicom_modules import (
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
)
from .dicom_storage import StoredPixels, stored_pixels
from .volume import Derivation, Volume

_ALWAYS_THERE = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime"),
    *("ReferringPhysicianName", "StudyID", "AccessionNumber", "PositionReferenceIndicator"),
    "PatientPosition",
)


@dataclass(frozen=True, slots=True)
class Result:
    """A derived series before it becomes files."""

    header: DicomHeader
    stored: StoredPixels
    derivation: Derivation
    modality: str

    @property
    def series_uid(self) -> str:
        """SeriesInstanceUID of the result."""
        return derived_uid(self.derivation, self.header.series.uid, self.header.series.label)

    @property
    def same_places(self) -> str:
        """Whether pixels lie where those of the source do, as DICOM says yes and no."""
        return "NO" if self.header.resampled else "YES"


def result_of(volume: Volume, header: DicomHeader, derivation: Derivation) -> Result:
    """The series that a translated volume becomes, of the target's modality where that is known."""
    modality = modality_of(derivation.target) or header.series.modality
    # Zero may be padding in an MR, and is water in a CT.
    padding = header.padding if modality == header.series.modality else None
    return Result(header, stored_pixels(volume, padding), in_plain_text(derivation), modality)


def shared_elements(result: Result) -> DataSet:
    """Patient, study, series, frame of reference, equipment, derivation and kind of pixels."""
    source, series = result.header.headers[0], result.header.series
    dataset = kept(source, (*TEXT, *PATIENT, *STUDY, *SERIES, *FRAME_OF_REFERENCE))
    for keyword in _ALWAYS_THERE:
        if keyword not in dataset:
            setattr(dataset, keyword, None)
    dataset.update(equipment_elements(source, result.derivation))
    dataset.update(derivation_elements(source, result.derivation, series.uneven))
    dataset.Modality = result.modality
    dataset.SeriesInstanceUID = result.series_uid
    dataset.SeriesNumber = derived_number(series)
    dataset.SeriesDescription = series_text(result.derivation)
    dataset.update(_pixel_elements(result.stored))
    return dataset


def _pixel_elements(stored: StoredPixels) -> DataSet:
    dataset = pydicom.Dataset()
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    _, dataset.Rows, dataset.Columns = stored.pixels.shape
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit = 15
    dataset.PixelRepresentation = int(stored.signed)
    if stored.padding is not None:
        dataset.add_new("PixelPaddingValue", "SS" if stored.signed else "US", stored.padding)
    return dataset
