"""Limits of containers and of Slurm, in folders as the kernel makes them."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.io.errors import UnreadableScanError
from cuda_cyclegan.io.files import machine_limits
from cuda_cyclegan.io.files.header_limits import check_size
from cuda_cyclegan.io.files.machine_limits import memory_left, most_memory
from cuda_cyclegan.pipelines.host import memory
from cuda_cyclegan.pipelines.host.memory import available_memory
from cuda_cyclegan.pipelines.run.networks import maps_budget
from cuda_cyclegan.pipelines.run.pipeline import concurrency_of

MIB = 1 << 20
CPU = Device("cpu", "fp32", ("fp32",))
CARD = Device("cuda", "fp16", ("fp16",))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `lay` makes control groups."""
    monkeypatch.setattr(machine_limits, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(machine_limits, "MEMBERSHIP", tmp_path / "membership")
    unkept = machine_limits.most_memory_in.__wrapped__
    monkeypatch.setattr(machine_limits, "most_memory_in", unkept)
    return tmp_path


def lay(kernel: Path, membership: str, files: Mapping[str, object]) -> None:
    (kernel / "membership").write_text(membership)
    for name, content in files.items():
        file = kernel / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")


def test_a_container_of_version_2_with_its_cache_as_free(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_free_in_system", lambda: None)  # which may be less just now
    stat = f"anon {100 * MIB}\nfile {300 * MIB}\ninactive_file {250 * MIB}\nactive_file {50 * MIB}"
    files = {"memory.max": 512 * MIB, "memory.current": 400 * MIB, "memory.stat": stat}
    lay(kernel, "0::/\n", files)
    assert memory_left() == 362 * MIB
    assert available_memory() == 362 * MIB
    assert concurrency_of(CPU).host_bytes == 181 * MIB
    assert maps_budget(CARD)() == 181 * MIB
    assert maps_budget(CPU)() == 362 * MIB // 4
    assert concurrency_of(CPU, sharing=2).host_bytes == 181 * MIB // 2


def test_the_tightest_of_the_groups_around_a_job_of_slurm(kernel: Path) -> None:
    job = "system.slice/slurmstepd.scope/job_7"
    files = {
        f"{job}/memory.max": 300 * MIB,
        f"{job}/memory.current": 100 * MIB,
        f"{job}/step_0/memory.max": "max",
        f"{job}/step_0/memory.current": 90 * MIB,
        f"{job}/step_0/user/memory.max": 900 * MIB,
        f"{job}/step_0/user/memory.current": 80 * MIB,
    }
    lay(kernel, f"0::/{job}/step_0/user\n", files)
    assert memory_left() == 200 * MIB


def test_scan_beyond_any_container_of_this_size_is_refused_before_it_is_read(
    kernel: Path, tmp_path: Path
) -> None:
    """The system killed the batch that read it, and the next one at the same scan."""
    files = {"memory.max": 512 * MIB, "memory.current": 500 * MIB}
    lay(kernel, "0::/\n", files)
    assert most_memory() == 512 * MIB
    scan = tmp_path / "a.nii"
    scan.touch()
    os.truncate(scan, 1024 * MIB)
    check_size(scan, 512 * MIB)
    with pytest.raises(UnreadableScanError, match=r"needs 0\.6 GiB .* may use only 0\.5 GiB"):
        check_size(scan, 614 * MIB)


def test_a_soft_limit_counts_as_well(kernel: Path) -> None:
    files = {
        "a.service/memory.max": "max",
        "a.service/memory.high": 64 * MIB,
        "a.service/memory.current": 70 * MIB,
    }
    lay(kernel, "0::/a.service\n", files)
    assert memory_left() == 0


def test_version_1_where_a_container_sees_the_path_of_its_host(kernel: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": 512 * MIB,
        "memory/memory.usage_in_bytes": 500 * MIB,
        "memory/memory.stat": f"inactive_file {1 * MIB}\ntotal_inactive_file {100 * MIB}",
    }
    lay(kernel, "12:cpu,cpuacct:/\n4:memory:/docker/0123abcd\n0::/\n", files)
    assert memory_left() == 112 * MIB


def test_no_limit(kernel: Path) -> None:
    lay(kernel, "4:memory:/user.slice\n0::/\n", {"memory.max": "max", "memory.current": 5})
    assert memory_left() is None
    (kernel / "membership").unlink()
    assert memory_left() is None
    assert available_memory() > 0
