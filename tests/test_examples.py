"""The programs of docs/examples, which the pages show. The tutorial runs the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_world import scan
from support.bench_batches import write_model

from cuda_cyclegan.engine.model.model_file import load_model

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.slow
def test_a_night_translates_reports_and_repeats_nothing(tmp_path: Path) -> None:
    scan(tmp_path / "scans" / "a.nii.gz", 1)
    model = write_model(tmp_path / "model.safetensors", 2, 1, (16, 16, 16))
    command = ["sh", str(EXAMPLES / "night.sh"), "scans", str(model), "results"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for _ in range(2):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "All studies are translated." in done.stdout
    written = {path.suffix for path in tmp_path.glob("results-*")}
    assert written == {".json", ".html"}
    assert (tmp_path / "results" / "a.nii.gz").exists()


@pytest.mark.slow
def test_training_ends_with_a_model(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train.py"), str(tmp_path), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert load_model(tmp_path / "trained.safetensors").card.target == "T2-like"
