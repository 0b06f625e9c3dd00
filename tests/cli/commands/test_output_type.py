"""The voxel type of results, where one is asked for."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pydicom as _pydicom
import pytest
import SimpleITK as _SimpleITK
from support.batch_world import SHAPE, scan, stored, with_card
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld

from cuda_cyclegan.engine.model.intensity_maps import IntensityMap, MinMax, Window

nibabel: Any = _nibabel
pydicom: Any = _pydicom
sitk: Any = _SimpleITK
TYPES = ("int16", "uint16", "float32")


@pytest.fixture
def world(tmp_path: Path) -> QueueWorld:
    return QueueWorld(tmp_path)


def made(world: QueueWorld, name: str, *options: str) -> Any:
    """The image of a result."""
    done = world.command("translate", "--overwrite", *options)
    assert done.exit_code == 0, done.output
    return nibabel.Nifti1Image.from_bytes((world.output / name).read_bytes())


def with_window(world: QueueWorld, to: IntensityMap) -> None:
    """Have the model make values in a window of its own."""
    with_card(world.model, intensity_out=to)


def reported(output: str) -> str:
    """Return a command's output without its line breaks."""
    return " ".join(output.split())


@pytest.mark.parametrize("name", ["a.nii.gz", "a.hdr", "a.nrrd", "a.mha"])
@pytest.mark.parametrize("dtype", TYPES)
def test_results_have_the_voxel_type_that_was_asked_for(
    world: QueueWorld, name: str, dtype: str
) -> None:
    world.inputs.mkdir()
    voxels = np.random.default_rng(0).integers(0, 200, SHAPE).astype(np.uint8)
    if name in ("a.nii.gz", "a.hdr"):
        kind = nibabel.Nifti1Pair if name == "a.hdr" else nibabel.Nifti1Image
        kind(voxels, np.eye(4)).to_filename(world.inputs / name)
    else:
        sitk.WriteImage(sitk.GetImageFromArray(voxels.T), world.inputs / name)
    assert world.command("translate", "--output-type", dtype).exit_code == 0
    if name in ("a.nii.gz", "a.hdr"):
        found = nibabel.load(world.output / name)
        assert found.get_data_dtype() == dtype
        assert (found.dataobj.slope, found.dataobj.inter) == (1, 0)
        return
    assert sitk.GetArrayFromImage(sitk.ReadImage(world.output / name)).dtype == dtype


def test_whole_numbers_are_the_values_to_half_a_step(world: QueueWorld) -> None:
    scan(world.inputs / "a.nii")
    values = made(world, "a.nii", "--output-type", "float32").get_fdata()
    for dtype in ("int16", "uint16"):
        found = made(world, "a.nii", "--output-type", dtype)
        np.testing.assert_array_equal(np.asarray(found.dataobj), np.rint(values))


@pytest.mark.parametrize(
    ("dtype", "high", "slope"),
    [
        ("int16", 1.0, 2.0**-14),  # 1 itself would be one step too much for 2^-15
        ("uint16", 1.0, 2.0**-15),
        ("int16", 254.0, 2.0**-7),
        ("int16", 255.0, 1.0),
        ("uint16", 65535.0, 1.0),
        ("int16", 100_000.0, 4.0),
    ],
)
def test_a_slope_keeps_what_whole_numbers_would_lose(
    world: QueueWorld, dtype: str, high: float, slope: float
) -> None:
    scan(world.inputs / "a.nii")
    with_window(world, Window(0.0, high))
    found = made(world, "a.nii", "--output-type", dtype)
    assert (found.dataobj.slope, found.dataobj.inter) == (slope, 0)
    values = made(world, "a.nii", "--output-type", "float32").get_fdata()
    assert found.get_data_dtype() == dtype
    np.testing.assert_allclose(found.get_fdata(), values, atol=slope * 0.502)


def test_the_slope_follows_the_result_where_nothing_is_known_before(world: QueueWorld) -> None:
    stored(world.inputs / "a.nii", np.random.default_rng(0).random(SHAPE, np.float32))
    with_card(world.model, intensity_in=MinMax(), intensity_out=MinMax())
    values = made(world, "a.nii", "--output-type", "float32").get_fdata()
    found = made(world, "a.nii", "--output-type", "int16")
    assert np.log2(found.dataobj.slope) % 1 == 0
    assert 2**14 <= np.abs(found.dataobj.get_unscaled()).max() < 2**15
    np.testing.assert_allclose(found.get_fdata(), values, atol=found.dataobj.slope * 0.502)


def test_values_that_do_not_fit_are_counted(world: QueueWorld) -> None:
    voxels = np.random.default_rng(0).integers(0, 200, SHAPE).astype(np.uint8)
    stored(world.inputs / "a.nii", voxels)
    with_window(world, Window(-1000.0, 3000.0))
    assert made(world, "a.nii").get_data_dtype() == np.int16
    values = made(world, "a.nii", "--output-type", "float32").get_fdata()
    for asked, dtype in (("same", np.uint8), ("uint16", np.uint16)):
        done = world.command("translate", "--overwrite", "--output-type", asked)
        found = np.asarray(nibabel.load(world.output / "a.nii").dataobj)
        assert found.dtype == dtype
        limits = np.iinfo(dtype)
        np.testing.assert_array_equal(found, np.rint(values).clip(limits.min, limits.max))
        words = reported(done.stdout)
        rounded = np.rint(values)
        for side, cut in (("below", rounded < limits.min), ("above", rounded > limits.max)):
            note = f"{int(cut.sum())} of {voxels.size} voxels of its result are {side}"
            assert (note in words) == cut.any()
        assert f"which voxel type {np.dtype(dtype)} cannot hold, and were clipped" in words


@pytest.mark.parametrize("command", ["plan", "translate"])
def test_a_scale_is_refused_where_a_file_has_none(world: QueueWorld, command: str) -> None:
    world.inputs.mkdir()
    voxels = np.random.default_rng(0).integers(0, 200, SHAPE).astype(np.uint8)
    sitk.WriteImage(sitk.GetImageFromArray(voxels.T), world.inputs / "a.nrrd")
    with_window(world, Window(-1.0, 1.0))
    refusal = "NRRD and MetaImage have none; use --output-type float32, or --format nifti."
    assert refusal in reported(world.command(command, "--output-type", "int16").output)
    asked = ("--output-type", "int16", "--format", "nifti")
    assert refusal not in reported(world.command(command, *asked).output)


@pytest.mark.parametrize("command", ["plan", "translate"])
def test_a_voxel_type_that_a_format_does_not_have_is_refused(
    world: QueueWorld, command: str
) -> None:
    world.inputs.mkdir()
    voxels = np.random.default_rng(0).integers(0, 200, SHAPE).astype(np.uint8)
    nibabel.Spm2AnalyzeImage(voxels, np.eye(4)).to_filename(world.inputs / "a.img")
    done = world.command(command, "--output-type", "uint16")
    assert "cannot be stored as uint16, which Analyze does not have" in reported(done.output)
    assert "does not have" not in reported(world.command(command, "--output-type", "int16").output)


def test_dicom_has_its_16_bit_integers_only(world: QueueWorld) -> None:
    Phantom("MR", rows=20).write(world.inputs / "series")
    refused = world.command("translate", "--output-type", "float32")
    assert refused.exit_code == 1
    assert "stored as 16-bit integers, not as float32; use --format nifti" in reported(
        refused.output
    )
    for dtype, signed in (("int16", 1), ("uint16", 0)):
        done = world.command("translate", "--overwrite", "--output-type", dtype)
        assert done.exit_code == 0, done.output
        image = pydicom.dcmread(next(world.output.rglob("*.dcm")))
        assert (image.BitsStored, image.PixelRepresentation) == (16, signed)
    asked = ("--output-type", "float32", "--format", "nifti")
    assert world.command("translate", *asked).exit_code == 0


def test_results_of_another_voxel_type_are_made_again(world: QueueWorld) -> None:
    scan(world.inputs / "a.nii")
    assert world.command("translate").exit_code == 0
    again = world.command("translate", "--output-type", "float32", "--report", "-")
    report = json.loads(again.stdout)
    assert report["settings"]["output_type"] == "float32"
    assert [row["due"] for row in report["studies"]] == ["the settings changed"]


def test_a_job_has_the_voxel_type(world: QueueWorld) -> None:
    world.scans(1)
    world.submit("--output-type", "float32")
    world.work()
    assert nibabel.load(world.output / "000.nii").get_data_dtype() == np.float32


def test_plan_counts_the_bytes_of_the_voxel_type(world: QueueWorld) -> None:
    scan(world.inputs / "a.nii", shape=(160, 160, 160))
    with_window(world, Window(0.0, 1000.0))
    small, large = (
        reported(world.command("plan", "--output-type", dtype).stdout)
        for dtype in ("int16", "float32")
    )
    assert small != large
