"""`plan` and `translate` of scans whose format is only read."""

from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.format_samples import SAMPLES
from support.translate_world import World, one_sentence
from typer.testing import CliRunner

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.formats.registry import FORMATS

nibabel: Any = _nibabel
READ_ONLY = [each.name for each in FORMATS if each.writes is None]


def test_plan_and_translate_refuse_each_without_a_format(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in READ_ONLY:
        SAMPLES[name](world.inputs)
    planned = CliRunner().invoke(
        app, ["plan", *world.arguments("--volume", "all"), "--device", "cpu"]
    )
    assert f"{len(READ_ONLY)} would fail" in planned.output
    for name in READ_ONLY:
        assert f"{name} files are only read; choose the result's with --format nifti" in " ".join(
            planned.output.split()
        )
    report = cc.translate_folder(world.inputs, world.model, world.output, device="cpu")
    assert [row.status for row in report.studies] == ["failed"] * len(READ_ONLY)
    assert not list(world.output.glob("scan*"))


@pytest.mark.parametrize("name", READ_ONLY)
def test_results_equal_those_of_the_same_scan_as_nifti(name: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    sample = SAMPLES[name](world.inputs)
    values = np.stack(sample.values, axis=3).astype(np.float32)
    nibabel.Nifti1Image(values, sample.affine).to_filename(world.inputs / "same.nii.gz")
    made = world.translate(
        *["--format", "nifti", "--volume", "all", "--output-type", "float32", "--device", "cpu"]
    )
    assert made.exit_code == 0, made.output
    stem = sample.files[0].name.rpartition(".")[0]
    result, same = (nibabel.load(world.output / f"{each}.nii.gz") for each in (stem, "same"))
    assert result.shape == same.shape == values.shape
    apart = np.abs(result.get_fdata() - same.get_fdata())
    assert apart.max() <= 1e-4 * np.ptp(values)
    np.testing.assert_allclose(result.affine, same.affine, atol=1e-4)


def test_one_named_result_decides_by_its_suffix(tmp_path: Path) -> None:
    world = World(tmp_path)
    scan = SAMPLES["afni"](world.inputs).files[0]
    for name, status in (("a.nii.gz", 0), ("a.HEAD", 2)):
        words = [str(scan), "--model", str(world.model), "--output", str(tmp_path / name)]
        result = CliRunner().invoke(app, ["translate", *words, "--volume", "1", "--device", "cpu"])
        assert result.exit_code == status, result.output
    assert "must end in .nii, .nii.gz, .nrrd or .mha" in one_sentence(result)
    assert (tmp_path / "a.nii.gz").is_file()
