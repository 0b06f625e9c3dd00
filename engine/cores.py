"""The machine's cores, and work that NumPy lets several of them share."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeVar

Part = TypeVar("Part")
Made = TypeVar("Made")

_MOST = 4
"""On one piece of work, beside all others under way; more do not make it noticeably shorter."""


CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores that are worth a thread each: those that this process may run on, or as many as make up
    the time that its container grants, as `docker --cpus` does.
    """
    quota = _known_quota()
    return allowed_cores() if quota is None else min(allowed_cores(), max(math.ceil(quota), 1))


def allowed_cores() -> int:
    """Cores that this process may run on, which a scheduler or container may have limited."""
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_granted() -> float | None:
    """Cores' worth of time that this process gets at most; None without a limit.

    By the control groups of Linux, of both versions: Documentation/scheduler/sched-bwc.rst and
    admin-guide/cgroup-v2.rst of the kernel.
    """
    quotas = (_quota(group) for group in _control_groups())
    return min((quota for quota in quotas if quota is not None), default=None)


@cache  # as it is asked for with each piece of work
def _known_quota() -> float | None:
    return cores_granted()


def _control_groups() -> Iterator[Path]:
    """The process's groups, and those around them that it sees, which limit it too."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        tree = "cpu" if "cpu" in controllers.split(",") else controllers
        if tree in ("", "cpu"):  # version 2 has one tree for all, without a name
            inner = PurePosixPath(group.removeprefix("/"))
            yield from (CONTROL_GROUPS / tree / folder for folder in (inner, *inner.parents))


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


def beside_each_other(
    work: Callable[[Part], Made], parts: Iterable[Part], most: int = _MOST
) -> list[Made]:
    """What each part was made to, in their order; raises what one of them raised.

    most: cores that it may take.

    Each thread takes the next part by itself, as to wake another costs as much as many a part. The
    caller takes parts too, so all get done even if the others are busy elsewhere.
    """
    numbered = enumerate(list(parts))  # whose next item no two threads get
    made = dict[int, Made]()

    def take_parts() -> None:
        for number, part in numbered:
            made[number] = work(part)

    helpers = [_threads().submit(take_parts) for _ in range(min(most, usable_cores()) - 1)]
    try:
        take_parts()
    finally:
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()
    return [made[number] for number in sorted(made)]


@cache
def _threads() -> ThreadPoolExecutor:
    """Kept for the process: to start a thread takes half a millisecond on a virtual machine."""
    return ThreadPoolExecutor(usable_cores(), "beside each other")
