"""Signals, as far as the system supports them."""

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TypeAlias

STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)  # Windows has no SIGHUP for a closed terminal
)
"""Signals with which a user, a service manager or a terminal requests a program to end."""

_AGAIN_SECONDS = 0.05

Interrupter: TypeAlias = Callable[[], None]
"""Function that schedules a KeyboardInterrupt in the main thread, after the interrupter's delay."""


def interrupter(seconds: float) -> AbstractContextManager[Interrupter]:
    """Return an interrupter for a block, which only the main thread may enter.

    No interrupt comes after the block. seconds: its delay.
    """
    return _by_alarm(seconds) if hasattr(signal, "setitimer") else _by_thread(seconds)


@contextmanager
def _by_alarm(seconds: float) -> Generator[Interrupter]:
    """Yield an interrupter by SIGALRM, which ends any system call of the main thread."""

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if _is_dropped(frame):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            return
        raise KeyboardInterrupt

    def later() -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield later
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _by_thread(seconds: float) -> Generator[Interrupter]:
    """Yield an interrupter by a Ctrl-C of its own, which other handlers of Ctrl-C do not receive.

    It does nothing if Ctrl-C is not handled.
    """
    before = signal.getsignal(signal.SIGINT)
    timers: list[threading.Timer] = []
    is_due = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_due
        if is_due and not _is_dropped(frame):
            is_due = False
            raise KeyboardInterrupt
        if callable(before):
            before(number, frame)

    def interrupt() -> None:
        nonlocal is_due
        is_due = True
        signal.raise_signal(signal.SIGINT)

    def later() -> None:
        timers.append(threading.Timer(seconds, interrupt))
        timers[-1].start()

    if not callable(before):
        yield lambda: None
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield later
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
        is_due = False
        signal.signal(signal.SIGINT, before)


def _is_dropped(frame: FrameType | None) -> bool:
    """Return whether Python would drop an exception raised in a frame: within unraisablehook."""
    hook = getattr(sys.unraisablehook, "__code__", None)
    while frame is not None:
        if frame.f_code is hook:
            return True
        frame = frame.f_back
    return False
