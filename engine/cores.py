"""The machine's cores, and work that NumPy lets several of them share."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

Part = TypeVar("Part")
Made = TypeVar("Made")

_MOST = 4
"""On one piece of work, beside all others under way; more do not make it noticeably shorter."""


def usable_cores() -> int:
    """Cores that this process may run on, which a scheduler or container may have limited."""
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
