"""A derived DICOM series in the geometry of its source, as a folder of files."""

from collections.abc import Iterator
from pathlib import Path

from pydicom.uid import CTImageStorage, MRImageStorage, SecondaryCaptureImageStorage

from ...errors import WriteError
from ...volume import Derivation, Volume
from ..instance import DataSet, Frame
from ..kinds import MAP_TYPE
from ..library import Template, pydicom
from ..parts import MAGNITUDE, component_of
from ..pixels.reading import DicomHeader
from ..stored_text import encode_own_text
from .mending import kept
from .modules import ACQUIRED, PLANE, drop_private, private_elements
from .multiframe import fits_multiframe, multiframe_image
from .references import source_images
from .result import DerivedSeries, derived_uid, result_of, shared_elements
from .storage import as_decimal, window

FEWEST_DIGITS = 4


def write_series(volume: Volume, folder: Path, derivation: Derivation) -> None:
    """Write a series into an empty folder: one enhanced file for an enhanced source, else one a
    slice. Raises WriteError and OSError.
    """
    header = volume.header
    if not isinstance(header, DicomHeader):
        raise WriteError(f"{folder} was not written: its source was not read as DICOM.")
    result = result_of(volume, header, derivation)
    digits = max(FEWEST_DIGITS, len(str(len(header.frames))))
    if fits_multiframe(result):
        datasets = iter([multiframe_image(result)])
    else:
        datasets = single_images(result)
    for at, dataset in enumerate(datasets, 1):
        encode_own_text(dataset)
        dataset.save_as(folder / f"{at:0{digits}}.dcm", enforce_file_format=True)


_CLASSES = {"CT": CTImageStorage, "MR": MRImageStorage}
"""Of the modalities whose images can be made from geometry and pixels alone."""


def single_images(result: DerivedSeries) -> Iterator[DataSet]:
    """One object a slice, in the order in which the source numbers them."""
    keep_private = result.header.series.keep_private
    shared = _template(result)
    if not keep_private:
        drop_private(shared)
    encode_own_text(shared)
    template = Template(shared)
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


def _template(result: DerivedSeries) -> DataSet:
    dataset = shared_elements(result)
    dataset.SOPClassUID = _CLASSES.get(result.modality, SecondaryCaptureImageStorage)
    dataset.SOPInstanceUID = result.series_uid  # a stand-in, as every object has its own
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
    """What a class demands of every image, where nothing was acquired."""
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
    """Where the slice lies, as the source writes it if it speaks of this slice alone."""
    alone = not (header.resampled or header.enhanced)
    dataset = kept(source, PLANE if alone else ["SliceThickness"])
    if "ImagePositionPatient" not in dataset:
        dataset.ImagePositionPatient = [as_decimal(value) for value in frame.position]
        dataset.ImageOrientationPatient = [as_decimal(value) for value in frame.orientation]
        dataset.PixelSpacing = [as_decimal(value) for value in frame.spacing]
    if "SliceThickness" not in dataset:
        dataset.SliceThickness = None
    return dataset
