"""How fast a batch goes, and when it will end."""

import time
from collections.abc import Callable

from .events import BatchStarted, Event, StudyDone, StudyStarted, TilesDone
from .plan import PlannedStudy


class Pace:
    """Judges the time left by input bytes: the one measure of a study known before it is read.

    done, total: studies, of all. tiles: done and total of the current study.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._started = self._study_started = clock()
        self._current = ""
        self._finished = 0
        self.done = self.total = 0
        self.tiles = (0, 0)

    def hear(self, event: Event) -> None:
        """Take note of an event of the batch."""
        match event:
            case BatchStarted(planned=planned):
                self.total = len(planned)
                self._sizes = {
                    str(p.study.name): _size(p) for p in planned if p.action == "translate"
                }
                self._started = self._clock()
            case StudyStarted(planned):
                self._current = str(planned.study.name)
                self._study_started = self._clock()
                self.tiles = (0, 0)
            case TilesDone(done, total):
                if done == 0:
                    self._study_started = self._clock()
                self.tiles = done, total
            case StudyDone(row):
                self.done += 1
                self._finished += self._sizes.get(row.name, 0)
                self.tiles = (0, 0)

    @property
    def tiles_per_second(self) -> float | None:
        """Of the current study, since its first tile began."""
        seconds = self._clock() - self._study_started
        return self.tiles[0] / seconds if self.tiles[0] and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """For all that is still due; None before anything is done."""
        done, total = self.tiles
        reached: float = self._finished
        if total:
            reached += self._sizes.get(self._current, 0) * done / total
        if not reached:
            return None
        seconds = self._clock() - self._started
        return seconds * (sum(self._sizes.values()) / reached - 1)


def _size(planned: PlannedStudy) -> int:
    size = 1
    for file in planned.study.files:
        try:
            size += file.stat().st_size
        except OSError:
            continue
    return size
