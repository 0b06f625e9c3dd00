"""translate on whole-patient folders: derived series, resume, formats, no word of the patient."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pydicom as _pydicom
import pytest
import SimpleITK as _SimpleITK
from support.batch_world import identity_model, recorded, scan
from support.dicom_judges import canonical, conformance_errors, converted
from support.dicom_pacs import orthanc, send_folder
from support.dicom_phantoms import PATIENT, PATIENT_ID, Phantom, oblique, renamed
from support.result_marks import read_mark
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
pydicom: Any = _pydicom
CT = oblique(Phantom(rows=24))
MR = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0)
TILTED = replace(
    CT, number=5, series="1.2.3.4.5.8", step=(0.0, 0.5, 2.0), orientation=MR.orientation
)


@dataclass(frozen=True)
class Ward:
    """A patient's folder, and where results go."""

    inputs: Path
    output: Path
    model: Path

    def translate(self, *options: str) -> Result:
        arguments = [self.inputs, "--model", self.model, "--output", self.output, *options]
        return CliRunner().invoke(app, ["translate", *map(str, arguments)])

    def series(self) -> dict[str, list[Path]]:
        """Files of each result folder, by its place below the output folder."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.output.rglob("*.dcm")):
            found.setdefault(path.parent.relative_to(self.output).as_posix(), []).append(path)
        return found

    def contents(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for files in self.series().values() for p in files}


def scout(data: Any, _: int) -> None:
    renamed(data)
    data.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    inputs = tmp_path / "disc"
    CT.write(inputs / "a" / "ct")
    MR.write(inputs / "a" / "mr")
    MR.write(inputs / "a" / "mr", scout, prefix="scout")
    (inputs / "a" / "README.TXT").write_text("Viewer for Windows")
    return Ward(inputs, tmp_path / "results", identity_model(tmp_path / "model", "CT", "T1 or CT"))


def test_every_series_gets_a_derived_one_with_an_identity_models_voxels(
    ward: Ward, tmp_path: Path
) -> None:
    shutil.rmtree(ward.inputs / "a" / "mr")
    result = ward.translate()
    assert result.exit_code == 0, result.output
    [(place, files)] = ward.series().items()
    assert place.startswith("a/ct/series-0003-")
    assert len(files) == 12
    for path in files:
        assert conformance_errors(path) == set()
    [source] = converted(ward.inputs / "a" / "ct", tmp_path / "before")
    [derived] = converted(ward.output / place, tmp_path / "after")
    np.testing.assert_allclose(derived.affine, source.affine, atol=1e-4)
    np.testing.assert_array_equal(derived.get_fdata(), source.get_fdata())


@pytest.mark.slow
def test_results_are_sent_to_a_pacs_with_what_else_lies_beside_them(
    ward: Ward, tmp_path: Path
) -> None:
    ward.output.mkdir()
    ward.translate("--preview", "--report", str(ward.output / "report.json"))
    assert len(list(ward.output.rglob("*.png"))) == 2
    with orthanc(tmp_path / "pacs") as pacs:
        send_folder(ward.output, pacs.dicom_port, "+sp", "*.dcm")
        [series] = pacs.series_by_study().values()
    assert sorted(series.values()) == [12, 12]


def test_a_second_run_keeps_all_and_a_new_one_makes_the_same_bytes(ward: Ward) -> None:
    ward.translate()
    first = ward.contents()
    assert len(first) == 12
    assert len(ward.series()) == 2
    again = ward.translate()
    assert "2 up to date" in again.output
    ward.translate("--overwrite")
    assert ward.contents() == first
    shutil.rmtree(ward.output)
    ward.translate()
    assert ward.contents() == first


def test_the_newer_result_of_a_corrected_study_is_known_by_its_time(ward: Ward) -> None:
    paths = sorted((ward.inputs / "a" / "ct").iterdir())
    for path in paths:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    ward.translate()
    before = {name: pydicom.dcmread(files[0]) for name, files in ward.series().items()}
    corrected = pydicom.dcmread(paths[0])
    corrected.PixelData = corrected.PixelData[:-2] + b"\x01\x01"
    corrected.save_as(paths[0])
    ward.translate()
    after = {name: pydicom.dcmread(files[0]) for name, files in ward.series().items()}
    [new] = [name for name in after if after[name] != before[name]]
    assert after[new].SeriesInstanceUID != before[new].SeriesInstanceUID
    assert moment(after[new]) > moment(before[new])


def test_a_result_of_other_words_is_made_anew_and_another_series(
    ward: Ward, tmp_path: Path
) -> None:
    ward.translate()
    before = {data.SeriesInstanceUID: data.Modality for data in map(pydicom.dcmread, dcm(ward))}
    pet = edited(ward, tmp_path / "pet.safetensors", "--target", "PET")
    assert pet.translate("--dry-run").output.count("redone: the model's labels changed") == 2
    assert "2 translated" in pet.translate().output
    after = {data.SeriesInstanceUID: data.Modality for data in map(pydicom.dcmread, dcm(ward))}
    assert set(after.values()) == {"PT"} != set(before.values())
    assert not before.keys() & after.keys()


@pytest.mark.parametrize("words", [("--licence", "MIT"), ("--format", "nifti")])
def test_words_that_no_result_shows_leave_it_up_to_date(
    ward: Ward, tmp_path: Path, words: tuple[str, str]
) -> None:
    """A licence stands in no series, and nothing of the model in a NIfTI."""
    as_ = words if words[0] == "--format" else ()
    ward.translate(*as_)
    other = words if not as_ else ("--target", "PET", "--name", "Other")
    again = edited(ward, tmp_path / "other.safetensors", *other).translate(*as_)
    assert "2 up to date" in again.output


def edited(ward: Ward, model: Path, *words: str) -> Ward:
    """The same with a model of other words."""
    line = ["model", "edit", str(ward.model), "--output", str(model), *words]
    assert CliRunner().invoke(app, line).exit_code == 0
    return replace(ward, model=model)


def dcm(ward: Ward) -> list[Path]:
    return sorted(ward.output.rglob("*.dcm"))


def moment(data: Any) -> tuple[str, str]:
    return data.SeriesDate, data.SeriesTime


def test_a_series_that_lost_or_changed_a_slice_is_seen(ward: Ward) -> None:
    ward.translate()
    [ct, mr] = ward.series().values()
    ct[3].unlink()
    assert "a part of its result was deleted" in ward.translate().output
    assert len(ward.series()) == 2
    mr[2].write_bytes(b"someone's own")
    refused = ward.translate()
    assert refused.exit_code == 1
    assert "was changed after this program wrote it" in refused.output
    assert mr[2].read_bytes() == b"someone's own"


def test_a_strangers_file_in_a_result_folder_is_not_destroyed(ward: Ward) -> None:
    ward.translate()
    place = ward.output / next(iter(ward.series()))
    (place / "notes.txt").write_text("seen by Dr X")
    refused = ward.translate()
    assert refused.exit_code == 1
    assert (place / "notes.txt").exists()


def test_a_changed_slice_makes_its_series_due(ward: Ward) -> None:
    ward.translate()
    path = ward.inputs / "a" / "ct" / "im004"
    data = pydicom.dcmread(path)
    data.PixelData = bytes(len(data.PixelData))
    data.save_as(path)
    assert "the input changed" in ward.translate().output


def test_as_nifti(ward: Ward) -> None:
    scan(ward.inputs / "b" / "scan.nii")
    assert ward.translate("--format", "nifti").exit_code == 0
    names = sorted(p.relative_to(ward.output).as_posix() for p in ward.output.rglob("*.nii*"))
    assert [name.rsplit("/", 1)[0] for name in names] == ["a/ct", "a/mr", "b"]
    [study] = discover([ward.inputs / "a" / "ct"], None).studies
    source, image = read(study), nibabel.load(ward.output / names[0])
    np.testing.assert_allclose(image.affine, source.affine, atol=1e-5)
    expected = canonical(source.values(), source.affine).get_fdata()
    np.testing.assert_array_equal(nibabel.as_closest_canonical(image).get_fdata(), expected)


@pytest.mark.parametrize(("as_", "suffix"), [("nrrd", ".nrrd"), ("mha", ".mha")])
def test_as_a_file_of_itk(ward: Ward, as_: str, suffix: str) -> None:
    """SimpleITK reads the same values on the same grid from the series itself."""
    assert ward.translate("--format", as_).exit_code == 0
    assert not [*ward.output.rglob("*.dcm")]
    files = {path.parent.name: path for path in ward.output.rglob(f"*{suffix}")}
    assert files.keys() == {"ct", "mr"}
    for kind, file in files.items():
        [study] = discover([ward.inputs / "a" / kind], None).studies
        meant = sitk.ReadImage([str(path) for path in slices_in_order(study.files)])
        found = sitk.ReadImage(str(file))
        np.testing.assert_array_equal(*map(sitk.GetArrayViewFromImage, (found, meant)))
        assert found.GetPixelID() == meant.GetPixelID()
        for geometry in ("GetOrigin", "GetSpacing", "GetDirection"):
            there, wanted = (getattr(each, geometry)() for each in (found, meant))
            np.testing.assert_allclose(there, wanted, rtol=1e-5, atol=1e-5)
        assert read_mark(file) is not None
        assert PATIENT.encode() not in file.read_bytes()
    assert "2 up to date" in ward.translate("--format", as_).output


def slices_in_order(files: Sequence[Path]) -> list[Path]:
    """Return the files along the normal of the slices, as ITK takes them."""

    def place(path: Path) -> float:
        header = pydicom.dcmread(path, stop_before_pixels=True)
        x, y = np.reshape(header.ImageOrientationPatient, (2, 3)).astype(float)
        return float(np.cross(x, y) @ np.array(header.ImagePositionPatient, float))

    return sorted(files, key=place)


def test_as_dicom_refuses_what_has_no_patient_and_does_the_rest(ward: Ward, tmp_path: Path) -> None:
    scan(ward.inputs / "b" / "scan.nii")
    refusal = "b/scan.nii: unsupported: it is not a DICOM series, which --format dicom needs"
    planned = ward.translate("--format", "dicom", "--dry-run")
    assert planned.exit_code == 0
    assert f"would fail: {refusal}" in planned.output
    report = tmp_path / "report.json"
    result = ward.translate("--format", "dicom", "--report", str(report))
    assert result.exit_code == 1
    assert len(ward.series()) == 2
    assert f"failed: {refusal}" in result.stderr
    assert "3 studies" in result.stdout
    [row] = [row for row in json.loads(report.read_text())["studies"] if row["reason"]]
    assert (row["name"], row["class"], row["failed_in"]) == ("b/scan.nii", "unsupported", None)


def test_as_dicom_beside_its_source_refuses_only_what_has_no_patient(ward: Ward) -> None:
    """Nothing is written in the place of a scan that is refused, so it does not stop the rest."""
    scan(ward.inputs / "b" / "scan.nii")
    arguments = ["translate", ward.inputs, "--model", ward.model, "--output", ward.inputs]
    before = (ward.inputs / "b" / "scan.nii").read_bytes()
    result = CliRunner().invoke(app, [*map(str, arguments), "--format", "dicom"])
    assert result.exit_code == 1
    assert "2 translated, 1 failed" in result.stdout
    assert (ward.inputs / "b" / "scan.nii").read_bytes() == before


def test_filters(ward: Ward) -> None:
    result = ward.translate("--modality", "mr")
    assert result.exit_code == 0
    assert "2 files or series skipped; 'plan' lists the reasons" in result.stdout
    assert [place.split("/")[1] for place in ward.series()] == ["mr"]
    assert ward.translate("--modality", "CT;MR").exit_code == 2
    assert ward.translate("--series", "(").exit_code == 2
    assert ward.translate("--min-slices", "99").exit_code == 3


def test_private_elements_are_kept_when_asked_and_make_a_result_of_its_own(ward: Ward) -> None:
    shutil.rmtree(ward.inputs / "a" / "mr")
    ward.translate()
    [[path, *_]] = ward.series().values()
    without = pydicom.dcmread(path)
    assert ward.translate("--keep-private-tags").exit_code == 0
    kept = pydicom.dcmread(path)
    assert (0x0019, 0x1001) not in without
    assert kept.private_block(0x0019, "MAKER")[1].value == "secret"
    assert kept.SOPInstanceUID != without.SOPInstanceUID
    assert "1 up to date" in ward.translate("--keep-private-tags").output


def test_a_description_of_ones_own_is_marked_and_makes_a_result_of_its_own(ward: Ward) -> None:
    def described() -> list[tuple[str, str, str]]:
        data = [pydicom.dcmread(files[0]) for files in ward.series().values()]
        return [(one.SeriesDescription, one.SyntheticData, one.SeriesInstanceUID) for one in data]

    shutil.rmtree(ward.inputs / "a" / "mr")
    ward.translate()
    [(text, _, first_uid)] = described()
    assert text == "Synthetic CT (tiny), not for diagnosis"
    chosen = ("--series-description", "sCT {source} by {model}")
    assert "1 translated" in ward.translate(*chosen).stdout
    [(text, mark, uid)] = described()
    assert (text, mark) == ("Synthetic sCT T1 or CT by tiny", "YES")
    assert uid != first_uid
    assert "1 up to date" in ward.translate(*chosen).stdout
    for path in ward.series().popitem()[1]:
        assert conformance_errors(path) == set()
    refused = ward.translate("--series-description", "x" * 60)
    assert refused.exit_code == 2
    assert "has 70 characters with the mark Synthetic" in " ".join(refused.stderr.split())


def test_a_tilted_series_fails_alone_or_is_resampled(ward: Ward) -> None:
    TILTED.write(ward.inputs / "a" / "tilted")
    result = ward.translate()
    assert result.exit_code == 1
    assert len(ward.series()) == 2
    assert "tilted by 14.04 degrees" in result.output
    resampled = ward.translate("--allow-uneven")
    assert resampled.exit_code == 0
    assert "tilted by 14.04 degrees (gantry tilt); resampled onto an even grid" in resampled.output
    assert len(ward.series()) == 3


def test_a_truncated_slice_fails_its_series_alone(ward: Ward, tmp_path: Path) -> None:
    path = ward.inputs / "a" / "ct" / "im004"
    path.write_bytes(path.read_bytes()[:-100])
    report = tmp_path / "report.json"
    assert ward.translate("--report", str(report)).exit_code == 1
    rows = json.loads(report.read_text())["studies"]
    assert sorted((row["status"], row["class"]) for row in rows) == [
        ("failed", "unreadable"),
        ("translated", None),
    ]


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--verbose"], ["--format", "nifti"]])
def test_the_patient_is_nowhere_but_in_the_derived_series(
    ward: Ward, tmp_path: Path, options: list[str]
) -> None:
    TILTED.write(
        ward.inputs / "a" / "tilted", lambda d, _: setattr(d, "SeriesDescription", PATIENT)
    )
    broken = ward.inputs / "a" / "ct" / "im004"
    broken.write_bytes(broken.read_bytes()[:-100])
    report = tmp_path / "report.json"
    reported = [] if "--dry-run" in options else ["--report", str(report)]
    text = ward.translate(*options, *reported).output
    text += report.read_text() if reported else ""
    text += "".join(str(path) for path in ward.output.rglob("*"))
    text += json.dumps(recorded(ward.output))
    for secret in ("Doe", "Jane", PATIENT_ID, "Roe", CT.study, CT.series):
        assert secret not in text
    if "--dry-run" in options:
        assert PATIENT in ward.translate("--dry-run", "--show-phi").output
