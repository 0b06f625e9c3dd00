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
from support.frames import unpack_here

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


def test_a_slope_of_all_frames_counts_where_no_group_has_one(tmp_path: Path) -> None:
    values = write_enhanced(MR, tmp_path / "in" / "one")
    data = pydicom.dcmread(tmp_path / "in" / "one")
    for groups in data.PerFrameFunctionalGroupsSequence:
        del groups.PixelValueTransformationSequence
    data.RescaleSlope, data.RescaleIntercept = "3", "-7"
    data.save_as(tmp_path / "in" / "one")
    [study] = discover([tmp_path / "in"], None).studies
    expected = values[0, 0] * 3 - 7
    np.testing.assert_array_equal(read(study).values().transpose(2, 1, 0), expected)


@pytest.mark.parametrize("total", [3, None])
def test_an_object_in_several_files_is_one_volume_or_refused(
    tmp_path: Path, total: int | None
) -> None:
    values = write_enhanced(MR, tmp_path / "whole")
    parts = concatenation(tmp_path / "whole", tmp_path / "in", total)
    [study] = discover([tmp_path / "in"], None).studies
    np.testing.assert_array_equal(read(study).values().transpose(2, 1, 0), values[0, 0])
    for at, part in enumerate(parts):
        content = part.read_bytes()
        part.unlink()
        [study] = discover([tmp_path / "in"], None).studies
        if total is None and at == len(parts) - 1:  # which nothing in the others tells of
            assert read(study).shape[2] == 8
        else:
            with pytest.raises(
                UnreadableScanError, match=rf"in 3 files .* number {at + 1} is missing"
            ):
                read(study)
        part.write_bytes(content)


def test_a_damaged_number_of_parts_is_refused_at_once(tmp_path: Path) -> None:
    write_enhanced(MR, tmp_path / "whole")
    for part in concatenation(tmp_path / "whole", tmp_path / "in", None):
        data = pydicom.dcmread(part)
        data.add_new("InConcatenationTotalNumber", "UL", 4_000_000_000)
        data.save_as(part)
    [study] = discover([tmp_path / "in"], None).studies
    with pytest.raises(UnreadableScanError, match="number 4, 5, 6 and 65529 more is missing"):
        read(study)


def concatenation(whole: Path, folder: Path, total: int | None) -> list[Path]:
    """Three files of four frames each, of an object that has twelve."""
    folder.mkdir()
    paths: list[Path] = []
    for at in range(3):
        data = pydicom.dcmread(whole)
        frames = slice(4 * at, 4 * at + 4)
        data.PixelData = data.pixel_array[frames].tobytes()
        data.NumberOfFrames = 4
        data.PerFrameFunctionalGroupsSequence = data.PerFrameFunctionalGroupsSequence[frames]
        data.SOPInstanceUIDOfConcatenationSource = data.SOPInstanceUID
        data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.{at}"
        data.ConcatenationUID, data.InConcatenationNumber = "1.2.3.99", at + 1
        data.ConcatenationFrameOffsetNumber = 4 * at
        if total:
            data.InConcatenationTotalNumber = total
        paths.append(folder / str(at))
        data.save_as(paths[-1])
    return paths


def test_echoes_are_apart_and_time_points_are_volumes(tmp_path: Path) -> None:
    values = write_enhanced(MR, tmp_path / "in" / "one", times=3, echoes=(10.0, 90.0))
    studies = discover([tmp_path / "in"], None).studies
    assert len(studies) == 2
    for at_echo, study in enumerate(studies):
        with pytest.raises(UnsupportedScanError, match="contains 3 volumes"):
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
            decode(packed, Path(packing), index, unpack_here).values,
            decode(plain, Path("plain"), index, unpack_here).values,
        )


def test_frames_without_geometry_are_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(Path(str(get_testdata_file("emri_small.dcm"))), tmp_path / "in" / "one")
    [skip] = discover([tmp_path / "in"], None).skipped
    assert "have no position in the patient" in skip.reason
