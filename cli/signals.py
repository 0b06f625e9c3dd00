"""Ctrl-C, SIGTERM and a closed terminal as one orderly stop."""

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import typer

from ..pipelines.host.signals import STOP_SIGNALS, interrupter
from .errors import Exit
from .render.terminal import print_line

_STATUS = {"SIGINT": Exit.INTERRUPTED, "SIGTERM": Exit.TERMINATED, "SIGHUP": Exit.HUNG_UP}

AGAIN_SECONDS = 0.05
"""Delay before a stop is raised again if Python dropped it in a finalizer or callback."""

PATIENCE_SECONDS = 5.0
"""Time for cleaning up, after which a further stop signal ends the program immediately."""


class Stop:
    """Handler of stop signals: the first one interrupts, further ones let cleaning up finish.

    status: the exit status of the signal that came; Ctrl-C's until then.
    """

    def __init__(self) -> None:
        self.status = Exit.INTERRUPTED
        self._since: float | None = None
        self._may_interrupt_again = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: raise KeyboardInterrupt, or end the program if it has hung for long."""
        if self._since is None:
            self._since = time.monotonic()
        elif self._may_interrupt_again:
            self._may_interrupt_again = False
        elif time.monotonic() - self._since > PATIENCE_SECONDS:
            os._exit(_STATUS[signal.Signals(number).name])
        else:
            return
        self.status = _STATUS[signal.Signals(number).name]
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt again if a signal arrived but was lost in some library."""
        if self._since is not None:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Ignore all further signals."""
        self._since = self._since or time.monotonic()
        self._may_interrupt_again = False

    @contextmanager
    def again(self) -> Generator[None]:
        """Let one more signal raise KeyboardInterrupt in the block, which handles the first one."""
        self._may_interrupt_again = True
        try:
            yield
        finally:
            self._may_interrupt_again = False


@contextmanager
def handling_stop_signals(handle: Callable[[int, FrameType | None], object]) -> Generator[None]:
    """Call `handle` for each stop signal during the block.

    A signal that the caller of the program ignores, as nohup does, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_signals() -> Generator[Stop]:
    """Raise KeyboardInterrupt in the block on a stop signal; uncaught, it ends the program."""
    stop = Stop()
    with handling_stop_signals(stop.handle):
        try:
            with _none_lost():
                yield stop
        except KeyboardInterrupt as error:
            print_line("Stopped.", sys.stderr)
            raise typer.Exit(stop.status) from error
        finally:
            stop.end()


@contextmanager
def _none_lost() -> Generator[None]:
    """Raise a KeyboardInterrupt again that Python drops.

    It drops whatever is raised in a finalizer or in the callback of a weak reference, and these run
    wherever the last reference goes: a moment later the program is likely to be elsewhere.
    """

    def handle(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            interrupt()
        else:
            hook(dropped)

    hook = sys.unraisablehook
    with interrupter(AGAIN_SECONDS) as interrupt:
        sys.unraisablehook = handle
        try:
            yield
        finally:
            sys.unraisablehook = hook
