"""A model that nothing vouches for says so in all that it makes."""

import json
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.batch_world import scan
from support.dicom_phantoms import Phantom
from support.lazy_modules import torch_generators as made
from support.model_folder import ZEROS, ModelFolder
from support.queue_world import QueueWorld
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app

pydicom: Any = _pydicom
DATA = (
    "--source MR --target T2 --intensity-in minmax --intensity-out minmax --axes RAS "
    "--spacing native --patch 16,16,16"
)


def imported(folder: Path, said: str) -> Path:
    """A model that is imported so, beside two scans and a series."""
    models = ModelFolder(folder)
    checkpoint = models.checkpoint(made.trained(made.unpadded_resnet(width=2)).state_dict())
    assert models.import_(checkpoint, said, DATA).exit_code == 0
    for name in ("a", "b"):
        scan(folder / "in" / f"{name}.nii")
    Phantom("MR").write(folder / "in" / "series")
    return models.output


def translated(folder: Path, said: str) -> Result:
    """The scans and the series through the model."""
    model = imported(folder, said)
    words = [folder / "in", "--model", model, "--output", folder / "out"]
    report = ["--report", folder / "report.json", "--device", "cpu"]
    return CliRunner().invoke(app, ["translate", *map(str, [*words, *report])])


@pytest.mark.parametrize(("said", "counts"), [("--unproven", 1), (ZEROS, 0)])
def test_a_batch_of_jobs_reports_it_in_words_json_and_page(
    tmp_path: Path, said: str, counts: int
) -> None:
    (tmp_path / "jobs").mkdir()
    world = QueueWorld(tmp_path / "jobs")
    world.model, world.inputs = imported(tmp_path, said), tmp_path / "in"
    batch, page, report = world.submit(), tmp_path / "page.html", tmp_path / "report.json"

    def summary() -> str:
        shown = world.did("jobs", "summary", batch, "--report", str(report), "--html", str(page))
        assert json.loads(report.read_text())["model"]["established"] == (
            "unproven" if counts else "code mfazampour"
        )
        assert page.read_text().count("is unproven: no reference") == counts
        report.unlink()
        page.unlink()
        return shown

    assert summary().count("is unproven") == counts
    world.work()
    assert summary().count("is unproven") == counts


def reported(folder: Path) -> tuple[str, str]:
    """Return what the report and a DICOM result state about the model."""
    report = json.loads((folder / "report.json").read_text())
    slice_ = pydicom.dcmread(next((folder / "out").rglob("*.dcm")))
    return report["model"]["established"], str(slice_.DerivationDescription)


def test_an_unproven_model_is_reported_once_a_run_and_in_every_dicom_result(tmp_path: Path) -> None:
    result = translated(tmp_path, "--unproven")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("is unproven") == 1
    assert "no reference or training code confirms what it computes" in result.stdout
    established, description = reported(tmp_path)
    assert established == "unproven"
    assert "with the model MR to T2 (unproven) by" in description
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "report.json")])
    assert "is unproven" in shown.stdout


def test_a_model_of_a_known_code_says_nothing(tmp_path: Path) -> None:
    result = translated(tmp_path, ZEROS)
    assert result.exit_code == 0, result.output
    assert "is unproven" not in result.stdout
    established, description = reported(tmp_path)
    assert established == "code mfazampour"
    assert "unproven" not in description
