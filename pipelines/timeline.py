"""When a batch worked on what, and how well that kept its machine busy."""

from collections.abc import Iterable
from dataclasses import replace

from .events import DeviceOpened, Event, Worked
from .report import StudyReport, Use
from .stopwatch import Span, Stage

COMPUTING: Stage = "infer"


class Timeline:
    """Hears a batch and sums up what its seconds are used for.

    start: of the batch, on the clock of `time.perf_counter`. devices: in words.
    """

    def __init__(self, start: float) -> None:
        self.devices: list[str] = []
        self._start = start
        self._when: dict[str, dict[Stage, tuple[float, float]]] = {}
        self._first = self._last = self._busy = self._computing = 0.0

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case DeviceOpened(device):
                self.devices.append(device)
            case Worked(span):
                self._first = min(self._first or span.start, span.start)
                self._last = max(self._last, span.stop)
                self._busy += span.seconds
                self._computing += span.seconds * (span.stage == COMPUTING)
                self._note(span)
            case _:
                pass

    def dated(self, rows: Iterable[StudyReport]) -> tuple[StudyReport, ...]:
        """The rows with when each was worked on."""
        return tuple(replace(row, when=self._when.get(row.name, {})) for row in rows)

    def _note(self, span: Span) -> None:
        stages = self._when.setdefault(span.study, {})
        start, stop = span.start - self._start, span.stop - self._start
        first, last = stages.get(span.stage, (start, stop))
        stages[span.stage] = min(first, start), max(last, stop)

    def use(self) -> Use:
        """The sums so far."""
        wall = self._last - self._first
        return Use(wall, self._busy, self._computing, len(self.devices))
