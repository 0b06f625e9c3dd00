"""Retries: the pause between two tries, the number of tries of a study, and crash attribution.

Batches and the queue follow the same rule: studies that a worker had claimed when it died are
repeated, each alone on a worker.
"""

import time
from dataclasses import dataclass

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
