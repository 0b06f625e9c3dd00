"""The doctor: well on a sound machine, and each trouble found, named and with a remedy."""

import errno
import fcntl
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import queue_postgres
from support.queue_world import QueueWorld
from support.tiers import slowness
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine import devices
from cuda_cyclegan.engine.cpu.openvino_support import is_installed
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.model.reference import verify
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.io.files import machine_limits
from cuda_cyclegan.pipelines.doctor import installation as installed
from cuda_cyclegan.pipelines.doctor import machine, self_test
from cuda_cyclegan.pipelines.doctor import queue as queue_check
from cuda_cyclegan.pipelines.doctor.self_test import MODEL
from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE, queue_place


@pytest.fixture(autouse=True)
def small_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """No patch that OpenVINO computes in fp32: processes of their own do that. The disk is measured
    by 8 MiB instead of 256, and gzip by half a MiB instead of 8.
    """
    monkeypatch.setattr(self_test, "_USUAL_ON_CPU", (16, 16, 16))
    monkeypatch.setattr(installed, "_voxels", lambda: bytes(1 << 19))
    monkeypatch.setattr(machine, "_MOST_BLOCKS", 1)


def findings(folder: Path, status: int = 0, queue: str = "") -> dict[str, dict[str, Any]]:
    """Return the findings by subject, from --json."""
    arguments = ["doctor", "--json", "--folder", str(folder)]
    place = queue or str(folder / "queue" / "queue.db")
    result = CliRunner().invoke(app, arguments, env={VARIABLE: place})
    assert result.exit_code == status, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "cuda-cyclegan/doctor/1"
    assert found["works"] == (status == 0)
    return {finding["subject"]: finding for finding in found["findings"]}


@pytest.mark.process
def test_a_sound_machine_is_well_within_3_seconds(tmp_path: Path) -> None:
    place = ["--folder", str(tmp_path), "--queue", str(tmp_path / "queue.db")]
    command = [sys.executable, "-m", "cuda_cyclegan", "doctor", *place]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # What it works itself: on a busy machine the seconds on the wall are those of others.
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert spent < 3 or spent < 3 * slowness()
    assert done.stdout.splitlines()[-1] == "All checks passed" or "warning" in done.stdout
    packages = ("Python", "Packages", "ONNX Runtime", "Telemetry", "gzip")
    for subject in (*packages, "Cores", "Memory", "Disk", "Queue"):
        assert f"  {subject}: " in done.stdout
    runtime = "OpenVINO" if is_installed() else "ONNX Runtime"
    assert re.search(f"Self-test, CPU: .*{runtime}.* 64x64x64", done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_the_telemetry_of_onnx_runtime_is_reported_to_be_off(tmp_path: Path) -> None:
    found = findings(tmp_path)["Telemetry"]
    assert found["state"] == "ok"
    assert "off (ORT_DISABLE_TELEMETRY=1)" in found["words"]


def test_the_self_test_compares_with_what_pytorch_computed() -> None:
    verification = verify(load_model(MODEL))
    assert verification.passed
    assert verification.made_by == "training code"


@pytest.mark.process
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


@pytest.mark.slow
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
        "rich>=13,<99",
        "nibabel<5,>=4",
        "extra>=1; extra=='x'",
    ]
    monkeypatch.setattr(installed, "requires", lambda _: needs)
    found = findings(tmp_path, 1)
    assert found["absentthing"]["remedy"] == "pip install 'absentthing>=2'"
    assert found["numpy"]["remedy"] == "pip install --upgrade 'numpy>=99.1'"
    assert "libfoo.so.1: cannot open" in found["brokenthing"]["words"]
    assert found["nibabel"]["remedy"] == "pip install --upgrade 'nibabel<5,>=4'"
    assert found["Packages"]["words"].startswith("rich ")
    assert "extra" not in found
    assert "Self-test, CPU" not in found, "what needs the packages is not tried"
    assert found["Self-test"]["words"] == "skipped, as it needs what failed above: numpy"
    assert found["Queue"]["state"] == "ok", "what needs none of them is"


def test_gpus_and_devices_are_examined_though_the_queue_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "requires", lambda _: ["platformdirs>=99"])
    found = findings(tmp_path, 1)
    assert found["Queue"]["words"] == "skipped, as it needs what failed above: platformdirs"
    assert found["Self-test, CPU"]["state"] == "ok"
    assert [subject for subject in found if subject.startswith("CUDA")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        ("PIL", "SimpleITK", "imagecodecs", "isal", "jinja2", "nibabel", "pydicom"),
        *(("msgspec",), ("numpy",), ("onnx",), ("onnxruntime",), ("safetensors",)),
    ],
    ids=lambda modules: modules[0],
)
def test_a_broken_package_ends_no_examination(tmp_path: Path, modules: tuple[str, ...]) -> None:
    world = QueueWorld(tmp_path)
    world.scans(1)
    world.submit()
    broken = tmp_path / "broken"
    broken.mkdir()
    for module in modules:
        (broken / f"{module}.py").write_text(f"raise ImportError('{module} is broken')")
    command = [sys.executable, "-m", "cuda_cyclegan", "doctor", "--queue", world.queue]
    variables = {**os.environ, "PYTHONPATH": str(broken)}
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    for module in modules:
        assert re.search(f"^failure .*{module} is broken", done.stdout, re.MULTILINE), module
    for subject in ("Queue", "CUDA", "Self-test"):
        assert re.search(f"^(ok|warning) +{subject}\\b", done.stdout, re.MULTILINE), done.stdout
    assert not re.search("^failure +(Queue|CUDA|Self-test)", done.stdout, re.MULTILINE)


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    found = findings(tmp_path / "gone", 1)["Disk"]
    assert found["state"] == "failure"
    assert str(tmp_path / "gone") in found["words"]


@pytest.mark.parametrize(("size", "state"), [("1m", "failure"), ("30m", "warning")])
def test_a_small_disk_is_reported_by_the_space_it_has(
    tmp_path: Path, size: str, state: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        found = findings(disk, int(state == "failure"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert found["Disk"]["state"] == state
    assert f"{size.removesuffix('m')} MiB free" in found["Disk"]["words"]
    assert found["Disk"]["remedy"].startswith("make room")
    full = "its disk has 1 MiB left" in found["Queue"]["words"]
    assert (found["Queue"]["state"], full) == (("failure", True) if size == "1m" else ("ok", False))


@pytest.mark.slow
def test_a_cache_that_cannot_be_kept_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = findings(tmp_path)["Cache"]
    assert (found["state"], found["words"]) == ("ok", str(tmp_path / "cuda-cyclegan"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = findings(tmp_path)["Cache"]
    assert found["state"] == "warning"
    assert f"{tmp_path}/file/cuda-cyclegan cannot be written" in found["words"]
    assert "XDG_CACHE_HOME" in found["remedy"]


@pytest.mark.process
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
    (tmp_path / "membership").write_text("0::/\n")
    monkeypatch.setattr(machine_limits, "ROOT", group)
    monkeypatch.setattr(machine_limits, "MEMBERSHIP", tmp_path / "membership")
    found = findings(tmp_path)
    assert found["Cores"]["state"] == found["Memory"]["state"] == "warning"
    assert "only 0.5 of them" in found["Cores"]["words"]
    assert found["Memory"]["words"].startswith("0.5 of ")


@pytest.mark.process
def test_a_queue_is_counted_and_none_is_made(tmp_path: Path) -> None:
    missing = findings(tmp_path)["Queue"]
    assert missing["state"] == "ok"
    assert "none yet at" in missing["words"]
    assert list(tmp_path.iterdir()) == []
    world = QueueWorld(tmp_path)
    world.scans(2)
    world.submit()
    assert "2 waiting, 0 running" in findings(tmp_path, queue=world.queue)["Queue"]["words"]


@pytest.mark.slow
def test_a_queue_that_others_can_change_or_that_is_none_is_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.mkdir(mode=0o700)
    (folder / "queue.db").write_bytes(b"no database at all" * 100)
    assert findings(tmp_path, 1)["Queue"]["state"] == "failure"
    (folder / "queue.db").unlink()
    folder.chmod(0o777)
    found = findings(tmp_path, 1)["Queue"]
    assert "Other users can write" in found["words"]
    assert "chmod go-w" in found["remedy"]


def test_a_server_that_is_not_there_is_a_failure_without_its_password(tmp_path: Path) -> None:
    found = findings(tmp_path, 1, "postgresql://me:secret@127.0.0.1:1/jobs")["Queue"]
    assert found["state"] == "failure"
    assert "does not answer" in found["words"]
    assert "secret" not in str(found)
    assert "connect_timeout" not in str(found)


@pytest.mark.slow
def test_a_queue_on_a_server_is_counted_and_an_empty_database_is_told_apart(
    tmp_path: Path,
) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        empty = findings(tmp_path, 1, server.url)["Queue"]
        assert empty["state"] == "failure"
        world = QueueWorld(tmp_path, server.url)
        world.scans(1)
        world.submit()
        found = findings(tmp_path, 0, server.url)["Queue"]
    assert found["words"] == f"{queue_place(server.url)}: 1 waiting, 0 running"


@pytest.mark.slow
def test_a_queue_on_a_network_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(queue_check, "_MOUNTS", mounts)
    found = findings(tmp_path)["Queue"]
    assert (found["state"], "network disk (nfs4)" in found["words"]) == ("warning", True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="its loader's words are looked at")
def test_a_driver_that_is_damaged_is_a_warning(tmp_path: Path) -> None:
    place = ["--json", "--folder", str(tmp_path), "--queue", str(tmp_path / "queue.db")]
    command = [sys.executable, "-m", "cuda_cyclegan", "doctor", *place]

    def found(libraries: Path) -> dict[str, Any]:
        variables = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        reported = json.loads(done.stdout)["findings"]
        return next(finding for finding in reported if finding["subject"] == "CUDA")

    (tmp_path / "libcuda.so.1").write_text("no library")
    damaged = found(tmp_path)
    assert damaged["state"] == "warning"
    assert f"{tmp_path}/libcuda.so.1" in damaged["words"]
    assert damaged["remedy"].startswith("reinstall the driver")
