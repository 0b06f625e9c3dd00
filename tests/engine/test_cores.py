"""Number of threads worth starting: the cores that may be used, and the time that is granted."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.reports import BATCH

from cuda_cyclegan.engine import cores
from cuda_cyclegan.engine.cores import usable_cores
from cuda_cyclegan.io.files import machine_limits
from cuda_cyclegan.io.files.machine_limits import cores_granted
from cuda_cyclegan.pipelines.report.codec import to_json


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `lay` makes control groups, on a machine of 8 cores."""
    monkeypatch.setattr(machine_limits, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(machine_limits, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(cores, "_known_quota", cores_granted)
    monkeypatch.setattr(cores, "allowed_cores", lambda: 8)
    return tmp_path


def lay(kernel: Path, membership: str, files: Mapping[str, object]) -> None:
    (kernel / "membership").write_text(membership)
    for name, content in files.items():
        file = kernel / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("quota", "granted", "usable"),
    [
        ("200000 100000", 2.0, 2),
        ("150000 100000", 1.5, 2),
        ("5000 100000", 0.05, 1),
        ("6400000 100000", 64.0, 8),
        ("max 100000", None, 8),
        ("", None, 8),
        ("100000 0", None, 8),
    ],
)
def test_a_container_with_a_share_of_the_machine(
    kernel: Path, quota: str, granted: float | None, usable: int
) -> None:
    """A container of `docker --cpus` is one: a thread for each core would only wait."""
    lay(kernel, "0::/\n", {"cpu.max": quota})
    assert (cores_granted(), usable_cores()) == (granted, usable)
    assert to_json(BATCH)["machine"]["cores"] == usable


def test_the_tightest_of_the_groups_around_a_job(kernel: Path) -> None:
    job = "system.slice/slurmstepd.scope/job_7"
    files = {f"{job}/cpu.max": "200000 100000", f"{job}/step_0/user/cpu.max": "max 100000"}
    lay(kernel, f"0::/{job}/step_0/user\n", files)
    assert usable_cores() == 2


@pytest.mark.parametrize(("quota", "usable"), [(300000, 3), (-1, 8)])
def test_version_1_where_a_container_sees_the_path_of_its_host(
    kernel: Path, quota: int, usable: int
) -> None:
    files = {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": 100000}
    lay(kernel, "12:cpu,cpuacct:/docker/0123abcd\n4:memory:/docker/0123abcd\n0::/\n", files)
    assert usable_cores() == usable


@pytest.mark.usefixtures("kernel")
def test_no_control_groups() -> None:
    assert (cores_granted(), usable_cores()) == (None, 8)
