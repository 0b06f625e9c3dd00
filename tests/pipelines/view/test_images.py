"""Planes of images: the patient's sides, one grid for all, and what cannot be read."""

import threading
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import scan

from cuda_cyclegan.io.reading import read
from cuda_cyclegan.pipelines.study.geometry import mid_slices
from cuda_cyclegan.pipelines.view.images import PLANES, ImageStore, Plane, ViewedImage
from cuda_cyclegan.pipelines.view.studies import ImageFile, ViewedStudy

nibabel: Any = _nibabel
TURNED = {
    "RAS": np.diag([1.0, 2, 3, 1]),
    "LPS": np.diag([-1.0, -2, 3, 1]),
    "SRP": np.array([[0, 2.0, 0, 5], [0, 0, -3, 6], [1, 0, 0, 7], [0, 0, 0, 1]]),
}


def stored(path: Path, affine: Any, voxels: Any) -> ImageFile:
    nibabel.Nifti1Image(voxels, affine).to_filename(path)
    return ImageFile(path)


def noise(shape: tuple[int, ...] = (7, 8, 9), seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-500, 500, shape).astype(np.int16)


@pytest.mark.parametrize("axes", TURNED)
def test_planes_are_as_a_preview_shows_them(tmp_path: Path, axes: str) -> None:
    scan = stored(tmp_path / "a.nii", TURNED[axes], noise())
    volume = read(scan.study(), 0)
    image = ViewedImage(volume)
    for plane, shown in zip(PLANES, mid_slices(volume), strict=True):
        assert shown.name == plane
        there = [image.plane(plane, at, image).values() for at in range(max(image.shape))[:7]]
        assert any(np.array_equal(values, shown.values) for values in there)


def test_an_image_on_another_grid_is_seen_where_it_lies(tmp_path: Path) -> None:
    """The same voxels under turned axes, and without the outermost planes."""
    voxels = noise()
    first = ViewedImage(read(stored(tmp_path / "a.nii", np.eye(4), voxels).study(), 0))
    affine = np.diag([-1.0, 1, 1, 1])
    affine[:3, 3] = 6, 0, 1
    turned = stored(tmp_path / "b.nii", affine, voxels[::-1, :, 1:].copy())
    second = ViewedImage(read(turned.study(), 0))
    assert not second.is_on_grid_of(first)
    for at in range(7):
        whole = first.plane("sagittal", at, first).values()
        seen = second.plane("sagittal", at, first).values()
        np.testing.assert_array_equal(seen[:-1], whole[:-1])
        assert np.isnan(seen[-1]).all()


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
def test_values_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    voxels = np.arange(60).reshape(3, 4, 5).astype(kind)
    image = ViewedImage(read(stored(tmp_path / "a.nii", np.eye(4), voxels).study(), 0))
    np.testing.assert_array_equal(
        image.plane("axial", 4, image).values(), voxels[::-1, ::-1, 0].T.astype(float)
    )


@pytest.mark.parametrize(("plane", "index"), [("axial", 9), ("coronal", -1), ("sagittal", 7)])
def test_a_plane_outside_is_refused(tmp_path: Path, plane: Plane, index: int) -> None:
    image = ViewedImage(read(stored(tmp_path / "a.nii", np.eye(4), noise()).study(), 0))
    with pytest.raises(IndexError):
        image.plane(plane, index, image)


def test_unreadable_image_is_a_sentence_and_the_rest_is_shown(tmp_path: Path) -> None:
    good = ImageFile(scan(tmp_path / "a.nii.gz"))
    (tmp_path / "b.nii.gz").write_bytes(good.path.read_bytes()[:200])
    bad, absent = ImageFile(tmp_path / "b.nii.gz"), ImageFile(tmp_path / "c.nii.gz")
    study = ViewedStudy("a", tmp_path, {"input": good, "result": bad, "truth": absent})
    found = ImageStore((study,)).study(0)
    assert found.images.keys() == {"input"}
    assert "b.nii.gz" in found.faults["result"]
    assert "c.nii.gz" in found.faults["truth"]
    assert found.grid is found.images["input"]


def test_an_image_is_shown_once_its_file_is_repaired(tmp_path: Path) -> None:
    """The image is not shown before the page requests the study again: the grid of its planes would
    change.
    """
    whole = stored(tmp_path / "a.nii", np.eye(4), noise()).path.read_bytes()
    other = stored(tmp_path / "b.nii", np.eye(4), noise((3, 3, 3)))
    (tmp_path / "a.nii").write_bytes(whole[:-1])
    result = ImageFile(tmp_path / "a.nii")
    store = ImageStore((ViewedStudy("a", tmp_path, {"input": other, "result": result}),))
    assert store.study(0).faults.keys() == {"result"}
    (tmp_path / "a.nii").write_bytes(whole)
    assert store.plane(0, "input", "axial", 0).stored.shape == (3, 3)
    found = store.study(0)
    assert found.faults == {}
    assert found.grid is found.images["result"]
    assert store.plane(0, "input", "axial", 0).stored.shape == (8, 7)


def test_images_that_were_not_looked_at_for_longest_are_dropped(tmp_path: Path) -> None:
    scans = [ImageFile(scan(tmp_path / f"{n}.nii.gz", n)) for n in range(3)]
    store = ImageStore(
        tuple(ViewedStudy(str(n), tmp_path, {"result": one}) for n, one in enumerate(scans))
    )
    store._most = 2 * store.study(0).images["result"].nbytes  # pyright: ignore[reportPrivateUsage]
    first = store.study(0).images["result"]
    store.study(1)
    assert store.study(0).images["result"] is first
    store.study(2)
    assert store.study(0).images["result"] is first
    assert store.study(2).images["result"].shape == first.shape


def test_the_next_study_is_read_ahead_if_it_fits_beside_the_current_one(tmp_path: Path) -> None:
    scans = [ImageFile(scan(tmp_path / f"{n}.nii.gz", n)) for n in range(3)]
    store = ImageStore(
        tuple(ViewedStudy(str(n), tmp_path, {"result": one}) for n, one in enumerate(scans))
    )
    size = store.study(0).images["result"].nbytes
    store.read_ahead(1)
    for thread in threading.enumerate():
        if thread.name.endswith("(_image)"):
            thread.join()
    for each in scans:
        each.path.unlink()
    assert store.study(1).images["result"].nbytes == size
    store._most = 2 * size - 1  # pyright: ignore[reportPrivateUsage]
    store.read_ahead(2)
    assert list(store._kept) == [(0, "result"), (1, "result")]  # pyright: ignore[reportPrivateUsage]


def test_a_difference_is_measured_in_the_middle_planes(tmp_path: Path) -> None:
    voxels = noise()
    images = {
        "input": stored(tmp_path / "a.nii", np.eye(4), voxels),
        "result": stored(tmp_path / "b.nii", np.eye(4), (voxels + 10).astype(np.int16)),
    }
    found = ImageStore((ViewedStudy("a", Path(), images),)).study(0)  # pyright: ignore[reportArgumentType]
    assert found.largest_difference("input", "result") == 10
    assert found.largest_difference("truth", "result") is None
