"""Enhanced multi-frame objects: volumes by their functional groups, and results of their kind."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
import pytest
from pydicom.data import get_testdata_file
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_judges import (
    assert_converts_to,
    conformance_errors,
    converted,
    is_part_10,
)
from support.dicom_phantoms import STORED, Phantom, oblique

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.pixels.decoding import decode
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import UnreadableScanError, UnsupportedScanError
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
MR = Phantom("MR", intercept=0.0)
TO_CT = Derivation("t1-to-ct", "T1", "CT", "0.1.0", "f" * 64, STORED)
TO_MR = Derivation("ct-to-t1", "CT", "T1", "0.1.0", "f" * 64, STORED)


def test_frames_lie_where_their_groups_put_them(tmp_path: Path) -> None:
    phantom = oblique(MR)
    values = write_enhanced(phantom, tmp_path / "in" / "one")
    [study] = discover([tmp_path / "in"], None).studies
    volume = read(study)
    np.testing.assert_allclose(volume.affine, phantom.affine(), atol=1e-6)
    np.testing.assert_array_equal(volume.values().transpose(2, 1, 0), values[0, 0])


def test_slopes_of_single_frames_count(tmp_path: Path) -> None:
    values = write_enhanced(MR, tmp_path / "in" / "one", slopes=(1.0, 0.5, 2.0))
    [study] = discover([tmp_path / "in"], None).studies
    np.testing.assert_allclose(read(study).values().transpose(2, 1, 0), values[0, 0])


@pytest.mark.parametrize("silent", [12, 3])
def test_frames_without_a_slope_hold_values_unless_others_have_one(
    tmp_path: Path, silent: int
) -> None:
    values = write_enhanced(MR, tmp_path / "in" / "one", slopes=(2.0,))
    data = pydicom.dcmread(tmp_path / "in" / "one")
    for groups in data.PerFrameFunctionalGroupsSequence[:silent]:
        del groups.PixelValueTransformationSequence
    data.save_as(tmp_path / "in" / "one")
    [study] = discover([tmp_path / "in"], None).studies
    if silent == 3:
        with pytest.raises(UnreadableScanError, match="3 of 12 slices without a rescale slope"):
            read(study)
        return
    volume = read(study)
    np.testing.assert_array_equal(volume.values().transpose(2, 1, 0), values[0, 0] / 2)
    write(volume, tmp_path / "out", TO_MR)


def test_echoes_are_apart_and_time_points_are_volumes(tmp_path: Path) -> None:
    values = write_enhanced(MR, tmp_path / "in" / "one", times=3, echoes=(10.0, 90.0))
    studies = discover([tmp_path / "in"], None).studies
    assert len(studies) == 2
    for at_echo, study in enumerate(studies):
        with pytest.raises(UnsupportedScanError, match="holds 3 volumes"):
            read(study)
        for time in range(3):
            found = read(study, time).values().transpose(2, 1, 0)
            np.testing.assert_array_equal(found, values[time, at_echo])


def test_an_enhanced_source_becomes_one_enhanced_object(tmp_path: Path) -> None:
    phantom = oblique(MR)
    write_enhanced(phantom, tmp_path / "in" / "one")
    [study] = discover([tmp_path / "in"], None).studies
    volume = read(study)
    write(volume, tmp_path / "out", TO_MR)
    [path] = (tmp_path / "out").iterdir()
    made = pydicom.dcmread(path)
    assert made.SOPClassUID == pydicom.uid.EnhancedMRImageStorage
    assert (made.NumberOfFrames, made.StudyInstanceUID) == (12, phantom.study)
    assert made.ImageType[0] == "DERIVED"
    origins = [
        frame.DerivationImageSequence[0].SourceImageSequence[0].ReferencedFrameNumber
        for frame in made.PerFrameFunctionalGroupsSequence
    ]
    assert origins == list(range(1, 13))
    assert conformance_errors(path) == set()
    assert is_part_10(path)
    assert_converts_to(volume, tmp_path / "out", tmp_path / "nifti")


def test_a_ct_of_an_enhanced_mr_is_single_images(tmp_path: Path) -> None:
    write_enhanced(MR, tmp_path / "in" / "one")
    [study] = discover([tmp_path / "in"], None).studies
    write(read(study), tmp_path / "out", TO_CT)
    paths = sorted((tmp_path / "out").iterdir())
    assert len(paths) == 12
    for at, path in enumerate(paths):
        assert conformance_errors(path) == set()
        made = pydicom.dcmread(path, stop_before_pixels=True)
        assert made.SOPClassUID == pydicom.uid.CTImageStorage
        assert made.SourceImageSequence[0].ReferencedFrameNumber == at + 1


def test_a_real_enhanced_ct_comes_back_without_new_faults(tmp_path: Path) -> None:
    real = Path(str(get_testdata_file("eCT_Supplemental.dcm")))
    (tmp_path / "in").mkdir()
    shutil.copy(real, tmp_path / "in" / "one")
    [study] = discover([tmp_path / "in"], None, Choice(fewest_slices=2)).studies
    volume = read(study)
    write(volume, tmp_path / "out", replace(TO_CT, source="CT"))
    [path] = (tmp_path / "out").iterdir()
    assert pydicom.dcmread(path).SOPClassUID == pydicom.uid.EnhancedCTImageStorage
    assert conformance_errors(path) <= conformance_errors(real)
    [source] = converted(tmp_path / "in", tmp_path / "before")
    [result] = converted(tmp_path / "out", tmp_path / "after")
    np.testing.assert_allclose(result.affine, source.affine, atol=1e-4)
    np.testing.assert_array_equal(result.get_fdata(), source.get_fdata())


@pytest.mark.parametrize("packing", ["RLE", "big_endian", "jpeg_2k_lossless", "jpeg_ls_lossless"])
def test_every_frame_of_a_real_file_is_the_same_in_every_packing(packing: str) -> None:
    plain = pydicom.dcmread(get_testdata_file("emri_small.dcm"))
    packed = pydicom.dcmread(get_testdata_file(f"emri_small_{packing}.dcm"))
    for index in range(10):
        np.testing.assert_array_equal(
            decode(packed, Path(packing), index).values,
            decode(plain, Path("plain"), index).values,
        )


def test_frames_without_geometry_are_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(Path(str(get_testdata_file("emri_small.dcm"))), tmp_path / "in" / "one")
    [skip] = discover([tmp_path / "in"], None).skipped
    assert "do not say where in the patient they lie" in skip.reason
