"""What writers pass on their way to the disk, until a stopped batch shuts it."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class StoppedError(BaseException):
    """Ends a thread that nobody waits for any more."""


class Gate:
    """Any number of threads may be in it at a time; once it is shut, none is and none gets in."""

    def __init__(self) -> None:
        self._inside = 0
        self._is_shut = False
        self._changed = threading.Condition()

    @property
    def is_shut(self) -> bool:
        """Whether whatever fails from now on may do so because of that."""
        return self._is_shut

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Pass with a short step that is not to be halved. Raises StoppedError once it is shut."""
        with self._changed:
            if self._is_shut:
                raise StoppedError
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self) -> None:
        """Let nobody in any more, and wait for those who are inside."""
        with self._changed:
            self._is_shut = True
            self._changed.wait_for(lambda: not self._inside)
