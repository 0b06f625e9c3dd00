"""A derived series: in its source's study and place, marked as synthetic, taken by all judges."""

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
import pytest
from pydicom.tag import tag_in_exception
from support.dicom_judges import (
    assert_converts_to,
    canonical,
    conformance_errors,
    converted,
    is_part_10,
)
from support.dicom_phantoms import STORED, Phantom, oblique

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.io.files.atomic import whole_folder
from cuda_cyclegan.io.files.parts import is_part
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import NOTICE, Derivation, Volume
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
CT = Phantom()
MR = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0)
TO_CT = Derivation("t1-to-ct", "T1", "CT", "0.1.0", "f" * 64, STORED)
TO_MR = Derivation("ct-to-t1", "CT", "T1", "0.1.0", "f" * 64, STORED)
SAME = {"CT": TO_CT, "MR": TO_MR}


def source(folder: Path, choice: Choice = Choice()) -> Volume:  # noqa: B008
    [study] = discover([folder], None, choice).studies
    return read(study)


def written(volume: Volume, folder: Path, derivation: Derivation) -> list[Any]:
    write(volume, folder, derivation)
    return [pydicom.dcmread(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("phantom", [CT, MR, oblique(CT)], ids=["CT", "MR", "oblique"])
def test_geometry_and_voxels_come_back(tmp_path: Path, phantom: Phantom) -> None:
    phantom.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    made = written(volume, tmp_path / "out", SAME[phantom.modality])
    assert [data.InstanceNumber for data in made] == list(range(1, 13))
    for data, original in zip(made, phantom.datasets(), strict=True):
        for name in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
            assert data[name].value == original[name].value
    again = Path(tmp_path / "again")
    for index, data in enumerate(made):
        data.Manufacturer = "anyone"  # what this program made is not taken again
        again.mkdir(exist_ok=True)
        data.save_as(again / f"{index}.dcm")
    found = source(again)
    np.testing.assert_allclose(found.affine, volume.affine, atol=1e-9)
    np.testing.assert_array_equal(found.values(), volume.values())


def test_patient_and_study_are_kept_and_the_rest_is_new(tmp_path: Path) -> None:
    MR.write(tmp_path / "in")
    made = written(source(tmp_path / "in"), tmp_path / "out", TO_CT)
    original = next(MR.datasets())
    for data in made:
        for name in (
            *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "PatientAge"),
            *("StudyInstanceUID", "StudyDate", "StudyTime", "StudyID", "AccessionNumber"),
            *("StudyDescription", "FrameOfReferenceUID", "PatientPosition", "BodyPartExamined"),
            *("SpecificCharacterSet", "AcquisitionDate", "AcquisitionTime"),
        ):
            assert data[name].value == original[name].value, name
        assert data.Modality == "CT"
        assert data.SOPClassUID == pydicom.uid.CTImageStorage
        assert list(data.ImageType) == ["DERIVED", "SECONDARY", "AXIAL"]
        assert data.SeriesInstanceUID != original.SeriesInstanceUID
        assert data.SeriesNumber == 10400
        for name in (
            *("EchoTime", "RepetitionTime", "ScanningSequence", "SmallestImagePixelValue"),
            "LargestImagePixelValue",
        ):
            assert name not in data
        assert not [element for element in data if element.tag.is_private]
    assert len({data.SOPInstanceUID for data in made}) == 12
    assert len({data.SeriesInstanceUID for data in made}) == 1


def test_a_result_says_that_it_is_synthetic_and_how_it_came_about(tmp_path: Path) -> None:
    MR.write(tmp_path / "in")
    made = written(source(tmp_path / "in"), tmp_path / "out", TO_CT)
    for data, original in zip(made, MR.datasets(), strict=True):
        assert data.SyntheticData == "YES"
        assert data.SeriesDescription == "Synthetic CT (t1-to-ct), not for diagnosis"
        assert "Not for diagnosis" in data.DerivationDescription
        assert "t1-to-ct" in data.DerivationDescription
        assert data.DerivationCodeSequence[0].CodeMeaning.startswith("Image synthesis")
        [origin] = data.SourceImageSequence
        assert origin.ReferencedSOPInstanceUID == original.SOPInstanceUID
        assert origin.ReferencedSOPClassUID == original.SOPClassUID
        scanner, program = data.ContributingEquipmentSequence
        assert (scanner.Manufacturer, program.Manufacturer) == ("Maker", "cuda-cyclegan")
        assert program.PurposeOfReferenceCodeSequence[0].CodeMeaning == "Synthesizing Equipment"


def test_a_result_says_that_its_source_was_incomplete(tmp_path: Path) -> None:
    MR.write(tmp_path / "in")
    derivation = replace(TO_CT, incomplete="the source was incomplete: 1 image not taken")
    made = written(source(tmp_path / "in"), tmp_path / "out", derivation)
    said = " The source was incomplete: 1 image not taken."
    for data in made:
        assert data.ImageComments == f"{NOTICE}{said}"
        assert data.DerivationDescription.endswith(f"cuda-cyclegan 0.1.0.{said}")


def test_a_re_run_makes_the_same_bytes_and_other_input_or_model_others(tmp_path: Path) -> None:
    CT.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    written(volume, tmp_path / "a", TO_CT)
    written(volume, tmp_path / "b", TO_CT)
    other = written(volume, tmp_path / "c", replace(TO_CT, fingerprint="e" * 64))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    first = pydicom.dcmread(tmp_path / "a" / "0001.dcm")
    assert first.SOPInstanceUID != other[0].SOPInstanceUID
    assert first.SeriesInstanceUID != other[0].SeriesInstanceUID
    uids = (first.SOPInstanceUID, first.SeriesInstanceUID)
    assert all(re.fullmatch(r"2\.25\.[1-9][0-9]{0,38}", uid) for uid in uids)


def test_a_later_result_of_a_corrected_study_is_known_by_the_time_of_its_series(
    tmp_path: Path,
) -> None:
    CT.write(tmp_path / "in", edit=in_tokyo)
    volume = source(tmp_path / "in")
    first = written(volume, tmp_path / "a", TO_CT)
    later = replace(TO_CT, fingerprint="e" * 64, newest_source=STORED + 60)
    second = written(volume, tmp_path / "b", later)
    assert {(data.SeriesDate, data.SeriesTime) for data in first} == {("20261123", "181000")}
    assert {(data.SeriesDate, data.SeriesTime) for data in second} == {("20261123", "181100")}


def in_tokyo(data: Any, _: int) -> None:
    data.TimezoneOffsetFromUTC = "+0900"


@pytest.mark.parametrize(("offset", "stored"), [("0900", STORED), ("+0900", 2**60)])
def test_broken_offsets_and_dates_of_files_fail_no_result(
    tmp_path: Path, offset: str, stored: int
) -> None:
    def elsewhere(data: Any, _: int) -> None:
        data.TimezoneOffsetFromUTC = offset

    CT.write(tmp_path / "in", edit=elsewhere)
    made = written(source(tmp_path / "in"), tmp_path / "a", replace(TO_CT, newest_source=stored))
    assert {"SeriesTime" in data for data in made} == {stored == STORED}


def test_the_series_number_clashes_with_none_of_the_study(tmp_path: Path) -> None:
    CT.write(tmp_path / "in", prefix="a")
    taken = replace(MR, number=10300)
    taken.write(tmp_path / "in", prefix="b")
    [study, _] = discover([tmp_path / "in"], None).studies
    made = written(read(study), tmp_path / "out", TO_MR)
    assert made[0].SeriesNumber == 10301


def test_padding_of_the_source_is_padding_again(tmp_path: Path) -> None:
    values = CT.voxels()
    values[:, :5] = -2000

    def edit(data: Any, at: int) -> None:
        data.PixelData = values[at].tobytes()
        data.PixelPaddingValue = -2000

    CT.write(tmp_path / "in", edit)
    made = written(source(tmp_path / "in"), tmp_path / "out", TO_CT)
    found = np.array([data.pixel_array for data in made])
    np.testing.assert_array_equal(found, values)
    assert made[0].PixelPaddingValue == -2000


def test_padding_of_an_mr_is_no_padding_of_a_ct(tmp_path: Path) -> None:
    values = MR.voxels()
    values[:, :5] = 0

    def edit(data: Any, at: int) -> None:
        data.PixelData = values[at].tobytes()
        data.PixelPaddingValue = 0

    MR.write(tmp_path / "in", edit)
    made = written(source(tmp_path / "in"), tmp_path / "out", TO_CT)
    assert "PixelPaddingValue" not in made[0]
    assert made[0].pixel_array[0, 0] == values[values > 0].min()


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_floats_are_spread_over_sixteen_bits(tmp_path: Path, scale: float) -> None:
    MR.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    values = (np.random.default_rng(1).normal(size=volume.shape) * scale).astype(np.float32)
    made = written(volume.with_voxels(values), tmp_path / "out", TO_CT)
    [slope, intercept] = [float(made[0].RescaleSlope), float(made[0].RescaleIntercept)]
    found = np.array([data.pixel_array for data in made]) * slope + intercept
    assert np.abs(found - values.transpose(2, 1, 0)).max() <= slope * 0.51
    assert slope * 65535 == pytest.approx(np.ptp(values), rel=1e-6)
    assert len(str(made[0]["RescaleSlope"].value.original_string)) <= 16
    assert float(made[0].WindowWidth) > 0


@pytest.mark.parametrize("offset", [-1024.0, 100.0, -1.0, 0.0], ids=str)
def test_an_mr_of_a_ct_has_no_intercept(tmp_path: Path, offset: float) -> None:
    """A viewer of MR may ignore it, as the class has no such element."""
    replace(CT, intercept=offset).write(tmp_path / "in")
    volume = source(tmp_path / "in")
    made = written(volume, tmp_path / "out", TO_MR)
    stored = np.array([data.pixel_array for data in made])
    np.testing.assert_array_equal(stored, volume.values().transpose(2, 1, 0))
    for data in made:
        assert data.get("RescaleIntercept", 0) == 0
        assert data.PixelRepresentation == int(offset < -100 or offset == 0.0)
    assert conformance_errors(tmp_path / "out" / "0001.dcm") <= conformance_errors(
        tmp_path / "in" / "im000"
    )


@pytest.mark.parametrize(
    ("low", "high", "signed"), [(-3.0, 5.0, True), (0.25, 7.0, False), (-9.0, -2.0, True)]
)
@pytest.mark.parametrize("slope", [1.0, -0.37])
def test_values_of_an_mr_are_spread_around_an_intercept_of_zero(
    tmp_path: Path, low: float, high: float, signed: bool, slope: float
) -> None:
    MR.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    values = np.random.default_rng(1).uniform(low, high, volume.shape).astype(np.float32)
    result = replace(volume.with_voxels((values - 0.11) / slope), slope=slope, intercept=0.11)
    made = written(result, tmp_path / "out", TO_MR)
    step = float(made[0].RescaleSlope)
    assert made[0].RescaleIntercept == 0
    assert made[0].PixelRepresentation == int(signed)
    found = np.array([data.pixel_array for data in made]) * step
    assert np.abs(found - values.transpose(2, 1, 0)).max() <= step * 0.51
    assert step <= max(abs(low), abs(high)) / 32767


def test_sixteen_bits_that_cannot_hold_the_values_of_an_mr_are_scaled(tmp_path: Path) -> None:
    MR.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    voxels = volume.voxels.astype(np.int16)
    voxels[0, 0, 0], voxels[1, 0, 0] = -32768, 32767
    made = written(replace(volume.with_voxels(voxels), intercept=-1024.0), tmp_path / "out", TO_MR)
    step = float(made[0].RescaleSlope)
    assert made[0].RescaleIntercept == 0
    found = np.array([data.pixel_array for data in made]) * step
    wanted = voxels.transpose(2, 1, 0) - 1024.0
    assert np.abs(found - wanted).max() <= step * 0.51


def test_padding_of_an_mr_moves_with_its_values(tmp_path: Path) -> None:
    values = MR.voxels()
    values[:, :5] = 0

    def edit(data: Any, at: int) -> None:
        data.PixelData = values[at].tobytes()
        data.PixelPaddingValue, data.RescaleSlope, data.RescaleIntercept = 0, 1, -7

    MR.write(tmp_path / "in", edit)
    made = written(source(tmp_path / "in"), tmp_path / "out", TO_MR)
    assert made[0].PixelPaddingValue == -7
    found = np.array([data.pixel_array for data in made])
    np.testing.assert_array_equal(found, values - 7)


def test_a_constant_result_is_written(tmp_path: Path) -> None:
    MR.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    flat = volume.with_voxels(np.full(volume.shape, 0.25, np.float32))
    made = written(flat, tmp_path / "out", TO_MR)
    value = made[0].pixel_array * float(made[0].RescaleSlope) + float(made[0].RescaleIntercept)
    np.testing.assert_allclose(value, 0.25)


def test_inverted_grey_is_written_upright_with_the_same_values(tmp_path: Path) -> None:
    MR.write(tmp_path / "in", lambda d, _: setattr(d, "PhotometricInterpretation", "MONOCHROME1"))
    volume = source(tmp_path / "in")
    made = written(volume, tmp_path / "out", TO_MR)
    assert made[0].PhotometricInterpretation == "MONOCHROME2"
    line = [(float(d.get("RescaleSlope", 1)), float(d.get("RescaleIntercept", 0))) for d in made]
    assert all(slope > 0 for slope, _ in line)
    values = [d.pixel_array * slope + add for d, (slope, add) in zip(made, line, strict=True)]
    np.testing.assert_allclose(np.array(values), volume.values().transpose(2, 1, 0))


def test_lossy_source_stays_lossy(tmp_path: Path) -> None:
    CT.write(tmp_path / "in", lambda data, _: setattr(data, "LossyImageCompression", "01"))
    made = written(source(tmp_path / "in"), tmp_path / "out", TO_CT)
    assert made[0].LossyImageCompression == "01"


@pytest.mark.parametrize("model", ["a\\b", "Modèle été", "x" * 200, "line\nbreak"])
def test_any_model_name_makes_sound_files(tmp_path: Path, model: str) -> None:
    CT.write(tmp_path / "in", lambda data, _: delattr(data, "SpecificCharacterSet"))
    made = written(source(tmp_path / "in"), tmp_path / "out", replace(TO_CT, model=model))
    assert len(made[0].SeriesDescription) <= 64
    assert made[0]["SeriesDescription"].VM == 1
    assert made[0].SeriesDescription.endswith("not for diagnosis")
    assert conformance_errors(tmp_path / "out" / "0001.dcm") <= conformance_errors(
        tmp_path / "in" / "im000"
    )


def test_text_of_other_alphabets_is_kept(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        data.SpecificCharacterSet = "ISO_IR 192"
        data.PatientName = "Ямада^太郎"

    CT.write(tmp_path / "in", edit)
    made = written(source(tmp_path / "in"), tmp_path / "out", TO_CT)
    assert str(made[0].PatientName) == "Ямада^太郎"


@pytest.mark.process
@pytest.mark.parametrize("phantom", [CT, MR], ids=["CT", "MR"])
@pytest.mark.parametrize("derivation", [TO_CT, TO_MR], ids=["to CT", "to MR"])
def test_the_judges_find_no_fault(tmp_path: Path, phantom: Phantom, derivation: Derivation) -> None:
    oblique(phantom).write(tmp_path / "in")
    volume = source(tmp_path / "in")
    written(volume, tmp_path / "out", derivation)
    for path in (tmp_path / "out").iterdir():
        assert conformance_errors(path) == set()
        assert is_part_10(path)
    assert_converts_to(volume, tmp_path / "out", tmp_path / "nifti")


def test_a_resampled_series_reports_it_and_lies_where_its_voxels_do(tmp_path: Path) -> None:
    replace(CT, step=(0.0, 0.5, 2.0)).write(tmp_path / "in")
    volume = source(tmp_path / "in", Choice(allow_uneven=True))
    made = written(volume, tmp_path / "out", TO_CT)
    assert "tilted by 14.04 degrees" in made[0].DerivationDescription
    meanings = [code.CodeMeaning for code in made[0].DerivationCodeSequence]
    assert "Spatial resampling" in meanings
    assert made[0].SourceImageSequence[0].SpatialLocationsPreserved == "NO"
    [image] = converted(tmp_path / "out", tmp_path / "nifti")
    expected = canonical(volume.values(), volume.affine)
    np.testing.assert_allclose(image.affine, expected.affine, atol=1e-4)


@pytest.mark.parametrize("target", ["PET", "CT (from MR)", "something else"])
def test_other_modalities_are_written_as_secondary_capture(tmp_path: Path, target: str) -> None:
    MR.write(tmp_path / "in")
    made = written(source(tmp_path / "in"), tmp_path / "out", replace(TO_CT, target=target))
    other = "1.2.840.10008.5.1.4.1.1.7"
    expected = {"PET": ("PT", other), "CT (from MR)": ("OT", other)}
    same = ("MR", pydicom.uid.MRImageStorage)
    assert (made[0].Modality, made[0].SOPClassUID) == expected.get(target, same)


def test_a_series_of_ours_replaces_another_whole(tmp_path: Path) -> None:
    CT.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    old = tmp_path / "out"
    old.mkdir()
    (old / "stale.dcm").touch()
    written(volume, old, TO_CT)
    assert sorted(path.name for path in old.iterdir()) == [f"{n:04}.dcm" for n in range(1, 13)]
    assert [path.name for path in tmp_path.iterdir() if is_part(path.name)] == []


def test_a_failure_leaves_an_older_series_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CT.write(tmp_path / "in")
    volume = source(tmp_path / "in")
    written(volume, tmp_path / "out", TO_CT)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pydicom.Dataset, "save_as", full)
    with pytest.raises(WriteError, match="disk is full"):
        write(volume, tmp_path / "out", TO_MR)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_as_nifti_a_series_keeps_grid_and_values(tmp_path: Path) -> None:
    oblique(CT).write(tmp_path / "in")
    volume = source(tmp_path / "in")
    write(volume, tmp_path / "out.nii.gz", TO_CT)
    [study] = discover([tmp_path / "out.nii.gz"], None).studies
    found = read(study)
    np.testing.assert_allclose(found.affine, volume.affine, atol=1e-5)
    np.testing.assert_array_equal(found.values(), volume.values())
    assert found.voxels.dtype == volume.voxels.dtype


def test_a_study_of_ours_is_known_again(tmp_path: Path) -> None:
    CT.write(tmp_path / "in")
    written(source(tmp_path / "in"), tmp_path / "in" / "result", TO_CT)
    rows = discover([tmp_path / "in"], None).series
    assert sorted((row.folder.name, row.is_result) for row in rows) == [
        ("in", False),
        ("result", True),
    ]
    shutil.rmtree(tmp_path / "in" / "result")


def test_a_full_disk_is_reported_as_such(tmp_path: Path) -> None:
    """pydicom puts its own words, a traceback among them, around what the system says."""
    full = r"was not written: the disk is full; free space or choose another output folder\.$"
    pixels = tag_in_exception(pydicom.tag.Tag("PixelData"))
    with pytest.raises(WriteError, match=full), whole_folder(tmp_path / "series"), pixels:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []
