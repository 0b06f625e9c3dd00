"""Back-pressure: how much may be in use at a time."""

import threading


class Room:
    """So many places or bytes, for threads to take and give back.

    What alone is more than there is gets in when nothing else is inside, so that nothing waits for
    ever.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, amount: int = 1) -> bool:
        """Wait until there is room, and take it; False once the room is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._fits(amount))
            self._used += amount
            return not self._closed

    def give(self, amount: int = 1) -> None:
        """Give room back."""
        with self._changed:
            self._used -= amount
            self._changed.notify_all()

    def close(self) -> None:
        """Let everybody out who waits, with nothing to be had any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fits(self, amount: int) -> bool:
        return not self._used or self._used + amount <= self._size
