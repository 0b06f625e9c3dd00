"""The translate command on a folder of scans."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import tiny_model
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.results.kept_report import kept_report
from cuda_cyclegan.pipelines.results.record_folder import NAME, found_record

COMMAND = [sys.executable, "-m", "cuda_cyclegan", "translate"]


class World:
    """An input folder, an output folder that is not there yet, and a model."""

    def __init__(self, root: Path) -> None:
        self.inputs = root / "scans"
        self.output = root / "results"
        self.report = root / "report.json"
        self.model = tiny_model(root / "model.safetensors")
        self.inputs.mkdir()

    def arguments(self, *options: str) -> list[str]:
        paths = [self.inputs, "--model", self.model, "--output", self.output]
        return [*map(str, paths), *options]

    def translate(self, *options: str) -> Result:
        return CliRunner().invoke(app, ["translate", *self.arguments(*options)])

    def run(
        self, *options: str, prefix: tuple[str, ...] = (), **how: Any
    ) -> "subprocess.CompletedProcess[str]":
        command = [*prefix, *COMMAND, *self.arguments(*options)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **how)

    def files(self) -> dict[str, bytes]:
        """Everything below the output folder."""
        return {
            str(path.relative_to(self.output)): path.read_bytes()
            for path in sorted(self.output.rglob("*"))
            if path.is_file()
        }

    def manifest(self) -> bytes:
        """The record of the output folder, which must be there."""
        record = found_record(self.output)
        assert record is not None
        return (record / NAME).read_bytes()

    def rows(self) -> dict[str, dict[str, Any]]:
        """Rows of the JSON report by study."""
        return {row["name"]: row for row in json.loads(self.report.read_text())["studies"]}

    def kept_report(self) -> Path:
        """The report next to the record, which must be there."""
        file = kept_report(self.output)
        assert file is not None
        return file

    def kept_statuses(self) -> dict[str, str]:
        """Status of each study in the kept report."""
        studies = json.loads(self.kept_report().read_text())["studies"]
        return {row["name"]: row["status"] for row in studies}


def without_privileges() -> tuple[str, ...]:
    """Return the prefix of a command for which file permissions count, also for root."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root may do everything, and setpriv is not there to take that away")
    return "setpriv", "--bounding-set=-dac_override,-dac_read_search"


def one_sentence(result: Result) -> str:
    """The error, which must be one line without a traceback."""
    assert "Traceback" not in result.output
    [error] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return error
