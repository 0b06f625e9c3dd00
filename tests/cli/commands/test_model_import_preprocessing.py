"""`model import` of what a card can say about preprocessing, to the result of `translate`."""

import shlex
import tarfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from support.onnx_files import model, node, written
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app

FIXTURES = Path(__file__).parents[2] / "fixtures"
AFFINE = np.diag([1.5, 1.0, 1.2, 1.0])


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def unchanging(folder: Path) -> Path:
    """A network that returns its input."""
    kernel = np.ones((1, 1, 1, 1, 1), np.float32)
    return written(model([node("Conv", "x w", "y")], {"w": kernel}), folder / "net.onnx")


def result_of(folder: Path, voxels: Any, options: str = "") -> Any:
    """The result of a scan by `m.safetensors` of the folder, on the CPU."""
    nibabel.Nifti1Image(voxels, AFFINE).to_filename(folder / "scan.nii")
    words = ["--model", folder / "m.safetensors", "--output", folder / "results", "--device", "cpu"]
    result = run("translate", folder / "scan.nii", *words, *shlex.split(options))
    assert result.exit_code == 0, result.stdout + result.stderr
    image: Any = nibabel.load(folder / "results" / "scan.nii")
    return image.get_fdata()


def test_an_nnunet_folder_becomes_nnunets_result(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "nnunet/folders.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    judged: dict[str, Any] = dict(np.load(FIXTURES / "nnunet/outputs.npz"))
    [folder] = (tmp_path / "regression").iterdir()
    output = tmp_path / "m.safetensors"
    imported = run(
        *("model", "import", folder, "--output", output, "--axes", "RAS", "--target", "CT"),
        *("--intensity-out", "standard:40,200"),
    )
    assert imported.exit_code == 0, imported.stdout + imported.stderr
    made = result_of(tmp_path, judged["scan"][0].astype(np.float32), "--overlap 0.5")
    expected = judged["regression float32"][0] * 200.0 + 40
    inside = judged["regression float32"][0] != 0
    apart = np.abs(made - expected)[inside]
    assert apart.max() <= 1e-4 * np.ptp(expected)


def test_steps_crop_and_grid_are_said_and_undone(tmp_path: Path) -> None:
    voxels = np.zeros((20, 22, 24), np.float32)
    voxels[4:16, 5:17, 6:18] = np.indices((12, 12, 12)).sum(0) + 100
    network = unchanging(tmp_path)
    imported = run(
        *("model", "import", network, "--output", tmp_path / "m.safetensors"),
        *("--source", "T1", "--target", "T2", "--axes", "RAS", "--patch", "16,16,16"),
        *("--intensity-in", "log+zscore@nonzero", "--intensity-out", "log+zscore@nonzero"),
        *("--crop", "nonzero:-5", "--grid", "24,24,24"),
    )
    assert imported.exit_code == 0, imported.stdout + imported.stderr
    shown = run("model", "inspect", tmp_path / "m.safetensors").stdout
    for reported in ("log:0+zscore:1@nonzero", "24 x 24 x 24 voxels", "nonzero, margin 0, with -5"):
        assert reported in shown
    made = result_of(tmp_path, voxels)
    assert made[0, 0, 0] == -5
    np.testing.assert_allclose(made[5:15, 6:16, 7:17], voxels[5:15, 6:16, 7:17], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--crop all:0", "'all:0' is not VOXELS:FILL"),
        ("--crop nonzero", "'nonzero' is not VOXELS:FILL"),
        ("--crop nonzero:0,0.5", "is not VOXELS:FILL"),
        ("--crop nonzero:0/,1", "is not VOXELS:FILL"),
        ("--crop nonzero:0/inf", "is not VOXELS:FILL"),
        ("--grid 1,8,8", "is not three extents"),
        ("--grid 8,8", "is not three extents"),
        ("--folds 0", "is not an nnU-Net folder"),
        ("--intensity-in clip:1,0+zscore", "nor is it steps"),
        ("--intensity-in zscore@brain", "nor is it steps"),
        ("--intensity-in zscore@nonzero,all", "nor is it steps"),
        ("--intensity-in identity@nonzero", "nor is it steps"),
    ],
)
def test_senseless_preprocessing_is_refused(options: str, message: str, tmp_path: Path) -> None:
    network = unchanging(tmp_path)
    words = shlex.split(options)
    result = run("model", "import", network, "--output", tmp_path / "m.safetensors", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
