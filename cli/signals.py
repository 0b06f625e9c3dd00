"""Ctrl-C, SIGTERM and a closed terminal as one orderly stop."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import typer

from .errors import Exit
from .render.streams import say

_STATUS = {
    signal.SIGINT: Exit.INTERRUPTED,
    signal.SIGTERM: Exit.TERMINATED,
    signal.SIGHUP: Exit.HUNG_UP,
}

AGAIN_SECONDS = 0.05
"""After which a stop is asked for again that came where Python passes nothing on."""


@dataclass(slots=True)
class Stop:
    """The exit status of the signal that came; Ctrl-C's until then."""

    status: Exit = Exit.INTERRUPTED


@contextmanager
def stop_signals() -> Generator[Stop]:
    """Any of them raises KeyboardInterrupt in the block; one that nobody takes ends the program.

    A signal that the caller of the program ignores stays ignored.
    """
    stop = Stop()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        stop.status = _STATUS[signal.Signals(number)]
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _STATUS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        with _none_lost():
            yield stop
    except KeyboardInterrupt as error:
        say("Stopped.", sys.stderr)
        raise typer.Exit(stop.status) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _none_lost() -> Generator[None]:
    """Raise a KeyboardInterrupt again that Python drops.

    It drops whatever is raised in a finalizer or in the callback of a weak reference, and these run
    wherever the last reference goes: a moment later the program is likely to be elsewhere.
    """

    def again(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def hear(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            hook(dropped)

    hook, alarm = sys.unraisablehook, signal.signal(signal.SIGALRM, again)
    sys.unraisablehook = hear
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        signal.signal(signal.SIGALRM, alarm)
