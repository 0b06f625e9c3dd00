"""Threads of a node that repeat an action."""

import threading
from collections.abc import Callable

from ..retries import Once
from .events import NodeEvent, Trouble

POLL_SECONDS = 1.0
"""Seconds between two checks for pending work, unless `PeriodicThread.wake` is called."""


class PeriodicThread:
    """Thread that repeats an action from the first `wake` to `stop`.

    name: of the thread. do: does the pending work; returns whether more may be pending at once.
    emit: callback for unexpected errors, after which the thread continues. is_open: True until
    `stop`.
    """

    def __init__(
        self, name: str, do: Callable[[], bool], emit: Callable[[NodeEvent], None]
    ) -> None:
        self.is_open = True
        self._name, self._do, self._emit = name, do, emit
        self._unexpected = Once()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def wake(self) -> None:
        """Check for pending work now; start the thread the first time."""
        if self._thread.ident is None:
            self._thread.start()
        self._woken.set()

    def stop(self) -> None:
        """Start nothing more; `join` waits for the current action."""
        self.is_open = False
        self._woken.set()

    def join(self) -> bool:
        """Wait up to 10 s for the current action; return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(10.0)
        return not self._thread.is_alive()

    def close(self) -> bool:
        """Start nothing more, and wait up to 10 s for the current action, as `join` does."""
        self.stop()
        return self.join()

    def _run(self) -> None:
        while self.is_open:
            self._woken.clear()
            if not self._done():
                self._woken.wait(POLL_SECONDS)

    def _done(self) -> bool:
        """Return whether more may be pending; report the same unexpected error once."""
        try:
            return self._do()
        except Exception as error:  # its message may quote a scan
            kind = type(error).__name__
            if self._unexpected.is_new(kind):
                self._emit(Trouble(f"{self._name} met an unexpected {kind}, and is retried"))
            return False
