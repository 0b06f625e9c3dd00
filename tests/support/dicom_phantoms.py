"""Series made slice by slice, so that a test can say what is wrong with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, MRImageStorage, generate_uid

pydicom: Any = _pydicom

PATIENT = "Doe^Jane"
PATIENT_ID = "HOSP-4711"
STORED = 1_795_425_000
"""Time at which a source was stored: 2026-11-23 at 09:10 UTC."""
Edit = Callable[[Any, int], None]


@dataclass(frozen=True)
class Phantom:
    """A stack of slices; step: from slice to slice in LPS, None for `spacing` along the normal."""

    modality: str = "CT"
    slices: int = 12
    rows: int = 20
    columns: int = 24
    pixel: tuple[float, float] = (0.75, 0.5)
    spacing: float = 2.0
    orientation: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    origin: tuple[float, float, float] = (-30.0, -20.0, 10.0)
    step: tuple[float, float, float] | None = None
    slope: float = 1.0
    intercept: float = -1024.0
    number: int = 3
    study: str = "1.2.3.4.5"
    series: str = "1.2.3.4.5.6"
    seed: int = 0

    def voxels(self) -> np.ndarray[Any, Any]:
        """Stored values [slice, row, column], no two slices alike."""
        noise = np.random.default_rng(self.seed)
        shape = (self.slices, self.rows, self.columns)
        k, j, i = np.indices(shape)
        pattern = 100 + 40 * k + 3 * j + i + noise.integers(0, 5, shape)
        return pattern.astype(np.int16)

    def positions(self) -> np.ndarray[Any, Any]:
        """First pixels of all slices, (slices, 3)."""
        row, column = np.reshape(self.orientation, (2, 3))
        step = np.cross(row, column) * self.spacing if self.step is None else np.array(self.step)
        return np.array(self.origin) + np.arange(self.slices)[:, None] * step

    def datasets(self) -> Iterator[Any]:
        series = self._series()
        for at, (pixels, position) in enumerate(zip(self.voxels(), self.positions(), strict=True)):
            yield _slice_of(series, at, pixels, position)

    def _series(self) -> Any:
        """Return what all slices have in common."""
        data = pydicom.Dataset()
        data.SpecificCharacterSet = "ISO_IR 100"
        data.SOPClassUID = {"CT": CTImageStorage, "MR": MRImageStorage}[self.modality]
        data.StudyInstanceUID, data.SeriesInstanceUID = self.study, self.series
        data.FrameOfReferenceUID = f"{self.study}.9"
        data.PatientName, data.PatientID = PATIENT, PATIENT_ID
        data.PatientBirthDate, data.PatientSex, data.PatientAge = "19700101", "F", "050Y"
        data.StudyDate, data.StudyTime, data.StudyID = "20200102", "101112", "7"
        data.ReferringPhysicianName, data.AccessionNumber = "Roe^Richard", "A1"
        data.StudyDescription, data.SeriesDescription = "Head of Jane", f"plain {self.modality}"
        data.Modality, data.SeriesNumber = self.modality, self.number
        data.AcquisitionNumber, data.PatientPosition = 1, "HFS"
        data.BodyPartExamined, data.PositionReferenceIndicator = "HEAD", ""
        data.Manufacturer, data.ManufacturerModelName = "Maker", "Scanner 1"
        data.AcquisitionDate, data.AcquisitionTime = "20200102", "101300"
        data.ContentDate, data.ContentTime = "20200102", "101400"
        data.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL" if self.modality == "CT" else "M"]
        data.ImageOrientationPatient = [f"{value:.10g}" for value in self.orientation]
        data.PixelSpacing = list(self.pixel)
        data.SliceThickness = 99  # a lie that nobody may believe
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.Rows, data.Columns = self.rows, self.columns
        data.BitsAllocated = data.BitsStored = 16
        data.HighBit, data.PixelRepresentation = 15, 1
        if self.modality == "CT":
            data.KVP = 120
            data.RescaleSlope, data.RescaleIntercept = self.slope, self.intercept
            data.RescaleType = "HU"
        else:
            data.ScanningSequence, data.SequenceVariant, data.ScanOptions = "SE", "NONE", ""
            data.MRAcquisitionType, data.EchoTrainLength = "2D", 1
            data.RepetitionTime, data.EchoTime, data.EchoNumbers = 500, 10, 1
        data.SmallestImagePixelValue, data.LargestImagePixelValue = 0, 999
        data.private_block(0x0019, "MAKER", create=True).add_new(1, "LO", "secret")
        return data

    def write(self, folder: Path, edit: Edit | None = None, prefix: str = "im") -> list[Path]:
        """Store all slices as files without suffix; `edit` may change each first."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{prefix}{at:03}" for at in range(self.slices)]
        for path, file in zip(paths, _encoded(self, edit), strict=True):
            path.write_bytes(file)
        return paths

    def affine(self) -> np.ndarray[Any, Any]:
        """RAS+ of voxels [column, row, slice], from the definition in PS3.3 C.7.6.2.1.1."""
        affine = np.eye(4)
        row, column = np.reshape(self.orientation, (2, 3))
        affine[:3, 0], affine[:3, 1] = row * self.pixel[1], column * self.pixel[0]
        positions = self.positions()
        affine[:3, 2] = (positions[-1] - positions[0]) / (self.slices - 1)
        affine[:3, 3] = positions[0]
        return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def _slice_of(series: Any, at: int, pixels: Any, position: Any) -> Any:
    """Return a slice with elements of its own, which take a tenth of the time if copied."""
    data = pydicom.Dataset({tag: copy(element) for tag, element in series.items()})
    data.SOPInstanceUID, data.InstanceNumber = f"{series.SeriesInstanceUID}.{at + 1}", at + 1
    set_position(data, position)
    data.PixelData = pixels.tobytes()
    data["PixelData"].VR = "OW"
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return data


def _encoded(phantom: Phantom, edit: Edit | None) -> Iterable[bytes]:
    """Files of a phantom, which take 2 ms a slice; those without an edit are kept."""
    return _edited(phantom, edit) if edit else _unedited(phantom)


@lru_cache(maxsize=16)
def _unedited(phantom: Phantom) -> list[bytes]:
    return list(_edited(phantom, lambda *_: None))


def _edited(phantom: Phantom, edit: Edit) -> Iterator[bytes]:
    for at, data in enumerate(phantom.datasets()):
        edit(data, at)
        file = BytesIO()
        data.save_as(file, enforce_file_format=True)
        yield file.getvalue()


def oblique(phantom: Phantom) -> Phantom:
    """The same stack turned about all three axes."""
    turn = _rotation(0, 0.3) @ _rotation(1, -0.5) @ _rotation(2, 1.1)
    return replace(phantom, orientation=tuple(turn[:, :2].T.ravel()))


def set_position(data: Any, position: Sequence[float]) -> None:
    """Put a slice somewhere else."""
    data.ImagePositionPatient = [f"{value:.10g}" for value in position]


def renamed(data: Any) -> None:
    """Give an instance an identity of its own."""
    data.SOPInstanceUID = generate_uid()


def _rotation(axis: int, angle: float) -> np.ndarray[Any, Any]:
    turn = np.eye(3)
    one, other = [at for at in range(3) if at != axis]
    turn[one, one] = turn[other, other] = np.cos(angle)
    turn[one, other], turn[other, one] = -np.sin(angle), np.sin(angle)
    return turn
