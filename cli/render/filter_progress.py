"""Progress as the lines that 3D Slicer reads from the standard output of its modules."""

import sys

from ...pipelines.events import BatchStarted, Event, Pace, StudyDone, TilesDone
from .terminal import print_line

_STEP = 0.01
"""Least progress that is worth a line."""


class FilterProgress:
    """Listener that prints the share of a batch that is done.

    Everything else is left to the table at the end, as Slicer shows any text on standard error as
    an error.
    """

    def __init__(self) -> None:
        self._pace = Pace()
        self._printed = 0.0

    def __call__(self, event: Event) -> None:
        self._pace.handle(event)
        match event:
            case BatchStarted():
                self._print(0.0)
            case TilesDone(done=done, total=total):
                self._print((self._pace.done + done / total) / max(self._pace.total, 1))
            case StudyDone():
                self._print(self._pace.done / max(self._pace.total, 1))
            case _:
                pass

    def _print(self, share: float) -> None:
        share = min(share, 1.0)
        if share and share < self._printed + _STEP:
            return
        self._printed = share
        print_line(f"<filter-progress>{share:.3f}</filter-progress>", sys.stdout)
