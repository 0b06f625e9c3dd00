"""Primitives shared by the threads of a batch: a semaphore of bytes or slots, the barrier that
writers pass until a stopped batch closes it, and background tasks of a study.

The thread that stops a batch may be interrupted while it does so. An interrupt that comes while a
`Condition` or an `Event` takes its lock leaves that locked for good; one that comes while a `with`
takes a lock does not.
"""

import threading
from _thread import start_new_thread
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar


class WeightedSemaphore:
    """Semaphore of a number of slots or bytes, for threads to acquire and release.

    A request for more than the total is granted when nothing else is acquired, so that no thread
    waits forever.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._closed = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def acquire(self, amount: int = 1) -> bool:
        """Wait until `amount` is free and take it; return False once the semaphore is closed."""
        with self._lock:
            self._changed.wait_for(lambda: self._closed or self._fits(amount))
            self._used += amount
            return not self._closed

    def release(self, amount: int = 1) -> None:
        """Release `amount`, and wake as many waiting threads as could each take a part of it."""
        with self._lock:
            self._used -= amount
            self._changed.notify(max(amount, 0))

    def exchange(self, taken: int, needed: int) -> None:
        """Change an acquired amount from `taken` to `needed`, without waiting for any increase.

        Threads that wait while they already hold some may deadlock.
        """
        self.release(taken - needed)

    def close(self) -> None:
        """End all waits; every `acquire` fails from now on."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def _fits(self, amount: int) -> bool:
        return not self._used or self._used + amount <= self._size


class StoppedError(BaseException):
    """Raised in a thread whose result is no longer needed, to end it."""


class CommitBarrier:
    """Barrier for commits: any number of threads may be inside at a time until it is closed.

    Once it is closed, no thread is inside and none can enter. Each step passes it that makes a
    part of a result, or the whole result, visible.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._is_shut = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    @property
    def is_shut(self) -> bool:
        """Whether the barrier is closed, so that a failure from now on may be caused by that."""
        return self._is_shut

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Enter the barrier for a short atomic step. Raises StoppedError once it is closed."""
        with self._lock:
            if self._is_shut:
                raise StoppedError
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self) -> None:
        """Close the barrier and wait for commits in progress."""
        with self._lock:
            self._is_shut = True
            self._changed.wait_for(lambda: not self._inside)


Output = TypeVar("Output")


@contextmanager
def running_in_background(
    work: Callable[[Callable[[], None]], Output],
) -> Generator[Callable[[], Output]]:
    """Run `work` in a thread of its own, which may continue after the block.

    Yields a function that waits for the work and returns its result or raises its error. A block
    that fails ends the work, and waits for its end. work: receives a function that it should call
    now and then, which raises StoppedError once the block has failed. The thread is a daemon, so
    that a process need not wait for a disk that does not answer.
    """
    output: Future[Output] = Future()
    failed = threading.Event()

    def go_on() -> None:
        if failed.is_set():
            raise StoppedError

    def run() -> None:
        try:
            output.set_result(work(go_on))
        except BaseException as error:
            output.set_exception(error)

    start_new_thread(run, ())  # a Thread would have its starter wait for it
    try:
        yield output.result
    except BaseException:
        failed.set()
        output.exception()
        raise
