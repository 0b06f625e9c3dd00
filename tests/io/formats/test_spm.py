"""SPM's .mat files, which say where an Analyze image lies; nibabel writes and judges them."""

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from nibabel.spm99analyze import Spm99AnalyzeImage
from scipy.io import savemat
from support.io_files import OBLIQUE, ramp

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import UnsupportedScanError
from cuda_cyclegan.io.formats.spm import mat_beside
from cuda_cyclegan.io.reading import read, read_grid
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.io.writing import write

UNTOLD = (
    "Analyze files do not record which side is left; its axes are assumed to point to L, A and S"
)


def save_spm(folder: Path) -> Path:
    """An image with a .mat file, as nibabel writes it: M and mat, voxels counted from 1."""
    folder.mkdir(exist_ok=True)
    image: Any = Spm99AnalyzeImage(ramp(), OBLIQUE)
    image.to_filename(folder / "a.img")
    return folder / "a.hdr"


def found_in(folder: Path) -> Volume:
    [study] = discover([folder], None).studies
    return read(study)


@pytest.mark.parametrize("written", ["mat and M", "mat", "M", "version 4", "compressed"])
def test_the_mat_file_says_where_the_voxels_lie(tmp_path: Path, written: str) -> None:
    path = save_spm(tmp_path / "in")
    mat = mat_beside(path)
    from_one = np.eye(4)
    from_one[:3, 3] = -1
    stored = {"mat": OBLIQUE @ from_one, "M": np.diag([-1, 1, 1, 1]) @ OBLIQUE @ from_one}
    if written in ("mat", "M"):
        savemat(mat, {written: stored[written]})
    elif written != "mat and M":
        version = "4" if written == "version 4" else "5"
        savemat(mat, stored, format=version, do_compression=written == "compressed")
    volume = found_in(tmp_path / "in")
    np.testing.assert_allclose(volume.affine, OBLIQUE, atol=1e-5)
    np.testing.assert_allclose(volume.affine, Spm99AnalyzeImage.from_filename(path).affine)
    assert volume.notes[0] == "its position is taken from the SPM .mat file next to it"
    [study] = discover([tmp_path / "in"], None).studies
    grid = read_grid(study)
    assert grid.notes == volume.notes
    np.testing.assert_array_equal(grid.affine, volume.affine)


@pytest.mark.parametrize("name", ["mat", "other"])
def test_a_small_file_that_unpacks_to_a_large_one_takes_no_memory(
    tmp_path: Path, name: str
) -> None:
    path = save_spm(tmp_path / "in")
    many = {name: np.zeros((4, 4, 400_000)), "M": np.eye(4)}
    savemat(mat_beside(path), many, do_compression=True)
    assert mat_beside(path).stat().st_size < 1 << 20
    tracemalloc.start()
    volume = found_in(tmp_path / "in")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert "the .mat file next to it is not from SPM and is ignored" in volume.notes


def test_a_result_lies_where_its_source_does(tmp_path: Path) -> None:
    path = save_spm(tmp_path / "in")
    write(found_in(tmp_path / "in"), tmp_path / "out" / "a.hdr")
    result: Any = Spm99AnalyzeImage.from_filename(tmp_path / "out" / "a.hdr")
    np.testing.assert_array_equal(result.affine, Spm99AnalyzeImage.from_filename(path).affine)
    np.testing.assert_array_equal(np.asarray(result.dataobj), ramp())
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["a.hdr", "a.img", "a.mat"]
    np.testing.assert_array_equal(
        found_in(tmp_path / "out").affine, found_in(tmp_path / "in").affine
    )


@pytest.mark.parametrize(
    "contents",
    [b"1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n", b"\0" * 200, b"MATLAB 5.0 MAT-file\0\0\0"],
    ids=["FSL's", "zeros", "cut"],
)
def test_another_file_of_that_name_changes_nothing_but_is_reported(
    tmp_path: Path, contents: bytes
) -> None:
    path = save_spm(tmp_path / "in")
    mat_beside(path).write_bytes(contents)
    volume = found_in(tmp_path / "in")
    np.testing.assert_array_equal(volume.affine, nibabel.AnalyzeImage.load(path).affine)
    assert volume.notes == (UNTOLD, "the .mat file next to it is not from SPM and is ignored")


@pytest.mark.parametrize("matrix", [np.eye(3), np.zeros((4, 4)), np.full((4, 4), np.nan)])
def test_a_matrix_that_places_nothing_is_not_taken(tmp_path: Path, matrix: Any) -> None:
    path = save_spm(tmp_path / "in")
    savemat(mat_beside(path), {"mat": matrix})
    assert found_in(tmp_path / "in").notes[0] == UNTOLD


def test_without_scipy_it_is_refused_rather_than_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_spm(tmp_path / "in")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(UnsupportedScanError, match=r"install scipy \(extra spm\)"):
        found_in(tmp_path / "in")


def test_a_nifti_pair_says_itself_where_it_lies(tmp_path: Path) -> None:
    save_spm(tmp_path / "in")
    image: Any = nibabel.Nifti1Pair(ramp(), np.eye(4))
    image.to_filename(tmp_path / "in" / "a.hdr")
    volume = found_in(tmp_path / "in")
    np.testing.assert_array_equal(volume.affine, np.eye(4))
    assert volume.notes == ()
