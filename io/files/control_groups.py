"""Memory that the control groups of this process leave it: of a container, of Slurm or systemd.

Both versions of Linux' interface are read: Documentation/admin-guide/cgroup-v1/memory.rst and
cgroup-v2.rst of the kernel. Where there is neither, as on macOS, nothing is limited.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

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
    """Bytes that this process may still take; None without a limit.

    What the groups hold of files that nobody uses counts as free: the kernel drops it first.
    """
    groups = [(_VERSION_1, group) for group in _groups("memory")]
    groups += [(_VERSION_2, group) for group in _groups("")]
    left = [rest for files, group in groups if (rest := _memory_left(files, group)) is not None]
    return min(left, default=None)


def memory_granted() -> int | None:
    """Bytes that this process may have, taken ones included; None without a limit."""
    limits = [_limit(_VERSION_1, group) for group in _groups("memory")]
    limits += [_limit(_VERSION_2, group) for group in _groups("")]
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(controller: str) -> Iterator[Path]:
    """The process's group and those around it, which limit it too; "" is version 2's only tree.

    Those above a container's own are not visible in it.
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
    """None for a file that is missing, or says that there is no limit."""
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
