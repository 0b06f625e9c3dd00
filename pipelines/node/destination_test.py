"""Test of a route's destination: an answer, a synthetic series there, and the same series back."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

from ...io.dicom_network.errors import NetworkError
from ...io.dicom_network.retrieval import retrieve_series
from ...io.dicom_network.sending import sending_to
from ...io.dicom_network.tls import Certificates
from .delivery import Destination
from .routes import Route

PATIENT = "TEST^CUDA-CYCLEGAN"
SLICES, SIDE = 4, 32


def test_destination(
    route: Route, certificates: Certificates | None
) -> Iterator[tuple[str, str | None]]:
    """Yield each step of the test in words, with its error or None; the first error ends it.

    The series stays at the destination, under a patient name that is PATIENT. Raises
    CertificateError.
    """
    destination = Destination.of(route)
    peer, tls = destination.peer, destination.tls_context(certificates)
    with tempfile.TemporaryDirectory() as folder:
        files = synthetic_series(Path(folder))
        try:
            with sending_to(peer, destination.calling, tls) as link:
                step = f"C-ECHO to {peer}"
                link.echo()
                yield step, None
                step = f"{SLICES} images of patient {PATIENT} to {peer}"
                for file in files.values():
                    link.store(file)
                yield step, None
        except NetworkError as error:
            yield f"{peer}", str(error)
            return
        step = f"the same images back from {peer}, by C-GET"
        first = next(iter(files.values()))
        try:
            back = retrieve_series(peer, destination.calling, tls, *_uids(first))
        except NetworkError as error:
            yield step, str(error)
            return
        missing = files.keys() - back.keys()
        changed = [one for one, image in back.items() if image != _pixels(files[one])]
        yield step, _trouble(missing, changed)


def _trouble(missing: set[str], changed: Sequence[str]) -> str | None:
    if missing:
        return f"{len(missing)} of {SLICES} are missing"
    return f"{len(changed)} of {SLICES} have other pixels" if changed else None


def synthetic_series(folder: Path) -> dict[str, Path]:
    """Write an MR series of a made-up patient; return its files by SOP instance UID."""
    study, series, frame = generate_uid(), generate_uid(), generate_uid()
    files: dict[str, Path] = {}
    for number in range(SLICES):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = MRImageStorage
        meta.MediaStorageSOPInstanceUID = instance = generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        image = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
        image.SOPClassUID, image.SOPInstanceUID = MRImageStorage, instance
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


def _uids(file: Path) -> tuple[str, str]:
    from pydicom import dcmread

    image = dcmread(file, stop_before_pixels=True)
    return image.StudyInstanceUID, image.SeriesInstanceUID


def _pixels(file: Path) -> bytes:
    from pydicom import dcmread

    return dcmread(file).PixelData
