"""How well a batch keeps its machine busy."""

from .events import DeviceOpened, Event, Worked
from .report import Use
from .stopwatch import Stage

COMPUTING: Stage = "infer"


class Timeline:
    """Hears a batch and sums up what its seconds are used for. devices: in words."""

    def __init__(self) -> None:
        self.devices: list[str] = []
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
            case _:
                pass

    def use(self) -> Use:
        """The sums so far."""
        wall = self._last - self._first
        return Use(wall, self._busy, self._computing, len(self.devices))
