"""A synthetic MR series of a made-up patient, for tests of destinations."""

from pathlib import Path

import numpy as np

from ..dicom.dataset import pydicom
from ..files.regular import open_regular

PATIENT = "TEST^CUDA-CYCLEGAN"
SLICES, SIDE = 4, 32


def write_synthetic_series(folder: Path) -> dict[str, Path]:
    """Write the series, with new UIDs each time; return its files by SOP instance UID."""
    uid = pydicom.uid
    study, series, frame = (uid.generate_uid() for _ in range(3))
    files: dict[str, Path] = {}
    for number in range(SLICES):
        instance = str(uid.generate_uid())
        image = pydicom.Dataset()
        image.file_meta = pydicom.dataset.FileMetaDataset()
        image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = uid.MRImageStorage
        image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = instance
        image.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
        image.StudyInstanceUID, image.SeriesInstanceUID = study, series
        image.FrameOfReferenceUID = frame
        image.PatientName, image.PatientID = PATIENT, "CUDA-CYCLEGAN-TEST"
        image.PatientBirthDate = image.PatientSex = image.StudyDate = image.StudyTime = ""
        image.AccessionNumber = image.ReferringPhysicianName = image.StudyID = ""
        image.Modality, image.SeriesDescription = "MR", "Test of a route, synthetic"
        image.ImageType = ["DERIVED", "SECONDARY", "OTHER"]
        image.SeriesNumber, image.InstanceNumber = 1, number + 1
        image.ImagePositionPatient = [0, 0, number]
        image.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        image.PixelSpacing, image.SliceThickness = [1, 1], 1
        image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
        image.Rows = image.Columns = SIDE
        image.BitsAllocated = image.BitsStored = 16
        image.HighBit, image.PixelRepresentation = 15, 0
        ramp = np.arange(SIDE * SIDE, dtype="<u2").reshape(SIDE, SIDE)
        image.PixelData = (ramp + number).tobytes()
        files[instance] = folder / f"{number}.dcm"
        image.save_as(files[instance], enforce_file_format=True)
    return files


def series_of(file: Path) -> tuple[str, str]:
    """Return the UIDs of a file's study and series."""
    with open_regular(file) as opened:
        image = pydicom.dcmread(opened, stop_before_pixels=True)
    return str(image.StudyInstanceUID), str(image.SeriesInstanceUID)


def pixels_of(file: Path) -> bytes:
    """Return the bytes of a file's pixels."""
    with open_regular(file) as opened:
        return pydicom.dcmread(opened).PixelData
