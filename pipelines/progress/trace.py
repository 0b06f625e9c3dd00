"""A batch as a picture of all its stages and threads, in Chrome's trace format."""

import json
from pathlib import Path
from typing import Any

from ...io.files.documents import write_document
from ..stopwatch import Span
from .events import Event, Worked


class Trace:
    """Hears a batch and keeps every span of work."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Worked):
            self._spans.append(event.span)

    def write(self, path: Path) -> None:
        """Store the spans, for chrome://tracing or ui.perfetto.dev; raises WriteError.

        One row a track; times count from the first span, in microseconds.
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
