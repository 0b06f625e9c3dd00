"""NaN in scans: refused with the way out, or taken as a value that was asked for."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.batch_world import SHAPE, stored
from support.queue_world import QueueWorld

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
NOTE = f"3 of {np.prod(SHAPE)} voxels were NaN, and were replaced by"


def voxels(missing: float = np.nan) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """Noise with 3 voxels that are not finite."""
    made = np.random.default_rng(0).normal(500, 100, SHAPE).astype(np.float32)
    made[0, 0, :3] = missing
    return made


@pytest.fixture
def world(tmp_path: Path) -> QueueWorld:
    made = QueueWorld(tmp_path)
    stored(made.inputs / "a.nii.gz", voxels())
    return made


def test_a_scan_with_nan_is_refused_with_the_way_out(world: QueueWorld) -> None:
    for command, status in (("translate", 1), ("plan", 0)):
        done = world.command(command)
        assert done.exit_code == status
        reported = f"3 of {np.prod(SHAPE)} voxels are NaN; --nan-to VALUE replaces them."
        assert reported in done.output.replace("\n", " ")


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.hdr", "a.nrrd", "a.mha", "a.mhd"])
def test_nan_is_taken_as_the_value_in_every_format(tmp_path: Path, name: str) -> None:
    worlds: list[QueueWorld] = []
    for at, missing in (("asked", np.nan), ("written", -5.0)):
        (tmp_path / at).mkdir()
        worlds.append(world := QueueWorld(tmp_path / at))
        if name.startswith(("a.nii", "a.hdr")):
            kind = nibabel.Nifti1Pair if name == "a.hdr" else nibabel.Nifti1Image
            world.inputs.mkdir(parents=True)
            kind(voxels(missing), np.eye(4)).to_filename(world.inputs / name)
        else:
            world.inputs.mkdir(parents=True)
            sitk.WriteImage(sitk.GetImageFromArray(voxels(missing)), world.inputs / name)
    asked, written = worlds
    done = asked.command("translate", "--nan-to", "-5")
    assert done.exit_code == 0, done.output
    assert (
        f"note: {name}: 3 of {np.prod(SHAPE)} voxels were NaN, and were replaced by -5"
        in done.stdout
    )
    assert written.command("translate").exit_code == 0
    results = [
        {path.name: path.read_bytes() for path in world.output.iterdir() if path.is_file()}
        for world in worlds
    ]
    assert results[0] == results[1]


def test_infinite_values_are_refused_nevertheless(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    made = voxels()
    made[0, 0, 0] = np.inf
    stored(world.inputs / "a.nii", made)
    size = np.prod(SHAPE)
    for options, reported in (
        ((), f"1 of {size} voxels are infinite, and 2 NaN; --nan-to replaces only NaN"),
        (("--nan-to", "0"), f"1 of {size} voxels are infinite; --nan-to replaces only NaN"),
    ):
        done = world.command("translate", *options)
        assert done.exit_code == 1
        assert reported in done.stderr


def test_the_value_is_a_setting_of_the_result(world: QueueWorld) -> None:
    report = world.folder / "r.json"
    assert world.command("translate", "--nan-to", "0", "--report", str(report)).exit_code == 0
    found = json.loads(report.read_text())
    assert found["settings"]["nan_to"] == 0.0
    [row] = found["studies"]
    assert row["notes"][1:] == [f"{NOTE} 0"]
    assert "1 up to date" in world.command("translate", "--nan-to", "-0.0").stdout
    assert "redone: the settings changed" in world.command("plan", "--nan-to", "1").stdout


def test_a_job_keeps_the_value(world: QueueWorld) -> None:
    batch = world.submit("--nan-to", "7.5")
    world.work()
    [job] = world.jobs(batch)
    assert job["state"] == "done"
    assert job["result"]["notes"][1:] == [
        f"3 of {np.prod(SHAPE)} voxels were NaN, and were replaced by 7.5"
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e39", "zero"])
def test_invalid_value_is_wrong_usage(world: QueueWorld, value: str) -> None:
    done = world.command("translate", "--nan-to", value)
    assert done.exit_code == 2
    assert "--nan-to" in done.stderr
