"""Volumes to and from nibabel and SimpleITK: the same values at the same places in the patient."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from hypothesis import given
from hypothesis import strategies as st
from support.io_files import read_file
from support.result_marks import read_mark

from cuda_cyclegan.io.conversion import (
    from_nibabel,
    from_simpleitk,
    to_nibabel,
    to_simpleitk,
    volume_of,
)
from cuda_cyclegan.io.errors import UnsupportedScanError
from cuda_cyclegan.io.volume import SyntheticMark, Volume

nibabel: Any = _nibabel
sitk: Any = _SimpleITK

TYPES = ["u1", "i2", "u2", "i4", "i8", "f4", "f8"]
OBLIQUE = np.array([[0.0, -1.9, 0.3, 7], [1.2, 0.0, 0.0, -30], [0.0, 0.2, 2.9, 11], [0, 0, 0, 1]])


def volume(dtype: str = "i2", slope: float = 1.0, intercept: float = 0.0) -> Volume:
    voxels = np.arange(4 * 5 * 6).reshape(4, 5, 6).astype(dtype)
    return Volume(voxels, OBLIQUE, None, "nifti", slope, intercept)


@pytest.mark.parametrize("dtype", TYPES)
def test_nibabel_gets_the_voxels_and_gives_them_back(dtype: str) -> None:
    image = to_nibabel(volume(dtype))
    assert image.get_data_dtype() == np.dtype(dtype)
    back = from_nibabel(image)
    assert np.array_equal(back.voxels, volume(dtype).voxels)
    assert np.allclose(back.affine, OBLIQUE, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_simpleitk_gets_the_voxels_and_gives_them_back(dtype: str) -> None:
    back = from_simpleitk(to_simpleitk(volume(dtype)))
    assert back.voxels.dtype == np.dtype(dtype)
    assert np.array_equal(back.voxels, volume(dtype).voxels)
    assert np.allclose(back.affine, OBLIQUE)


def test_scaled_voxels_go_as_their_values() -> None:
    scaled = volume("i2", 0.5, -100)
    assert np.array_equal(np.asarray(to_nibabel(scaled).dataobj), scaled.values())
    assert np.array_equal(sitk.GetArrayFromImage(to_simpleitk(scaled)).T, scaled.values())


@given(st.integers(0, 2**32))
def test_simpleitk_places_each_voxel_where_we_do(seed: int) -> None:
    random = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = np.linalg.qr(random.normal(size=(3, 3)))[0] * random.uniform(0.2, 5, 3)
    affine[:3, 3] = random.uniform(-300, 300, 3)
    at = random.integers(0, 4, 3)
    image = to_simpleitk(volume_of(np.zeros((4, 5, 6), np.uint8), affine))
    x, y, z = image.TransformIndexToPhysicalPoint([int(index) for index in at])
    assert np.allclose((affine @ [*at, 1])[:3], (-x, -y, z), atol=1e-6)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.hdr"])
def test_an_image_of_nibabel_is_what_its_file_is(tmp_path: Path, name: str) -> None:
    kind = nibabel.Nifti1Image if name == "a.nii.gz" else nibabel.Nifti1Pair
    stored = kind(volume().voxels, OBLIQUE)
    stored.header.set_slope_inter(0.25, 8)
    stored.header.set_xyzt_units("micron")
    stored.to_filename(tmp_path / name)
    of_file = (
        read_file(tmp_path / name)
        if name == "a.nii.gz"
        else from_nibabel(nibabel.load(tmp_path / name))
    )
    of_image = from_nibabel(nibabel.load(tmp_path / name))
    assert np.array_equal(of_image.voxels, of_file.voxels)
    assert (of_image.slope, of_image.intercept) == (of_file.slope, of_file.intercept)
    assert np.allclose(of_image.affine, of_file.affine)
    assert np.allclose(of_image.affine[:3], OBLIQUE[:3] / 1000, atol=1e-6)
    assert np.allclose(to_nibabel(of_image).affine[:3], OBLIQUE[:3] / 1000, atol=1e-6)


def test_the_header_of_a_nifti_file_is_kept(tmp_path: Path) -> None:
    stored = nibabel.Nifti2Image(volume().voxels, OBLIQUE)
    stored.header["descrip"] = b"the third of May"
    stored.header.set_xyzt_units("mm", "sec")
    stored.set_sform(OBLIQUE, 4)
    stored.to_filename(tmp_path / "a.nii")
    image: Any = to_nibabel(read_file(tmp_path / "a.nii"))
    assert isinstance(image, nibabel.Nifti2Image)
    assert image.header["descrip"] == b"the third of May"
    assert int(image.header["sform_code"]) == 4
    image.to_filename(tmp_path / "b.nii")
    assert np.array_equal(read_file(tmp_path / "b.nii").voxels, volume().voxels)


def test_a_header_stays_with_its_owner(tmp_path: Path) -> None:
    stored = nibabel.Nifti1Image(volume().voxels, OBLIQUE)
    stored.to_filename(tmp_path / "a.nii")
    read = read_file(tmp_path / "a.nii")
    image: Any = to_nibabel(read)
    image.header["descrip"] = b"changed"
    header: Any = read.header
    assert header["descrip"] == b""


def test_a_mark_goes_with_the_image(tmp_path: Path) -> None:
    mark = SyntheticMark("t1-to-t2", "T1", "T2", "0.1.0", "0123456789ab")
    made = replace(volume(), mark=mark)
    for name in ("a.nii.gz", "a.nrrd", "a.mha"):
        sitk.WriteImage(to_simpleitk(made), str(tmp_path / name))
        assert read_mark(tmp_path / name) == mark
    for header in (None, nibabel.Nifti1Header(), nibabel.Nifti2Header()):
        to_nibabel(replace(made, header=header)).to_filename(tmp_path / "b.nii")
        assert read_mark(tmp_path / "b.nii") == mark
        assert header is None or not header.extensions


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.MGHImage, nibabel.Nifti2Image])
def test_any_image_of_nibabel_is_taken(kind: Any) -> None:
    taken = from_nibabel(kind(volume("f4").voxels, OBLIQUE))
    assert np.array_equal(taken.voxels, volume("f4").voxels)
    assert np.allclose(to_nibabel(taken).affine, OBLIQUE, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["tiny.mnc", "minc1_1_scale.mnc", "scaled+tlrc.HEAD", "standard.nii.gz"]
)
def test_an_image_of_any_file_that_nibabel_opens_holds_its_values(name: str) -> None:
    image = nibabel.load(Path(nibabel.__file__).parent / "tests" / "data" / name)
    taken = from_nibabel(image)
    assert np.allclose(taken.values(), image.get_fdata().reshape(image.shape[:3]), rtol=1e-6)
    assert np.allclose(taken.affine, image.affine)
    assert np.allclose(np.asarray(to_nibabel(taken).dataobj), taken.values())


def test_masked_voxels_are_no_voxels() -> None:
    masked = np.ma.masked_less(volume().voxels, 7)
    with pytest.raises(UnsupportedScanError, match="The array has masked voxels"):
        volume_of(masked, OBLIQUE)
    assert volume_of(np.ma.masked_less(volume().voxels, -1), OBLIQUE).shape == volume().shape


def test_an_affine_whose_translation_stands_in_its_last_row_is_refused() -> None:
    with pytest.raises(UnsupportedScanError, match=r"last row .* \(0, 0, 0, 1\)"):
        volume_of(volume().voxels, OBLIQUE.T)


@pytest.mark.parametrize(
    "image",
    [
        nibabel.Nifti1Image(np.zeros((4, 4, 4, 2), np.int16), np.eye(4)),
        nibabel.Nifti1Image(np.zeros((4, 4, 4), np.complex64), np.eye(4)),
        nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), None),
    ],
)
def test_images_of_nibabel_that_are_no_scan_are_refused(image: Any) -> None:
    with pytest.raises(UnsupportedScanError):
        from_nibabel(image)


@pytest.mark.parametrize(
    "image", [sitk.Image(4, 4, sitk.sitkInt16), sitk.Image([4, 4, 4], sitk.sitkVectorInt16, 2)]
)
def test_images_of_simpleitk_that_are_no_scan_are_refused(image: Any) -> None:
    with pytest.raises(UnsupportedScanError):
        from_simpleitk(image)
