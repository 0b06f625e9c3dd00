"""Write a derived DICOM series in the geometry of its source, as a folder of files.

The series of an enhanced source is one enhanced multi-frame object.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydicom.uid import (
    CTImageStorage,
    EnhancedCTImageStorage,
    EnhancedMRImageStorage,
    ExplicitVRLittleEndian,
    MRImageStorage,
    SecondaryCaptureImageStorage,
)

from ...errors import WriteError
from ...volume import Derivation, Volume
from ..dataset import DataSet, pydicom, tag_of, word
from ..enhanced import FrameGroups, frame_groups
from ..frames import Frame
from ..geometry import grid_of
from ..grouping import MAGNITUDE, component_of
from ..object_types import MAP_TYPE
from ..pixels.reading import DicomHeader
from ..stored_text import encode_own_text
from .elements import (
    ACQUIRED,
    PLANE,
    coded,
    derivation_codes,
    drop_private,
    evidence,
    losses,
    private_elements,
    source_images,
)
from .result import DerivedSeries, as_decimal, derived_uid, result_of, shared_elements, window
from .sanitizing import kept

_ENHANCED_CLASSES = {"CT": EnhancedCTImageStorage, "MR": EnhancedMRImageStorage}
_FRAME_TYPE_SEQUENCES = {"CT": "CTImageFrameTypeSequence", "MR": "MRImageFrameTypeSequence"}
_FRAME_TYPE = ["DERIVED", "PRIMARY", "VOLUME", "NONE"]
"""PRIMARY is all that PS3.3 C.8.16.1.2 allows in the second place."""
_STACK = "1"
_WHOLE_BODY = ("38266002", "SCT", "Entire body")


_DEMANDED = {
    "CT": ("ContentDate", "ContentTime"),
    "MR": ("ContentDate", "ContentTime", "ApplicableSafetyStandardAgency"),
}
_OF_LOSSY = ("LossyImageCompressionRatio", "LossyImageCompressionMethod")


def fits_multiframe(result: DerivedSeries) -> bool:
    """Return whether the result is written as one enhanced object, which requires more elements.

    It must state that no annotation is burned in, and the ratio and method of lossy compression. An
    enhanced CT must name its irradiation event, which an MR source lacks.
    """
    header, modality = result.header, result.modality
    if not header.enhanced or modality not in ("MR", header.series.modality):
        return False
    if modality not in _DEMANDED:
        return False
    known = losses(header.slices)
    known.update(kept(header.headers[0], _DEMANDED[modality]))
    lossy = _OF_LOSSY if word(known, "LossyImageCompression") == "01" else ()
    demanded = (*_DEMANDED[modality], *lossy)
    return word(known, "BurnedInAnnotation") == "NO" and all(word(known, each) for each in demanded)


def multiframe_image(result: DerivedSeries) -> DataSet:
    """Return the one object of a CT or MR result."""
    header = result.header
    dataset = shared_elements(result)
    dataset.update(kept(header.headers[0], _DEMANDED[result.modality]))
    dataset.update(_kind(result))
    for of_frames in ("DerivationCodeSequence", "Laterality", "ImageLaterality"):
        dataset.pop(of_frames, None)
    dataset.SOPClassUID = _ENHANCED_CLASSES[result.modality]
    dataset.SOPInstanceUID = derived_uid(result.derivation, result.series_uid, "0")
    dataset.ImageType = _FRAME_TYPE
    dataset.InstanceNumber = 1
    dataset.NumberOfFrames = len(header.frames)
    dataset.DeviceSerialNumber = "none"
    dataset.LossyImageCompression = word(dataset, "LossyImageCompression") or "00"
    dataset.PresentationLUTShape = "IDENTITY"
    dataset.ContentQualification = "RESEARCH"
    dataset.AcquisitionContextSequence = []
    dataset.SourceImageEvidenceSequence = evidence(header)
    dataset.update(_dimensions(result))
    dataset.SharedFunctionalGroupsSequence = [_shared_groups(result)]
    dataset.PerFrameFunctionalGroupsSequence = list(_per_frame_groups(result))
    if header.series.keep_private:
        _add_private(dataset, result)
    else:
        drop_private(dataset)
    dataset.PixelData = b"".join(result.stored.pixels[at].tobytes() for at in result.order)
    dataset["PixelData"].VR = "OW"
    dataset.file_meta = _meta()
    return dataset


def _kind(result: DerivedSeries) -> DataSet:
    """Return the description of the pixels of a synthetic volume by PS3.3 C.8.16.2."""
    dataset = pydicom.Dataset()
    dataset.PixelPresentation = "MONOCHROME"
    dataset.VolumetricProperties = "VOLUME"
    dataset.VolumeBasedCalculationTechnique = "NONE"
    if result.modality == "MR":
        dataset.ComplexImageComponent = component_of(result.header.frames[0].contrast)
        dataset.AcquisitionContrast = "UNKNOWN"
    return dataset


def _dimensions(result: DerivedSeries) -> DataSet:
    uid = derived_uid(result.derivation, result.series_uid, "dimensions")
    dataset, organization = pydicom.Dataset(), pydicom.Dataset()
    organization.DimensionOrganizationUID = uid
    dataset.DimensionOrganizationSequence = [organization]
    keywords = ("StackID", "InStackPositionNumber")
    dataset.DimensionIndexSequence = [_dimension(uid, keyword) for keyword in keywords]
    return dataset


def _dimension(organization: str, keyword: str) -> DataSet:
    item = pydicom.Dataset()
    item.DimensionOrganizationUID = organization
    item.DimensionIndexPointer = tag_of(keyword)
    item.FunctionalGroupPointer = tag_of("FrameContentSequence")
    return item


def _shared_groups(result: DerivedSeries) -> DataSet:
    first, scale = result.header.frames[0], result.stored.scale
    groups, measures, orientation = (pydicom.Dataset() for _ in range(3))
    measures.PixelSpacing = [as_decimal(value) for value in first.spacing]
    distance = float(np.linalg.norm(grid_of(result.header.frames).affine[:3, 2]))
    measures.SliceThickness = measures.SpacingBetweenSlices = as_decimal(distance)
    groups.PixelMeasuresSequence = [measures]
    orientation.ImageOrientationPatient = [as_decimal(value) for value in first.orientation]
    groups.PlaneOrientationSequence = [orientation]
    values, display, kind = pydicom.Dataset(), pydicom.Dataset(), _kind(result)
    values.RescaleSlope = as_decimal(scale.slope)
    values.RescaleIntercept = as_decimal(scale.intercept)
    values.RescaleType = "HU" if result.modality == "CT" else "US"
    groups.PixelValueTransformationSequence = [values]
    center, width = window(result.stored, result.modality)
    display.WindowCenter, display.WindowWidth = as_decimal(center), as_decimal(width)
    groups.FrameVOILUTSequence = [display]
    kind.FrameType = _FRAME_TYPE
    setattr(groups, _FRAME_TYPE_SEQUENCES[result.modality], [kind])
    return groups


def _per_frame_groups(result: DerivedSeries) -> Iterator[DataSet]:
    header, along, source_groups = result.header, result.along, _source_groups(result.header)
    for at in result.order:
        frame, own = header.frames[at], source_groups[at]
        groups, content, position, derived = (pydicom.Dataset() for _ in range(4))
        content.StackID, content.InStackPositionNumber = _STACK, along.index(at) + 1
        content.DimensionIndexValues = [1, content.InStackPositionNumber]
        groups.FrameContentSequence = [content]
        position.ImagePositionPatient = [as_decimal(value) for value in frame.position]
        groups.PlanePositionSequence = [position]
        derived.SourceImageSequence = source_images(header, at)
        derived.DerivationCodeSequence = derivation_codes(header.series.uneven)
        groups.DerivationImageSequence = [derived]
        groups.FrameAnatomySequence = [own("FrameAnatomySequence") or _anatomy()]
        if irradiation := own("IrradiationEventIdentificationSequence"):
            groups.IrradiationEventIdentificationSequence = [irradiation]
        yield groups


def _source_groups(header: DicomHeader) -> list[FrameGroups]:
    """Return the functional groups of the source, frame by frame."""
    of_files: dict[Path, list[FrameGroups]] = {}
    for frame, source in zip(header.frames, header.headers, strict=True):
        if frame.file not in of_files:
            of_files[frame.file] = list(frame_groups(source))
    return [of_files[frame.file][frame.number] for frame in header.frames]


def _add_private(dataset: DataSet, result: DerivedSeries) -> None:
    """Copy private elements of the sources to the same places in the result."""
    dataset.update(private_elements(result.header.headers[0]))
    groups = _source_groups(result.header)
    [shared] = dataset.SharedFunctionalGroupsSequence
    shared.update(private_elements(groups[0].shared))
    for own, at in zip(dataset.PerFrameFunctionalGroupsSequence, result.order, strict=True):
        own.update(private_elements(groups[at].own))


def _anatomy() -> DataSet:
    item = pydicom.Dataset()
    item.FrameLaterality = "U"
    item.AnatomicRegionSequence = [coded(*_WHOLE_BODY)]
    return item


_FEWEST_DIGITS = 4


def write_series(volume: Volume, folder: Path, derivation: Derivation) -> None:
    """Write a series into an empty folder: one enhanced file for an enhanced source, else one a
    slice. Raises WriteError and OSError.
    """
    header = volume.header
    if not isinstance(header, DicomHeader):
        raise WriteError(f"{folder} was not written: its source is not a DICOM series.")
    result = result_of(volume, header, derivation)
    digits = max(_FEWEST_DIGITS, len(str(len(header.frames))))
    if fits_multiframe(result):
        datasets = iter([multiframe_image(result)])
    else:
        datasets = single_images(result)
    for at, dataset in enumerate(datasets, 1):
        encode_own_text(dataset)
        dataset.save_as(folder / f"{at:0{digits}}.dcm", enforce_file_format=True)


_CLASSES = {"CT": CTImageStorage, "MR": MRImageStorage}
"""SOP classes by modality whose images can be written from geometry and pixels alone."""


def single_images(result: DerivedSeries) -> Iterator[DataSet]:
    """Yield one object per slice, in the order of the source's numbers."""
    keep_private = result.header.series.keep_private
    shared = _shared_by_images(result)
    if not keep_private:
        drop_private(shared)
    encode_own_text(shared)
    template = _Template(shared)
    for instance, at in enumerate(result.order, 1):
        frame, source = result.header.frames[at], result.header.headers[at]
        dataset = template.copy()
        dataset.update(kept(source, ACQUIRED))
        if keep_private:
            dataset.update(private_elements(source))
        dataset.update(_plane(frame, source, result.header))
        dataset.SOPInstanceUID = derived_uid(result.derivation, result.series_uid, str(at))
        dataset.InstanceNumber = instance
        dataset.SourceImageSequence = source_images(result.header, at)
        dataset.PixelData = result.stored.pixels[at].tobytes()
        dataset["PixelData"].VR = "OW"
        yield dataset


class _Template:
    """Elements that many files share, turned into bytes once."""

    def __init__(self, dataset: DataSet) -> None:
        buffer = io.BytesIO()
        dataset.file_meta = _meta()
        dataset.save_as(buffer, enforce_file_format=True)
        buffer.seek(0)
        self._encoded = pydicom.dcmread(buffer)

    def copy(self) -> DataSet:
        """Return a new data set of these elements, to be stored in explicit little endian."""
        encoded = self._encoded
        dataset = pydicom.Dataset({tag: encoded.get_item(tag) for tag in encoded.keys()})  # noqa: SIM118
        dataset.set_original_encoding(False, True, encoded.original_character_set)
        dataset.file_meta = _meta()
        return dataset


def _meta() -> DataSet:
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return meta


def _shared_by_images(result: DerivedSeries) -> DataSet:
    """Return the elements that are alike in all single images."""
    dataset = shared_elements(result)
    dataset.SOPClassUID = _CLASSES.get(result.modality, SecondaryCaptureImageStorage)
    dataset.SOPInstanceUID = result.series_uid  # replaced in each image
    dataset.ImageType = ["DERIVED", "SECONDARY", "AXIAL" if result.modality == "CT" else "OTHER"]
    component = component_of(result.header.frames[0].contrast)
    if result.modality == "MR" and component != MAGNITUDE:
        dataset.ImageType += [component]  # as single images have no element of their own for it
    if shows := result.derivation.shows:
        dataset.ImageType += [MAP_TYPE, shows.kind.replace("-", "_").upper()]
    center, width = window(result.stored, result.modality)
    dataset.WindowCenter, dataset.WindowWidth = as_decimal(center), as_decimal(width)
    scale = result.stored.scale
    if result.modality == "CT" or (scale.slope, scale.intercept) != (1.0, 0.0):
        dataset.RescaleSlope = as_decimal(scale.slope)
        dataset.RescaleIntercept = as_decimal(scale.intercept)
        dataset.RescaleType = "HU" if result.modality == "CT" else "US"
    dataset.update(_of_class(dataset.SOPClassUID, result.header.headers[0]))
    return dataset


def _of_class(sop_class: str, source: DataSet) -> DataSet:
    """Return the elements that a class requires in every image, empty as nothing was acquired."""
    dataset = pydicom.Dataset()
    if sop_class == CTImageStorage:
        dataset.KVP = dataset.AcquisitionNumber = None
    elif sop_class == MRImageStorage:
        dataset.ScanningSequence, dataset.SequenceVariant = "RM", "NONE"
        dataset.ScanOptions = dataset.MRAcquisitionType = None
        dataset.RepetitionTime = dataset.EchoTime = dataset.EchoTrainLength = None
        dataset.update(kept(source, ["MRAcquisitionType"]))  # whether it is sampled in 2D or 3D
    else:
        dataset.ConversionType = "WSD"
        dataset.PatientOrientation = None  # demanded, as the class demands no plane
    return dataset


def _plane(frame: Frame, source: DataSet, header: DicomHeader) -> DataSet:
    """Return the image plane of a slice, as in the source if that describes this slice alone."""
    alone = not (header.resampled or header.enhanced)
    dataset = kept(source, PLANE if alone else ["SliceThickness"])
    if "ImagePositionPatient" not in dataset:
        dataset.ImagePositionPatient = [as_decimal(value) for value in frame.position]
        dataset.ImageOrientationPatient = [as_decimal(value) for value in frame.orientation]
        dataset.PixelSpacing = [as_decimal(value) for value in frame.spacing]
    if "SliceThickness" not in dataset:
        dataset.SliceThickness = None
    return dataset
