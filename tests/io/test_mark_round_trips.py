"""Programs that keep the mark of a result that they write again, as docs/results.md lists them."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import nibabel as _nibabel
import nibabel.processing as _processing
import nrrd as _nrrd
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.dicom_phantoms import Phantom
from support.io_files import ramp, read_file, save_nifti
from support.result_marks import read_mark

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.formats.marks import UNREADABLE_MARK, line_of, mark_in_text
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation, SyntheticMark
from cuda_cyclegan.io.writing import write
from cuda_cyclegan.pipelines.study.selection import studies_for

nibabel: Any = _nibabel
processing: Any = _processing
nrrd: Any = _nrrd
sitk: Any = _SimpleITK

MARK = SyntheticMark("réseau \\ 1", "T1", "T2", "0.1.0", "0123456789ab")
SHORT = mark_in_text(line_of(MARK))
"""Mark that fits in a line, in ASCII."""
TEXT = (".nrrd", ".nhdr", ".mha", ".mhd")
SUFFIXES = (".nii", ".nii.gz", *TEXT)


@pytest.fixture
def result(tmp_path: Path) -> Callable[[str], Path]:
    source = save_nifti(tmp_path / "a.nii.gz", ramp((9, 8, 7)), np.diag([1.0, 1.0, 2.0, 1.0]))

    def made(suffix: str) -> Path:
        target = tmp_path / f"result{suffix}"
        write(replace(read_file(source), mark=MARK), target)
        return target

    return made


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_written_here_have_whole_names(result: Callable[[str], Path], suffix: str) -> None:
    assert read_mark(result(suffix)) == MARK


@pytest.mark.parametrize("again", [".nii", ".nii.gz", ".nrrd", ".mha"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_simpleitk_keeps_it_from_any_format_to_any(
    tmp_path: Path, result: Callable[[str], Path], suffix: str, again: str
) -> None:
    target = tmp_path / f"again{again}"
    sitk.WriteImage(sitk.ReadImage(str(result(suffix))), str(target))
    is_whole = suffix in TEXT and again in TEXT
    assert read_mark(target) == (MARK if is_whole else SHORT)


@pytest.mark.parametrize(
    "changed",
    [
        lambda image: sitk.Cast(image, sitk.sitkFloat32),
        lambda image: sitk.Resample(image),
        lambda image: sitk.SmoothingRecursiveGaussian(image, 1.0),
    ],
    ids=["cast", "resampled", "smoothed"],
)
def test_a_filter_of_simpleitk_drops_it(
    tmp_path: Path, result: Callable[[str], Path], changed: Callable[[Any], Any]
) -> None:
    sitk.WriteImage(changed(sitk.ReadImage(str(result(".nii")))), str(tmp_path / "b.nii"))
    assert read_mark(tmp_path / "b.nii") is None


WITH_HEADER: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda image: image,
    "computed": lambda image: nibabel.Nifti1Image(
        np.asarray(image.dataobj) * 2, image.affine, image.header
    ),
    "reoriented": nibabel.as_closest_canonical,
    "cropped": lambda image: image.slicer[1:, :, 2:],
    "smoothed": lambda image: processing.smooth_image(image, 2),
    "resampled": lambda image: processing.resample_to_output(image, 2),
}


@pytest.mark.parametrize("name", WITH_HEADER)
@pytest.mark.parametrize("again", [".nii", ".nii.gz"])
def test_nibabel_keeps_it_with_the_header(
    tmp_path: Path, result: Callable[[str], Path], name: str, again: str
) -> None:
    image = WITH_HEADER[name](nibabel.load(result(".nii.gz")))
    nibabel.save(image, tmp_path / f"b{again}")
    assert read_mark(tmp_path / f"b{again}") == MARK


def test_nibabel_keeps_it_in_a_pair_of_files(tmp_path: Path, result: Callable[[str], Path]) -> None:
    nibabel.save(nibabel.load(result(".nii")), tmp_path / "b.img")
    assert read_mark(tmp_path / "b.hdr") == MARK


def test_a_new_header_drops_it(tmp_path: Path, result: Callable[[str], Path]) -> None:
    image = nibabel.load(result(".nii"))
    nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine).to_filename(tmp_path / "b.nii")
    assert read_mark(tmp_path / "b.nii") is None


@pytest.mark.parametrize("suffix", [".nrrd", ".nhdr"])
def test_pynrrd_keeps_it(tmp_path: Path, result: Callable[[str], Path], suffix: str) -> None:
    voxels, header = nrrd.read(str(result(suffix)))
    nrrd.write(str(tmp_path / "b.nrrd"), voxels, header)
    assert read_mark(tmp_path / "b.nrrd") == MARK


@pytest.mark.process
def test_dcm2niix_keeps_that_a_dicom_result_is_synthetic(tmp_path: Path) -> None:
    if which("dcm2niix") is None:
        pytest.skip("dcm2niix is not installed")
    Phantom("MR").write(tmp_path / "mr")
    [study] = discover([tmp_path / "mr"], None).studies
    derivation = Derivation("t1-to-t2", "T1", "T2", "0.1.0", "f" * 64, newest_source=0)
    write(read(study), tmp_path / "result", derivation)
    for folder, expected in (("mr", None), ("result", UNREADABLE_MARK)):
        words = ["dcm2niix", "-z", "n", "-f", folder, "-o", tmp_path, tmp_path / folder]
        subprocess.run(words, check=True, capture_output=True)
        assert read_mark(tmp_path / f"{folder}.nii") == expected


def run(*words: object) -> None:
    if which(str(words[0])) is None:
        pytest.skip(f"{words[0]} is not installed")
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "made", "expected"),
    [
        (["-z", "n", "-c", "study 7"], "b.nii", UNREADABLE_MARK),
        (["-z", "n", "-e", "y"], "b.nhdr", None),
    ],
    ids=["comment", "nrrd"],
)
def test_results_that_dcm2niix_converts_are_recognised_by_their_sidecar(
    tmp_path: Path, options: list[str], made: str, expected: SyntheticMark | None
) -> None:
    Phantom("MR").write(tmp_path / "mr")
    [study] = discover([tmp_path / "mr"], None).studies
    derivation = Derivation("t1-to-t2", "T1", "T2", "0.1.0", "f" * 64, newest_source=0)
    write(read(study), tmp_path / "result", derivation)
    (tmp_path / "made").mkdir()
    run("dcm2niix", *options, "-f", "b", "-o", tmp_path / "made", tmp_path / "result")
    assert read_mark(tmp_path / "made" / made) == expected
    found = studies_for(discover([tmp_path / "made"], None), None, ())
    assert found.studies == ()
    [skip] = [row for row in found.skipped if row.kind]
    assert skip.kind == "synthetic"


@pytest.mark.process
def test_mrtrix_drops_the_mark(tmp_path: Path, result: Callable[[str], Path]) -> None:
    run("mrconvert", "-quiet", result(".nii"), tmp_path / "b.nii")
    assert read_mark(tmp_path / "b.nii") is None


@pytest.mark.process
def test_minc_drops_the_mark(tmp_path: Path, result: Callable[[str], Path]) -> None:
    run("nii2mnc", "-quiet", result(".nii"), tmp_path / "b.mnc")
    run("mnc2nii", "-quiet", tmp_path / "b.mnc", tmp_path / "b.nii")
    assert read_mark(tmp_path / "b.nii") is None


@pytest.mark.parametrize("suffix", TEXT)
def test_a_new_mark_replaces_an_earlier_one_and_other_lines_stay(
    tmp_path: Path, result: Callable[[str], Path], suffix: str
) -> None:
    image = sitk.ReadImage(str(result(".nii")))  # whose fields ITK keeps as words
    image.SetMetaData("operator_notes", "kept")
    source = tmp_path / f"b{suffix}"
    sitk.WriteImage(image, str(source))
    back = replace(MARK, source="T2", target="T1", model="t2-to-t1")
    write(replace(read_file(source), mark=back), tmp_path / f"c{suffix}")
    assert read_mark(tmp_path / f"c{suffix}") == back
    again = sitk.ReadImage(str(tmp_path / f"c{suffix}"))
    assert again.GetMetaData("operator_notes") == "kept"
    assert "T1->T2" not in {again.GetMetaData(key)[:40] for key in again.GetMetaDataKeys()}
    assert not again.HasMetaDataKey("descrip")
    assert np.array_equal(sitk.GetArrayFromImage(again), sitk.GetArrayFromImage(image))


@pytest.mark.parametrize("suffix", TEXT)
def test_a_real_scan_keeps_its_words_without_a_mark(tmp_path: Path, suffix: str) -> None:
    image = sitk.GetImageFromArray(ramp())
    image.SetMetaData("ITK_FileNotes", "TE=30;Time=101300.000")
    sitk.WriteImage(image, str(tmp_path / f"a{suffix}"))
    assert read_mark(tmp_path / f"a{suffix}") is None
    write(read_file(tmp_path / f"a{suffix}"), tmp_path / f"b{suffix}")
    again = sitk.ReadImage(str(tmp_path / f"b{suffix}"))
    assert again.GetMetaData("ITK_FileNotes") == "TE=30;Time=101300.000"
