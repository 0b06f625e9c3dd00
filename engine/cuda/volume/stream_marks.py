"""When a volume's copies and passes began and ended on the card."""

from contextlib import ExitStack
from time import perf_counter

from ...patch_grid import Phase, Timing
from ..driver import CudaEvent, Stream


class StreamMarks:
    """Events in a stream, by what begins or ends there."""

    def __init__(self, stream: Stream, opened: ExitStack) -> None:
        self._stream = stream
        self._opened = opened
        self._events: dict[str, CudaEvent] = {}

    def put(self, name: str) -> None:
        """Behind what is queued; of the same name, the last one stays."""
        event = self._opened.enter_context(CudaEvent())
        event.record(self._stream)
        self._events[name] = event

    def seconds(self, start: str, stop: str) -> float:
        """Between two that have been reached."""
        return self._events[stop].seconds_since(self._events[start])

    def timings(self) -> list[Timing]:
        """On the host's clock, once all has left. The first and the last pass run beside copies."""
        self._events["left"].wait()
        now = perf_counter()
        phases: tuple[tuple[Phase, str, str], ...] = (
            ("copy in", "arriving", "arrived"),
            ("compute", "computing", "computed"),
            ("copy out", "leaving", "left"),
        )
        return [
            Timing(phase, now - self.seconds(start, "left"), now - self.seconds(stop, "left"))
            for phase, start, stop in phases
        ]
