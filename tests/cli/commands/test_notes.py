"""What a header leaves to be believed, or says wrongly, is told by translate and by its plan."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import SHAPE, identity_model
from support.dicom_phantoms import Phantom
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app

nibabel: Any = _nibabel
SECRET = "Doe^Jane" * 20


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    voxels = np.random.default_rng(0).integers(0, 1000, SHAPE).astype(np.int16)
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
    "Analyze does not say which side is left; its axes are taken to run to L, A and S",
    "its header breaks DICOM's rules; in the result: StudyDescription (cut to 64 characters)",
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
    assert sorted(note for row in rows for note in row["notes"]) == list(NOTES)
    assert "Doe" not in report.read_text()


def test_a_nifti_result_of_a_series_needs_no_mending(inputs: Path) -> None:
    text = run(inputs, "--format", "nifti")
    assert NOTES[0] in text
    assert NOTES[1] not in text


def test_discover_tells_what_a_header_leaves_to_be_believed(inputs: Path) -> None:
    shown = CliRunner().invoke(app, ["discover", str(inputs)])
    assert f"note: {inputs / 'scan.hdr'}: {NOTES[0]}" in " ".join(shown.output.split())
    told = json.loads(CliRunner().invoke(app, ["discover", str(inputs), "--json"]).stdout)
    assert [row["notes"] for row in told["files"]] == [[NOTES[0]]]
