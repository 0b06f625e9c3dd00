"""A sign of life on a terminal, while a command works and has nothing to print yet."""

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0
"""Seconds until it appears; what is done sooner needs none."""

SEARCHING = "Looking for studies"


@contextmanager
def spinner(what: str) -> Generator[Callable[[str], None]]:
    """Show on stderr what is done and for how long, until the block ends; yields what renames it.

    Only a terminal is shown anything. The block prints nothing on stdout.
    """
    sign = _Sign(what)
    timer = threading.Timer(PATIENCE, sign.appear)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield sign.rename
    finally:
        timer.cancel()
        sign.vanish()
        if timer.is_alive():
            timer.join()


@contextmanager
def counting(what: str, things: str) -> Generator[Callable[[int, int], None]]:
    """As `spinner`; yields what is told how many of all things are done."""
    with spinner(what) as rename:
        yield lambda done, due: rename(f"{what}, {done} of {due} {things}")


class _Sign:
    """Appears in a thread of its own, at any moment or never."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._changes = threading.Lock()
        self._shown: Progress | None = None
        self._is_over = False

    def rename(self, what: str) -> None:
        with self._changes:
            self._what = what
            if self._shown:
                self._shown.update(self._shown.task_ids[0], description=what)

    def appear(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(file=sys.stderr)
        columns = (
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with self._changes:
            if self._is_over or console.is_dumb_terminal:
                return
            self._shown = Progress(*columns, console=console, transient=True, redirect_stdout=False)
            self._shown.add_task(self._what, total=None)
            self._shown.start()

    def vanish(self) -> None:
        with self._changes:
            self._is_over = True
            if self._shown:
                self._shown.stop()
