"""When a batch worked on what, and how well that kept its machine busy."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..report.report import StudyReport, Use
from ..stopwatch import Span, Stage
from .events import DeviceOpened, Event, Tuning, Worked

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


class Opening:
    """Hears how long it takes until a device is ready. seconds: None while it is not.

    The search for plans, which later starts will be spared, is left out.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._tuned_since: float | None = None
        self.seconds: float | None = None

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case Tuning(_, share):
                now = self._clock()
                if self._tuned_since is not None:
                    self._started += now - self._tuned_since
                self._tuned_since = now if share < 1 else None
            case DeviceOpened() if self.seconds is None:
                self.seconds = self._clock() - self._started
            case _:
                pass
