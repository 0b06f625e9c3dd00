"""Retries: the pause between two tries, the number of tries of a study, crash attribution, and
reports of a problem that persists.

Batches and the queue follow the same rule: studies that a worker had claimed when it died are
repeated, each alone on a worker.
"""

import time
from dataclasses import dataclass

from .errors import QueueLostError

TRIES = 3
"""Worker crashes after which a study fails; users of the queue can set another number."""


def crash_counts(claimed: int) -> bool:
    """Return whether a crash counts against a study: only if it was the only one claimed.

    claimed: number of studies that the worker had claimed.
    """
    return claimed == 1


@dataclass
class Backoff:
    """Pause between two tries of the same action, doubled after each failure.

    first, longest: seconds after the first failure, and at most. seconds: length of the current
    pause. until: its end, on the monotonic clock.
    """

    first: float
    longest: float
    seconds: float = 0.0
    until: float = 0.0

    def lengthen(self) -> None:
        """Start the next pause, after a failure."""
        self.seconds = min(max(self.seconds * 2, self.first), self.longest)
        self.until = time.monotonic() + self.seconds

    def reset(self) -> None:
        """End the pause, after a success; the next one is the first again."""
        self.seconds = self.until = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the next try may start."""
        return time.monotonic() >= self.until


class Once:
    """Problems of repeated actions, each reported once until it passes or another replaces it.

    One that several actions share is reported once, too.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def is_new(self, kind: str, action: str = "") -> bool:
        """Note an action's problem, and return whether to report it. kind: what identifies it."""
        is_known = kind in self._known.values()
        self._known[action] = kind
        return not is_known

    def passed(self, action: str = "") -> None:
        """Note that an action succeeded."""
        self._known.pop(action, None)


def kind_of(problem: Exception) -> str:
    """Return what identifies a problem; a lost server has varying messages."""
    is_lost = isinstance(problem, QueueLostError)
    return type(problem).__name__ if is_lost else str(problem)
