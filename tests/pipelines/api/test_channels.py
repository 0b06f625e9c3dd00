"""Studies of several channels in Python: arrays, volumes and files, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from support.batch_world import mixing_model, scan

import cuda_cyclegan as cc
from cuda_cyclegan.pipelines.errors import PreparationError, SettingsError

SHAPE = (20, 18, 16)
AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])


def noise(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 900, SHAPE).astype(np.int16)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cc.Translator]:
    """T1 + 2 T2."""
    file = mixing_model(tmp_path_factory.mktemp("model") / "m.safetensors")
    with cc.Translator(cc.load_model(file), device="cpu") as translator:
        yield translator


@pytest.fixture(scope="module")
def of_one_to_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cc.Translator]:
    """T1, and half of it."""
    file = tmp_path_factory.mktemp("model") / "m.safetensors"
    mixing_model(file, ((1,), (0.5,)), ("T1",), ("CT", "PET"))
    with cc.Translator(cc.load_model(file), device="cpu") as translator:
        yield translator


class TestSeveralIn:
    def test_an_array_with_an_axis_of_channels(self, of_two: cc.Translator) -> None:
        voxels = np.stack([noise(0), noise(1)])
        before = voxels.copy()
        made = of_two.translate(voxels, AFFINE)
        np.testing.assert_allclose(made.values(), before[0] + 2.0 * before[1], atol=1e-3)
        assert np.array_equal(voxels, before)
        assert np.array_equal(made.affine, AFFINE)

    def test_a_file_for_each(self, of_two: cc.Translator, tmp_path: Path) -> None:
        files = [scan(tmp_path / "x.nii.gz", 0), scan(tmp_path / "y.nii", 1)]
        first, second = (nibabel.load(file).get_fdata() for file in files)  # type: ignore[attr-defined]
        made = of_two.translate_file(files)
        np.testing.assert_allclose(made.values(), first + 2 * second, atol=1e-3)
        turned = of_two.translate_file(files[::-1])
        np.testing.assert_allclose(turned.values(), second + 2 * first, atol=1e-3)

    def test_a_folder_named_as_in_bids(self, of_two: cc.Translator, tmp_path: Path) -> None:
        second, first = scan(tmp_path / "a_T2w.nii", 1), scan(tmp_path / "a_T1w.nii", 0)
        folder = of_two.translate_file(tmp_path)
        assert np.array_equal(folder.voxels, of_two.translate_file([first, second]).voxels)
        second.unlink()
        with pytest.raises(cc.ScanError, match="channel T2 is missing"):
            of_two.translate_file(tmp_path)

    def test_volumes(self, of_two: cc.Translator) -> None:
        volumes = [cc.from_nibabel(nibabel.Nifti1Image(noise(at), AFFINE)) for at in (0, 1)]
        made = of_two.translate_volume(volumes)
        [same] = of_two.translate_channels(volumes)
        assert np.array_equal(made.voxels, same.voxels)

    def test_a_path_beside_an_image(self, of_two: cc.Translator, tmp_path: Path) -> None:
        files = [scan(tmp_path / "x.nii", 0), scan(tmp_path / "y.nii", 1)]
        image = cc.to_nibabel(files[1])
        mixed = of_two.translate_volume([files[0], image])
        assert np.array_equal(mixed.voxels, of_two.translate_volume(files).voxels)

    def test_a_folder_with_patterns(self, of_two: cc.Translator, tmp_path: Path) -> None:
        files = [scan(tmp_path / "a_mprage.nii", 0), scan(tmp_path / "a_tse.nii", 1)]
        with pytest.raises(cc.ScanError, match="setting channel"):
            of_two.translate_file(tmp_path)
        patterns = {"T1": "*_mprage", "T2": "*_tse"}
        found = of_two.translate_file(tmp_path, channels=patterns)
        assert np.array_equal(found.voxels, of_two.translate_file(files).voxels)

    @pytest.mark.parametrize("count", [1, 3])
    def test_another_number_is_refused(self, of_two: cc.Translator, count: int) -> None:
        with pytest.raises(PreparationError, match=r"takes 2 scans of a study \(T1, T2\)"):
            of_two.translate(np.stack([noise(0)] * count), AFFINE)

    def test_an_array_without_that_axis_is_refused(self, of_two: cc.Translator) -> None:
        with pytest.raises(PreparationError, match="1 scan was given"):
            of_two.translate(noise(0), AFFINE)

    def test_grids_that_differ_are_refused_or_resampled(self, of_two: cc.Translator) -> None:
        moved = AFFINE.copy()
        moved[2, 3] = 2
        volumes = [
            cc.from_nibabel(nibabel.Nifti1Image(noise(at), affine))
            for at, affine in enumerate((AFFINE, moved))
        ]
        with pytest.raises(PreparationError, match="grids of T2 and T1 differ"):
            of_two.translate_channels(volumes)
        with cc.Translator(of_two.model, device="cpu", resample_channels=True) as resampling:
            made = resampling.translate_volume(volumes)
        wanted = noise(0)[:, :, 1:] + 2.0 * noise(1)[:, :, :-1]
        np.testing.assert_allclose(made.values()[:, :, 1:], wanted, atol=1e-2)
        assert any("T2 was resampled onto T1, trilinearly" in note for note in made.notes)

    def test_files_that_were_resampled_are_noted(
        self, of_two: cc.Translator, tmp_path: Path
    ) -> None:
        files = [tmp_path / "x.nii", tmp_path / "y.nii"]
        for at, (file, affine) in enumerate(zip(files, (np.eye(4), AFFINE), strict=True)):
            nibabel.Nifti1Image(noise(at), affine).to_filename(file)
        with cc.Translator(of_two.model, device="cpu", resample_channels=True) as resampling:
            made = resampling.translate_file(files)
        assert any("T2 was resampled onto T1" in note for note in made.notes)


class TestSeveralOut:
    def test_a_volume_for_each(self, of_one_to_two: cc.Translator) -> None:
        volume = cc.from_nibabel(nibabel.Nifti1Image(noise(0), AFFINE))
        first, second = of_one_to_two.translate_channels([volume])
        np.testing.assert_allclose(first.values(), noise(0), atol=1e-3)
        np.testing.assert_allclose(second.values(), noise(0) / 2, atol=0.5)

    def test_translate_refuses_a_model_of_two_volumes(self, of_one_to_two: cc.Translator) -> None:
        with pytest.raises(SettingsError, match=r"has 2 volumes; call translate_channels"):
            of_one_to_two.translate(noise(0), AFFINE)


def test_folders_with_patterns(tmp_path: Path) -> None:
    model = mixing_model(tmp_path / "m.safetensors")
    for name in ("a_mprage.nii", "a_tse.nii"):
        scan(tmp_path / "in" / name)
    patterns = {"T1": "*_mprage", "T2": "*_tse"}
    report = cc.translate_folder(
        tmp_path / "in", model, tmp_path / "out", device="cpu", channels=patterns
    )
    assert [(row.name, row.status) for row in report.studies] == [("a_mprage.nii", "translated")]
