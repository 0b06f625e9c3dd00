"""Ctrl-C, SIGTERM and a closed terminal as one orderly stop."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import typer

from .errors import Exit
from .streams import say

_STATUS = {
    signal.SIGINT: Exit.INTERRUPTED,
    signal.SIGTERM: Exit.TERMINATED,
    signal.SIGHUP: Exit.HUNG_UP,
}


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
        yield stop
    except KeyboardInterrupt as error:
        say("Stopped.", sys.stderr)
        raise typer.Exit(stop.status) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
