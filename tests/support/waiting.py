"""Waiting until threads wait, and for what other processes do and say."""

import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

ENOUGH = 300.0
"""Seconds that only a test that fails waits; machines may be busy."""


def eventually(
    condition: Callable[[], object],
    seconds: float = ENOUGH,
    evidence: Callable[[], object] = lambda: "",
) -> None:
    """Ask until it holds. What this process does itself says so by an event instead.

    evidence: what a failure shows, such as a log.
    """
    end, begun = time.monotonic() + seconds, time.thread_time()
    while not condition():
        assert time.monotonic() < end, f"it never came to that\n{evidence()}"
        took = time.thread_time() - begun
        time.sleep(max(0.02, 2 * took))  # who is waited for needs the processor more
        begun = time.thread_time()


def wait_for(process: "subprocess.Popen[str]", *words: str) -> str:
    """Read what a process says on stderr until each of these was in some line; all lines so far.

    A process that does not say it is killed in the end, so that the test shows what it said.
    """
    assert process.stderr is not None
    said = ""
    end = threading.Timer(ENOUGH, process.kill)
    end.daemon = True
    end.start()
    try:
        for line in process.stderr:
            said += line
            if all(each in said for each in words):
                return said
    finally:
        end.cancel()
    raise AssertionError(f"it never said all of {words}; but:\n{said}")


class ToldCondition(threading.Condition):
    """A condition that calls `tell` whenever somebody begins to wait for it."""

    def __init__(self, tell: Callable[[], object], lock: Any = None) -> None:
        super().__init__(lock)
        self._tell = tell

    def wait(self, timeout: float | None = None) -> bool:
        self._tell()
        return super().wait(timeout)
