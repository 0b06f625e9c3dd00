"""Marks that the benchmark of starts receives from a command: they name existing functions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model

MARKS = Path(__file__).parents[1] / "support" / "start_marks"


@pytest.mark.process
def test_a_command_shows_what_it_has_come_to(tmp_path: Path) -> None:
    model, marks = tiny_model(tmp_path / "model.safetensors"), tmp_path / "marks"
    scan(tmp_path / "scans" / "a.nii")
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", tmp_path / "scans"]
    command += ["--model", model, "--output", tmp_path / "results", "--device", "cpu"]
    variables = {"PYTHONPATH": str(MARKS), "START_MARKS": str(marks)}
    subprocess.run(
        list(map(str, command)), env={**os.environ, **variables}, capture_output=True, check=True
    )
    reported = [line.split("\t")[1] for line in marks.read_text().splitlines()]
    assert reported[0] == "Python started"
    assert reported[-1] == "leaves"
    expected = ["model read", "job known", "first study asked for", "first study read"]
    expected += ["first study begun", "first study computed", "last study stored", "batch over"]
    assert [what for what in reported if what in expected] == expected
