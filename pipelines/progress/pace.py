"""How fast a batch goes, and when it will end."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .events import BatchStarted, Event, StudyDone, StudyStarted, TilesDone, TileUnit

if TYPE_CHECKING:
    from ..results.resume import PlannedStudy


class Pace:
    """Judges the time left by input bytes: the one measure of a study known before it is read.

    done, total: studies, of all. study: the one whose tiles are translated, or that is read while
    there is none. tiles: done and total of it. unit: of these. volume: the one of it at hand, of
    how many.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._reached: dict[str, float] = {}
        self._started = self._tiles_started = clock()
        self.done = self.total = 0
        self.study = ""
        self.tiles = (0, 0)
        self.unit: TileUnit = "tiles"
        self.volume = (1, 1)

    def hear(self, event: Event) -> None:
        """Take note of an event of the batch."""
        match event:
            case BatchStarted(planned):
                self.total = len(planned)
                self._sizes = {
                    str(p.study.name): _size(p) for p in planned if p.action == "translate"
                }
                self._started = self._clock()
            case StudyStarted(planned):
                if not self._translating:
                    self.study, self.tiles = str(planned.study.name), (0, 0)
                    self.volume = (1, 1)
            case TilesDone(study, done, total, unit, volume, volumes):
                if done == 0:
                    self._tiles_started = self._clock()
                self.study, self.tiles, self.unit = study, (done, total), unit
                self.volume = volume, volumes
                self._reached[study] = done / total
            case StudyDone(row):
                self.done += 1
                self._reached[row.name] = 1.0
            case _:
                pass

    @property
    def _translating(self) -> bool:
        done, total = self.tiles
        return done < total

    @property
    def tiles_per_second(self) -> float | None:
        """Of the current study, since its first tile began."""
        seconds = self._clock() - self._tiles_started
        return self.tiles[0] / seconds if self.tiles[0] and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """For all that is still due; None before anything is done."""
        reached = sum(self._sizes.get(name, 0) * part for name, part in self._reached.items())
        if not reached:
            return None
        seconds = self._clock() - self._started
        return seconds * (sum(self._sizes.values()) / reached - 1)


def _size(planned: "PlannedStudy") -> int:
    size = 1
    for file in planned.study.files:
        try:
            size += file.stat().st_size
        except OSError:
            continue
    return size
