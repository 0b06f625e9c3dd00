"""Timeline of a batch: the use of its time, and a trace in Chrome's format."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..io.files.documents import write_document
from .events import DeviceOpened, Event, Tuning, Worked
from .report.report import StudyReport, Use
from .stopwatch import Span, Stage

COMPUTING: Stage = "infer"


class Timeline:
    """Timeline that sums up the use of a batch's seconds.

    start: start of the batch, on the clock of `time.perf_counter`. devices: devices in words.
    """

    def __init__(self, start: float) -> None:
        self.devices: list[str] = []
        self._start = start
        self._when: dict[str, dict[Stage, tuple[float, float]]] = {}
        self._first = self._last = self._busy = self._computing = 0.0

    def handle(self, event: Event) -> None:
        """Record an event."""
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
        """Return the rows with the times of their stages."""
        return tuple(replace(row, when=self._when.get(row.name, {})) for row in rows)

    def _note(self, span: Span) -> None:
        stages = self._when.setdefault(span.study, {})
        start, stop = span.start - self._start, span.stop - self._start
        first, last = stages.get(span.stage, (start, stop))
        stages[span.stage] = min(first, start), max(last, stop)

    def use(self) -> Use:
        """Return the sums so far."""
        wall = self._last - self._first
        return Use(wall, self._busy, self._computing, len(self.devices))


class Opening:
    """Timer of the opening of a device. seconds: None while it is not ready.

    The search for tactics is excluded, as later starts reuse its results.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._tuned_since: float | None = None
        self.seconds: float | None = None

    def handle(self, event: Event) -> None:
        """Record an event."""
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


class Trace:
    """Trace of all spans of work of a batch."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def handle(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, Worked):
            self._spans.append(event.span)

    def write(self, path: Path) -> None:
        """Store the spans, for chrome://tracing or ui.perfetto.dev; raises WriteError.

        One row per track; times count from the first span, in microseconds.
        """
        spans = self._spans
        tracks = {track: row for row, track in enumerate(dict.fromkeys(s.track for s in spans), 1)}
        start = min((span.start for span in spans), default=0.0)
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": track}}
            for track, row in tracks.items()
        ]
        events += [
            {
                "name": span.stage,
                "cat": "stage",
                "ph": "X",
                "ts": (span.start - start) * 1e6,
                "dur": span.seconds * 1e6,
                "pid": 1,
                "tid": tracks[span.track],
                "args": {"study": span.study},
            }
            for span in spans
        ]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
        write_document(path, f"{text}\n".encode())
