"""Parts of one study's work on several threads, as NumPy lets them run at the same time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..engine.cpu import usable_cores

Part = TypeVar("Part")
Made = TypeVar("Made")

_THREADS = 4
"""Beside the other studies under way; more do not make one wait noticeably less."""


def beside_each_other(work: Callable[[Part], Made], parts: Iterable[Part]) -> list[Made]:
    """What each part was made to, in their order; raises what one of them raised."""
    with ThreadPoolExecutor(min(_THREADS, usable_cores())) as threads:
        return list(threads.map(work, parts))
