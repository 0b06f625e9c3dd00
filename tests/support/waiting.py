"""Waiting for what another process does, of which this one hears nothing."""

import time
from collections.abc import Callable

ENOUGH = 60.0
"""Seconds that only a test that fails waits; machines may be busy."""


def eventually(condition: Callable[[], object], seconds: float = ENOUGH) -> None:
    """Ask until it holds. What this process does itself says so by an event instead."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)
