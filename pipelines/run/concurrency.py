"""What the threads of a batch share: a semaphore of bytes or places, the barrier that writers
pass until a stopped batch shuts it, and background tasks of a study.

The thread that stops a batch may be interrupted while it does so. An interrupt that comes while a
`Condition` or an `Event` takes its lock leaves that locked for good; one that comes while a `with`
takes a lock does not.
"""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar


class WeightedSemaphore:
    """So many places or bytes, for threads to acquire and release.

    Who wants more than there is gets it when nobody else has any, so that nothing waits for ever.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._closed = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def acquire(self, amount: int = 1) -> bool:
        """Wait until so much is free, and take it; False once it is closed."""
        with self._lock:
            self._changed.wait_for(lambda: self._closed or self._fits(amount))
            self._used += amount
            return not self._closed

    def release(self, amount: int = 1) -> None:
        """Give so much back."""
        with self._lock:
            self._used -= amount
            self._changed.notify_all()

    def exchange(self, taken: int, needed: int) -> None:
        """Have another amount than the one taken, without waiting for what is more: who waits with
        something in hand, beside others who do, may wait for ever.
        """
        self.release(taken - needed)

    def close(self) -> None:
        """Let nobody wait any more; nothing is to be had from now on."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def _fits(self, amount: int) -> bool:
        return not self._used or self._used + amount <= self._size


class StoppedError(BaseException):
    """Ends a thread that nobody waits for any more."""


class CommitBarrier:
    """Any number of threads may be in it at a time; once it is shut, none is and none gets in.

    Passed by each step that makes a part of a result appear, or appear whole.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._is_shut = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    @property
    def is_shut(self) -> bool:
        """Whether whatever fails from now on may do so because of that."""
        return self._is_shut

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Pass with a short step that is not to be halved. Raises StoppedError once it is shut."""
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
        """Let nobody in any more, and wait for those who are inside."""
        with self._lock:
            self._is_shut = True
            self._changed.wait_for(lambda: not self._inside)


Made = TypeVar("Made")


@contextmanager
def running_in_background(
    work: Callable[[Callable[[], None]], Made],
) -> Generator[Callable[[], Made]]:
    """Do `work` in a thread of its own, which may go on behind the block; what is handed out waits
    for it, and tells what came of it. A block that fails ends the work, and waits for that.

    work: calls what it is given now and then, which raises StoppedError once the block has failed.
    The thread is a daemon: who cannot wait for a disk that does not answer may leave.
    """
    made: Future[Made] = Future()
    failed = threading.Event()

    def go_on() -> None:
        if failed.is_set():
            raise StoppedError

    def run() -> None:
        try:
            made.set_result(work(go_on))
        except BaseException as error:
            made.set_exception(error)

    thread = threading.Thread(target=run, name="beside", daemon=True)
    thread.start()
    try:
        yield made.result
    except BaseException:
        failed.set()
        thread.join()
        raise
