"""Prediction by the header alone: what reading then returns, and takes."""

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom, set_position

from cuda_cyclegan.io.choice import EVERYTHING, Choice
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.io.reading import look_at, read
from cuda_cyclegan.io.volume import Study

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
LARGE = (160, 160, 128)
SLACK_BYTES = 1 << 20
"""Headers, and what Python takes by itself."""
CT = Phantom(rows=128, columns=160, slices=40)


@dataclass(frozen=True)
class Stored:
    """Sample that makes a scan at a path. volume: which of it is read. most: times the bytes of its
    voxels that may be foreseen at most.
    """

    make: Callable[[Path], object]
    name: str = "scan"
    volume: int | None = None
    most: float = 1
    choice: Choice = EVERYTHING


def nifti(shape: tuple[int, ...], dtype: str, slope: float = 1.0) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        image = nibabel.Nifti1Image(noise(shape).astype(dtype), np.diag([1.0, 2.0, 1.5, 1.0]))
        image.header.set_slope_inter(slope, 3.0 if slope != 1 else 0.0)
        image.to_filename(path)

    return make


def noise(shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    return np.random.default_rng(0).integers(0, 1000, shape).astype(np.int16)


def itk(shape: tuple[int, ...], packed: bool) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        image = sitk.GetImageFromArray(noise(shape), isVector=len(shape) > 3)
        sitk.WriteImage(image, str(path), packed)

    return make


def series(phantom: Phantom, edit: Callable[[Any, int], object] | None = None) -> Any:
    return lambda path: phantom.write(path, edit)


def padded(data: Any, _at: int) -> None:
    data.PixelPaddingValue = 130


def of_bytes(data: Any, _at: int) -> None:
    data.BitsAllocated = data.BitsStored = 8
    data.HighBit, data.PixelRepresentation = 7, 0
    data.PixelData = (np.frombuffer(data.PixelData, np.int16) % 250).astype(np.uint8).tobytes()
    data["PixelData"].VR = "OB"


def own_slopes(data: Any, at: int) -> None:
    data.RescaleSlope = 1 + at


def without_one(data: Any, at: int) -> None:
    x, y, z = data.ImagePositionPatient
    set_position(data, (float(x), float(y), float(z) + 2.0 * (at >= 20)))


MET = {
    "nii": Stored(nifti(LARGE, "int16", 2.0), "a.nii"),
    "nii.gz": Stored(nifti((96, 96, 96), "float32"), "a.nii.gz"),
    "big endian": Stored(nifti(LARGE, ">i2"), "a.nii"),
    "one of three volumes": Stored(nifti((96, 96, 96, 3), "int16"), "a.nii.gz", volume=1),
    "nrrd": Stored(itk(LARGE, packed=False), "a.nrrd"),
    "nrrd, packed": Stored(itk((96, 96, 96), packed=True), "a.nrrd"),
    "mha, packed": Stored(itk((96, 96, 96), packed=True), "a.mha"),
    "mhd": Stored(itk(LARGE, packed=False), "a.mhd"),
    "one of three components": Stored(itk((48, 160, 160, 3), packed=True), "a.nrrd", 0, most=2),
    "series": Stored(series(CT)),
    "8 bits": Stored(series(CT, of_bytes)),
    "slopes of their own": Stored(series(CT, own_slopes), most=1.5),
    "padding": Stored(series(CT, padded), most=3),
    "a slice is missing": Stored(series(CT, without_one), choice=Choice(allow_uneven=True), most=2),
    "enhanced": Stored(lambda path: write_enhanced(CT, path / "im"), most=3),
    "enhanced, slopes": Stored(lambda path: write_enhanced(CT, path / "im", slopes=(1, 2)), most=3),
}
"""Memory by the accounts of Python, to which NumPy's memory is known."""


SLOW = ("8 bits", "padding")
"""Slow samples, each of whose properties another one shows."""


@pytest.mark.parametrize(
    "met", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MET]
)
def test_reading_gives_and_takes_what_was_foreseen(tmp_path: Path, met: str) -> None:
    stored = MET[met]
    study = found(stored, tmp_path)
    read(study, stored.volume)  # whatever is loaded with the first
    foreseen = look_at(study, stored.volume)
    tracemalloc.start()
    try:
        volume = read(study, stored.volume)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    agree(foreseen.volume, volume)
    assert foreseen.volume.voxels.base is not None
    assert volume.voxels.nbytes <= peak <= foreseen.reading_bytes + SLACK_BYTES
    assert foreseen.reading_bytes <= stored.most * volume.voxels.nbytes + 3 * SLACK_BYTES


@pytest.mark.parametrize("met", ["series", "nii"])
def test_missing_file_is_refused_as_by_reading(tmp_path: Path, met: str) -> None:
    study = found(MET[met], tmp_path)
    study.files[0].unlink()
    for look in (read, look_at):
        with pytest.raises(ScanError, match=r"is missing; check the path"):
            look(study)


def found(stored: Stored, folder: Path) -> Study:
    path = folder / stored.name
    stored.make(path)
    [study] = discover([path], None, stored.choice).studies
    return study


def agree(foreseen: Any, volume: Any) -> None:
    assert foreseen.voxels.dtype == volume.voxels.dtype.newbyteorder("=")
    assert (foreseen.shape, foreseen.format) == (volume.shape, volume.format)
    assert (foreseen.slope, foreseen.intercept) == (volume.slope, volume.intercept)
    np.testing.assert_allclose(foreseen.affine, volume.affine)
