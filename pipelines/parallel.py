"""One study's work on several threads, as NumPy, isal and OpenSSL let it run at the same time."""

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from ..engine.cpu import usable_cores

Part = TypeVar("Part")
Made = TypeVar("Made")

_THREADS = 4
"""Beside the other studies under way; more do not make one wait noticeably less."""


def beside_each_other(work: Callable[[Part], Made], parts: Iterable[Part]) -> list[Made]:
    """What each part was made to, in their order; raises what one of them raised.

    Each thread takes the next part by itself: to wake another costs as much as many a part.
    """
    numbered = enumerate(list(parts))  # whose next item no two threads get
    made = dict[int, Made]()

    def take_parts() -> None:
        for number, part in numbered:
            made[number] = work(part)

    with ThreadPoolExecutor(_THREADS) as threads:
        helpers = [threads.submit(take_parts) for _ in range(min(_THREADS, usable_cores()) - 1)]
        take_parts()
    for helper in helpers:
        helper.result()
    return [made[number] for number in sorted(made)]


@contextmanager
def running_beside(work: Callable[[], Made]) -> Generator[Callable[[], Made]]:
    """Do `work` in a thread of its own during the block, which may ask for what came of it.

    The thread is a daemon: who cannot wait for a disk that does not answer may leave.
    """
    made: Future[Made] = Future()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    thread = threading.Thread(target=run, name="beside", daemon=True)
    thread.start()
    try:
        yield made.result
    finally:
        thread.join()
