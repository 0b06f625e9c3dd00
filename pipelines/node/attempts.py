"""What cannot be done now: it is said once, and tried again after a backoff."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...engine.errors import EngineError
from ...io.errors import ScanError
from ..errors import PipelineError, QueueLostError
from .events import NodeEvent, Trouble

_TROUBLES = (PipelineError, ScanError, EngineError, OSError)
AGAIN_SECONDS = 5.0
"""After what went wrong, the same is tried again."""
ROUND_SECONDS = 1.0
"""Between two looks at what is due, if nothing says that there is more."""


@dataclass
class Backoff:
    """Between two tries of the same: it doubles from one failure to the next.

    first, longest: seconds after the first failure, and at most. seconds: of the last one. until:
    when it is over, on the monotonic clock.
    """

    first: float
    longest: float
    seconds: float = 0.0
    until: float = 0.0

    def lengthen(self) -> None:
        """Begin one after a failure."""
        self.seconds = min(max(self.seconds * 2, self.first), self.longest)
        self.until = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether the next try may begin."""
        return time.monotonic() >= self.until


class Rounds:
    """Does something again and again in a thread of its own, from the first `wake` to `stop`.

    name: of the thread. do: what is due now; whether more of it may be due at once. tell: hears of
    what no one expected, after which it goes on. is_open: until `stop`.
    """

    def __init__(
        self, name: str, do: Callable[[], bool], tell: Callable[[NodeEvent], None]
    ) -> None:
        self.is_open = True
        self._name, self._do, self._tell = name, do, tell
        self._unexpected = ""
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def wake(self) -> None:
        """Something new may be due."""
        if self._thread.ident is None:
            self._thread.start()
        self._woken.set()

    def stop(self) -> None:
        """Begin nothing else; `join` waits for what is under way."""
        self.is_open = False
        self._woken.set()

    def join(self, seconds: float) -> None:
        """Wait for what is under way."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while self.is_open:
            self._woken.clear()
            if not self._done():
                self._woken.wait(ROUND_SECONDS)

    def _done(self) -> bool:
        """Whether more may be due at once; the same unexpected error is said once."""
        try:
            return self._do()
        except Exception as error:  # its own words may quote a scan
            kind = type(error).__name__
            if kind != self._unexpected:
                self._tell(Trouble(f"{self._name} met an unexpected {kind}, and is tried again"))
            self._unexpected = kind
            return False


class Attempts:
    """Does things by name that may go wrong; failed: called before that is said."""

    def __init__(self, tell: Callable[[NodeEvent], None], failed: Callable[[], None]) -> None:
        self._tell, self._failed = tell, failed
        self._troubles: dict[str, tuple[str, Backoff]] = {}

    def attempt(self, what: str, do: Callable[[], None]) -> None:
        """Do something; if it cannot be done now, say so once, and wait a little.

        What keeps several things from being done is said once for all of them.
        """
        if what in self._troubles and not self._troubles[what][1].is_over:
            return
        try:
            do()
        except _TROUBLES as error:
            self._failed()
            reason, backoff = _kind_of(error), Backoff(AGAIN_SECONDS, AGAIN_SECONDS)
            if all(reason != known for known, _ in self._troubles.values()):
                self._tell(Trouble(str(error)))
            backoff.lengthen()
            self._troubles[what] = reason, backoff
        else:
            self._troubles.pop(what, None)

    def forget(self) -> None:
        """Try everything at once, and say again what goes wrong."""
        self._troubles.clear()


def _kind_of(trouble: Exception) -> str:
    """What is the same for the same trouble; a server that goes and comes says much."""
    is_lost = isinstance(trouble, QueueLostError)
    return type(trouble).__name__ if is_lost else str(trouble)
