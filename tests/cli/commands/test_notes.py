"""Notes of `translate` and `plan` about headers that omit or misstate something."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import SHAPE, identity_model, model_bytes, stored, tiny_model
from support.dicom_phantoms import Phantom
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.model.intensity_maps import Window
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build

nibabel: Any = _nibabel
SECRET = "Doe^Jane" * 20


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    voxels = np.random.default_rng(0).integers(-1000, 1000, SHAPE).astype(np.int16)
    nibabel.AnalyzeImage(voxels, np.diag([-1.0, 1, 1, 1])).to_filename(folder / "scan.hdr")
    Phantom(slices=8).write(
        folder / "ct", lambda data, _: setattr(data, "StudyDescription", SECRET)
    )
    return folder


def run(inputs: Path, *options: str) -> str:
    model = identity_model(inputs.parent / "model", "CT", "CT")
    arguments = ["translate", inputs, "--model", model, "--output", inputs.parent / "out", *options]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


NOTES = (
    "Analyze files do not record which side is left; its axes are assumed to point to L, A and S",
    "its header violates the DICOM standard; changed in the result: StudyDescription (truncated "
    "to 64 characters)",
)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_note_stands_in_the_summary_and_in_the_plan(inputs: Path, options: list[str]) -> None:
    text = run(inputs, *options)
    for note in NOTES:
        assert f": {note}\n" in text
    assert "Doe" not in text


def test_a_note_stands_in_the_report(inputs: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(inputs, "--report", str(report))
    rows = json.loads(report.read_text())["studies"]
    reported = {note for row in rows for note in row["notes"]}
    assert reported == {*NOTES, "nothing shows that the scan is CT; check that it fits"}
    assert "Doe" not in report.read_text()


def test_a_nifti_result_of_a_series_needs_no_mending(inputs: Path) -> None:
    text = run(inputs, "--format", "nifti")
    assert NOTES[0] in text
    assert NOTES[1] not in text


def test_discover_shows_what_a_header_leaves_to_be_believed(inputs: Path) -> None:
    shown = CliRunner().invoke(app, ["discover", str(inputs)])
    assert f"note: {inputs / 'scan.hdr'}: {NOTES[0]}" in " ".join(shown.output.split())
    reported = json.loads(CliRunner().invoke(app, ["discover", str(inputs), "--json"]).stdout)
    assert [row["notes"] for row in reported["files"]] == [[NOTES[0]]]


def translated(folder: Path, model: Path, *options: str) -> dict[str, Any]:
    """The one row of a batch of one scan of 0 to 1."""
    if not (scan := folder / "in" / "scan.nii").exists():
        stored(scan, np.random.default_rng(0).uniform(0, 1, SHAPE))
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    arguments = [folder / "in", "--model", model, "--output", folder / "out", "--report", report]
    CliRunner().invoke(app, ["translate", *map(str, [*arguments, *options])])
    [row] = json.loads(report.read_text())["studies"]
    return row


def test_a_scan_in_another_unit_than_the_models_window_has_a_note(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", intensity=Window(0, 1000))
    row = translated(tmp_path, model)
    assert row["status"] == "translated"
    assert any("of the model's window from 0 to 1000; check its unit" in x for x in row["notes"])


def test_a_second_run_keeps_notes_measures_and_seam_scores(tmp_path: Path) -> None:
    """All that was found while the study was translated."""
    model = tiny_model(tmp_path / "model", intensity=Window(0, 1000))
    first, second = (translated(tmp_path, model, "--seam-score") for _ in range(2))
    assert (first["status"], second["status"]) == ("translated", "up to date")
    for key in ("notes", "measures", "seam_score"):
        assert first[key], key
        assert second[key] == first[key]
    arguments = [tmp_path / "in", "--model", model, "--output", tmp_path / "out"]
    shown = CliRunner().invoke(app, ["translate", *map(str, arguments)])
    assert "check its unit" in " ".join(shown.output.split())


def test_a_scan_outside_of_the_models_window_is_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", intensity=Window(100, 1000))
    row = translated(tmp_path, model)
    assert (row["status"], row["class"]) == ("failed", "preparation")


def test_a_result_of_one_value_has_a_note(tmp_path: Path) -> None:
    spec = ResNetSpec(1, 1, 2, 1, downsamplings=1)
    nothing = {n: np.zeros(s, np.float32) for n, s in build(spec).weight_shapes()}
    (tmp_path / "model").write_bytes(model_bytes(spec, nothing, Window(0, 1)))
    row = translated(tmp_path, tmp_path / "model")
    assert row["notes"][1:] == [
        "its result is 0.5 throughout, so the model does not suit this scan"
    ]
