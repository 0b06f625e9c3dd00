"""A device that falls off in the middle of a batch, as the user sees it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model

STUDIES = 5
FALLING_OFF = """
from cuda_cyclegan.cli.app import main
from cuda_cyclegan.engine.cpu.session import SessionGenerator
from cuda_cyclegan.engine.errors import CudaError

run, calls = SessionGenerator.__call__, iter(range(99))

def run_or_fall(self, patches):
    if next(calls) >= 2:
        raise CudaError("cuLaunchKernel", "ECC_UNCORRECTABLE", "start again", is_sticky=True)
    return run(self, patches)

SessionGenerator.__call__ = run_or_fall
main()
"""
"""The command, but from the third patch on the device refuses all work in its process."""


@pytest.mark.process
def test_a_device_that_falls_off_costs_no_study(tmp_path: Path) -> None:
    for number in range(STUDIES):
        scan(tmp_path / "scans" / f"{number}.nii", number, (16, 16, 16))
    report, output = tmp_path / "report.json", tmp_path / "results"
    paths = [tmp_path / "scans", "--model", tiny_model(tmp_path / "model.safetensors")]
    command = [sys.executable, "-c", FALLING_OFF, "translate", *map(str, paths)]
    command += ["--output", str(output), "--device", "cpu", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reported = json.loads(report.read_text())
    assert reported["totals"]["translated"] == STUDIES
    assert reported["use"]["devices"] == 1
    assert [row["name"] for row in reported["studies"]] == [f"{n}.nii" for n in range(STUDIES)]
    assert len(list(output.glob("*.nii"))) == STUDIES
    assert list(output.glob("*.part")) == []
