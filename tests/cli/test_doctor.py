"""The doctor: well on a sound machine, and each trouble found, named and with a remedy."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine import devices
from cuda_cyclegan.engine.graph import FloatArray
from cuda_cyclegan.engine.model_file import load_model
from cuda_cyclegan.engine.reference import verify
from cuda_cyclegan.pipelines import installed, machine
from cuda_cyclegan.pipelines.self_test import MODEL


def findings(folder: Path, status: int = 0) -> dict[str, dict[str, Any]]:
    """By subject, from --json."""
    result = CliRunner().invoke(app, ["doctor", "--json", "--folder", str(folder)])
    assert result.exit_code == status, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "cuda-cyclegan/doctor/1"
    assert found["works"] == (status == 0)
    return {finding["subject"]: finding for finding in found["findings"]}


def test_a_sound_machine_is_well_within_3_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cuda_cyclegan", "doctor", "--folder", str(tmp_path)]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert time.perf_counter() - begin < 3
    assert done.stdout.splitlines()[-1] == "All is well" or "warning" in done.stdout
    for subject in ("Python", "Packages", "ONNX Runtime", "gzip", "Cores", "Memory", "Disk"):
        assert f"  {subject}: " in done.stdout
    assert "Self-test, CPU: " in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_self_test_compares_with_what_pytorch_computed() -> None:
    verification = verify(load_model(MODEL))
    assert verification.passed
    assert verification.made_by == "training code"


@pytest.mark.parametrize("wrong", [1.01, np.nan])
def test_a_device_that_computes_something_else_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    right = devices.open_generator

    @contextmanager
    def off(*asked: Any) -> Generator[Any]:
        with right(*asked) as generator:

            class Off:
                device = "broken"

                def __call__(self, patches: FloatArray) -> FloatArray:
                    return generator(patches) * np.float32(wrong)

            yield Off()

    monkeypatch.setattr(devices, "open_generator", off)
    finding = findings(tmp_path, 1)["Self-test, CPU"]
    assert finding["state"] == "failure"
    assert "do not use this device" in finding["remedy"]


def test_a_device_that_crashes_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(devices, "open_generator", crash)
    assert "illegal instruction" in findings(tmp_path, 1)["Self-test, CPU"]["words"]


def test_packages_that_are_missing_old_or_broken_are_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "brokenthing-1.5.dist-info"
    described.mkdir()
    metadata = "Metadata-Version: 2.1\nName: brokenthing\nVersion: 1.5\n"
    (described / "METADATA").write_text(metadata)
    (tmp_path / "brokenthing.py").write_text("raise OSError('libfoo.so.1: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    needs = [
        "absentthing>=2",
        "numpy>=99.1",
        "brokenthing>=1.0",
        "rich>=13",
        "extra>=1; extra=='x'",
    ]
    monkeypatch.setattr(installed, "requires", lambda _: needs)
    found = findings(tmp_path, 1)
    assert found["absentthing"]["remedy"] == "pip install 'absentthing>=2'"
    assert found["numpy"]["remedy"] == "pip install --upgrade 'numpy>=99.1'"
    assert "libfoo.so.1: cannot open" in found["brokenthing"]["words"]
    assert found["Packages"]["words"].startswith("rich ")
    assert "extra" not in found
    assert "Self-test, CPU" not in found, "what needs the packages is not tried"


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    found = findings(tmp_path / "gone", 1)["Disk"]
    assert found["state"] == "failure"
    assert str(tmp_path / "gone") in found["words"]


def test_a_disk_without_locks_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    assert findings(tmp_path, 1)["File locks"]["state"] == "failure"


def test_a_container_that_grants_less_is_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "cgroup"
    group.mkdir()
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "memory.max").write_text(f"{1 << 30}\n")
    (group / "memory.current").write_text(f"{1 << 29}\n")
    monkeypatch.setattr(machine, "_CGROUP", group)
    found = findings(tmp_path)
    assert found["Cores"]["state"] == found["Memory"]["state"] == "warning"
    assert "only 0.5 of them" in found["Cores"]["words"]
    assert found["Memory"]["words"].startswith("0.5 of ")


@pytest.mark.parametrize("command", ["doctor", "report"])
def test_help_imports_nothing_heavy(command: str) -> None:
    program = (
        "import sys\nfrom cuda_cyclegan.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'numpy', 'PIL', 'rich', 'nibabel', 'onnxruntime'} & {*sys.modules}))"
    )
    arguments = [sys.executable, "-c", program, command, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "Example: cuda-cyclegan" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
