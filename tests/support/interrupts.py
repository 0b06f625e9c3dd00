"""A Ctrl-C at any moment of what the main thread does."""

import random
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from support.waiting import ENOUGH

_LATEST_SECONDS = 40e-6
"""Time after which the longest act that is interrupted here is over."""


def interrupted(act: Callable[[], object]) -> None:
    """Do it, with an interrupt at some moment of it or right behind it.

    One in what Python calls when an object is collected is dropped there and ends nothing.
    """
    has_come = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        raise KeyboardInterrupt

    with _dropped_interrupts_untold(), _alarms(interrupt):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, _LATEST_SECONDS))
            act()
            while not has_come:
                time.sleep(0)  # of a signal that another thread took, only this tells
        except KeyboardInterrupt:
            pass


def done_at_last(act: Callable[[], object]) -> None:
    """Do what must not wait for ever. Raises AssertionError if it does."""

    def complain(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("it waits for what never comes")

    with _alarms(complain):
        signal.setitimer(signal.ITIMER_REAL, ENOUGH)
        act()


@contextmanager
def _dropped_interrupts_untold() -> Generator[None]:
    """pytest fails a test for each error that Python drops."""
    tell = sys.unraisablehook

    def tell_of_others(dropped: "sys.UnraisableHookArgs") -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            tell(dropped)

    sys.unraisablehook = tell_of_others
    try:
        yield
    finally:
        sys.unraisablehook = tell


@contextmanager
def _alarms(handle: Callable[[int, FrameType | None], None]) -> Generator[None]:
    before = signal.signal(signal.SIGALRM, handle)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
