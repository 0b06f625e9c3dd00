"""Signals, as far as the system knows them."""

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
    if hasattr(signal, name)  # a closed terminal sends Windows' programs none
)
"""By which a user, a service manager or a terminal asks a program to end."""

_AGAIN_SECONDS = 0.05

Interrupter: TypeAlias = Callable[[], None]
"""Has a KeyboardInterrupt raised in the main thread, after the time it was made for."""


def interrupter(seconds: float) -> AbstractContextManager[Interrupter]:
    """One for the block, which only the main thread may enter; nothing comes after the block."""
    return _by_alarm(seconds) if hasattr(signal, "setitimer") else _by_thread(seconds)


@contextmanager
def _by_alarm(seconds: float) -> Generator[Interrupter]:
    """Ends whatever call of the system the main thread waits in."""

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
    """By a Ctrl-C of its own, which whoever hears Ctrl-C does not see; nothing if nobody does."""
    before = signal.getsignal(signal.SIGINT)
    timers: list[threading.Timer] = []
    is_due = False

    def hear(number: int, frame: FrameType | None) -> None:
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
    signal.signal(signal.SIGINT, hear)
    try:
        yield later
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
        is_due = False
        signal.signal(signal.SIGINT, before)


def _is_dropped(frame: FrameType | None) -> bool:
    """Whether Python would drop what is raised there, in its hook for what it has dropped."""
    hook = getattr(sys.unraisablehook, "__code__", None)
    while frame is not None:
        if frame.f_code is hook:
            return True
        frame = frame.f_back
    return False
