"""Suspicious results are named in the summary and in the report, and fail a batch on request."""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from support.batch_world import identity_model, model_bytes, scan
from support.calibration_scans import head
from support.pages import json_in
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.model.intensity_maps import Window
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.pipelines.report.result_groups import FEWEST

FAIL = "--fail-on-suspicious"


def collapsed_model(path: Path) -> Path:
    """A model whose results have one value."""
    spec = ResNetSpec(1, 1, 2, 1, downsamplings=1)
    nothing = {n: np.zeros(s, np.float32) for n, s in build(spec).weight_shapes()}
    path.write_bytes(model_bytes(spec, nothing, Window(0, 1000)))
    return path


def translated(folder: Path, model: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    words = ["in", "--model", model, "--output", "out", "--report", report, *options]
    words = [folder / each if each in ("in", "out") else each for each in words]
    done = CliRunner().invoke(app, ["translate", *map(str, words)])
    return done.exit_code, " ".join(done.output.split()), json.loads(report.read_text())


def test_a_negative_slope_of_a_scan_changes_no_measure(tmp_path: Path) -> None:
    stored = np.rint(head(1) / head(1).max() * 200).astype(np.int16)
    (tmp_path / "in").mkdir()
    for name, sign in (("plain.nii", 1), ("turned.nii", -1)):
        image = nibabel.Nifti1Image(sign * stored, np.eye(4))
        image.header.set_slope_inter(sign * 2, 0)
        nibabel.save(image, tmp_path / "in" / name)
    _, _, report = translated(tmp_path, identity_model(tmp_path / "model"))
    plain, turned = (one["measures"] for one in report["studies"])
    for name in ("cut_off", "edges", "detail", "match", "shift", "values", "local"):
        assert turned[name] == pytest.approx(plain[name], rel=1e-5, abs=1e-6), name
    assert turned["levels"][0] == pytest.approx(plain["levels"][0])


def test_a_constant_result_is_suspicious_in_any_batch(tmp_path: Path) -> None:
    scan(tmp_path / "in" / "a.nii.gz")
    model = collapsed_model(tmp_path / "model")
    status, text, report = translated(tmp_path, model)
    assert status == 0
    assert "suspicious: a.nii.gz: its result is suspicious: edges 0 (usual at least 0.01)" in text
    assert "1 suspicious" in text
    [row] = report["studies"]
    assert (row["status"], row["suspicion"]["state"]) == ("translated", "suspicious")
    assert report["totals"]["suspicious"] == 1
    stored = (tmp_path / "out" / "a.nii.gz").read_bytes()
    status, text, report = translated(tmp_path, model, FAIL)
    assert (status, report["studies"][0]["status"]) == (1, "up to date")
    assert "suspicious: a.nii.gz: " in text
    assert (tmp_path / "out" / "a.nii.gz").read_bytes() == stored
    status, text, _ = translated(tmp_path, model, FAIL, "--quiet")
    assert (status, "suspicious: a.nii.gz: " in text) == (1, True)
    assert translated(tmp_path, model, "--quiet")[:2] == (0, "")


def test_usual_results_pass_and_few_are_not_judged(tmp_path: Path) -> None:
    model = identity_model(tmp_path / "model")
    for number in range(FEWEST - 1):
        scan(tmp_path / "in" / f"{number}.nii.gz", number)
    status, text, report = translated(tmp_path, model, FAIL)
    assert (status, report["totals"]["not_judged"]) == (0, FEWEST - 1)
    assert f"Results: {FEWEST - 1} not judged, as too few similar scans are known" in text
    scan(tmp_path / "in" / "more.nii.gz", 99)
    status, text, report = translated(tmp_path, model, FAIL)
    assert status == 0
    assert {row["suspicion"]["state"] for row in report["studies"]} == {"usual"}
    assert "Results: none is suspicious, which does not prove them right" in text


@pytest.mark.parametrize("command", ["report", "view"])
def test_pages_have_the_state_and_the_reading_order(tmp_path: Path, command: str) -> None:
    scan(tmp_path / "in" / "a.nii.gz")
    translated(tmp_path, collapsed_model(tmp_path / "model"))
    page = tmp_path / "page.html"
    option = "--html" if command == "report" else "--export"
    done = CliRunner().invoke(app, [command, str(tmp_path / "out"), option, str(page)])
    assert done.exit_code == 0, done.output
    shown = next(page.glob("*.html")) if page.is_dir() else page
    [study] = json_in(shown.read_text())["studies"]
    assert (study["state"], study["flagged"][0]) == ("suspicious", "edges")
    assert study["far"] > 1
    assert any(note.startswith("its result is suspicious: ") for note in study["notes"])
