"""Usable cores of the machine, and NumPy work spread over several threads."""

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

from ..io.files.machine_limits import cores_granted

Part = TypeVar("Part")
Made = TypeVar("Made")

_MOST = 4
"""Threads per piece of work; others run concurrently, and more bring no noticeable speed-up."""


def usable_cores() -> int:
    """Return the number of threads worth starting: the cores this process may run on, or fewer if
    its container limits processor time, as `docker --cpus` does.
    """
    quota = _known_quota()
    return allowed_cores() if quota is None else min(allowed_cores(), max(math.ceil(quota), 1))


def allowed_cores() -> int:
    """Return the number of cores this process may run on, as its scheduler or container allows."""
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache  # called for each piece of work
def _known_quota() -> float | None:
    return cores_granted()


def in_parallel(
    work: Callable[[Part], Made], parts: Iterable[Part], most: int = _MOST
) -> list[Made]:
    """Apply `work` to each part in several threads; return the results in order of the parts.

    most: cores it may use. Raises an exception that one of the parts raised.

    Each thread fetches its next part itself, since waking another thread costs as much as many a
    part. The calling thread works too, so all parts get done even if the others are busy.
    """
    every = list(parts)
    numbered = enumerate(every)  # no two threads get the same next item
    results = dict[int, Made]()

    def take_parts() -> None:
        for number, part in numbered:
            results[number] = work(part)

    threads = min(most, len(every), usable_cores())
    helpers = [_threads().submit(take_parts) for _ in range(threads - 1)]
    try:
        take_parts()
    finally:
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()
    return [results[number] for number in sorted(results)]


@cache
def _threads() -> ThreadPoolExecutor:
    """Thread pool of the process: starting a thread takes 0.5 ms on a virtual machine."""
    return ThreadPoolExecutor(usable_cores(), "in parallel")
