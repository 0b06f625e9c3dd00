"""Memory and cores of the machine, and the share that this process may use.

A container, Slurm or systemd limits a process by control groups.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath


def physical_memory() -> int | None:
    """Return the bytes of memory; None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def address_space_limit() -> int | None:
    """Bytes of address space that this process may have, as `ulimit -v` sets it; None for all."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:  # Windows
        return None
    limit, _ = getrlimit(RLIMIT_AS)
    return None if limit == RLIM_INFINITY else limit


def most_memory() -> int:
    """Bytes that this process can have: the machine's, or what its container, job or `ulimit -v`
    leaves it of that.

    No limit if unknown. Read at most once a second: it comes from several system files, and a
    search uses it for every scan.
    """
    return most_memory_in(int(time.monotonic()))


@lru_cache(maxsize=1)
def most_memory_in(_second: int) -> int:
    """Return `most_memory` in a second of the system's clock."""
    known = (physical_memory(), memory_granted(), address_space_limit())
    return min((each for each in known if each is not None), default=sys.maxsize)


ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _MemoryFiles:
    limits: tuple[str, ...]
    used: str
    inactive: str


_VERSION_1 = _MemoryFiles(
    ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
)
_VERSION_2 = _MemoryFiles(("memory.max", "memory.high"), "memory.current", "inactive_file")


def memory_left() -> int | None:
    """Return the bytes that this process may still take; None without a limit.

    Inactive page cache of the groups counts as free: the kernel drops it first.
    """
    groups = [(_VERSION_1, group) for group in _groups("memory")]
    groups += [(_VERSION_2, group) for group in _groups("")]
    left = [rest for files, group in groups if (rest := _memory_left(files, group)) is not None]
    return min(left, default=None)


def memory_granted() -> int | None:
    """Return the memory limit in bytes, used memory included; None without a limit."""
    limits = [_limit(_VERSION_1, group) for group in _groups("memory")]
    limits += [_limit(_VERSION_2, group) for group in _groups("")]
    return min((limit for limit in limits if limit is not None), default=None)


def cores_granted() -> float | None:
    """Return the processor time granted, in cores; None without a limit."""
    quotas = (_quota(group) for group in (*_groups("cpu"), *_groups("")))
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the process's group and its ancestors, which limit it too.

    controller: "" for version 2, which has a single tree. Groups above a container's own are not
    visible inside it.
    """
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            inner = PurePosixPath(group.removeprefix("/"))
            yield from (ROOT / controller / folder for folder in (inner, *inner.parents))


def _memory_left(files: _MemoryFiles, group: Path) -> int | None:
    limit, used = _limit(files, group), _number(group / files.used)
    if limit is None or used is None:
        return None
    return max(limit - used + _inactive(group / "memory.stat", files.inactive), 0)


def _limit(files: _MemoryFiles, group: Path) -> int | None:
    limits = (_number(group / name) for name in files.limits)
    return min((limit for limit in limits if limit is not None), default=None)


def _number(file: Path) -> int | None:
    """Read a number; None if the file is missing or states no limit."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _inactive(statistics: Path, field: str) -> int:
    try:
        rows = [line.split() for line in statistics.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(value) for name, value in rows if name == field), 0)


def _quota(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            granted, period = (group / "cpu.max").read_text().split()
        else:
            names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            granted, period = ((group / name).read_text() for name in names)
        return None if granted == "max" or int(granted) < 0 else int(granted) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
