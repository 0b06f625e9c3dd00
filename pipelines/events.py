"""Events that a batch reports to its caller while it runs, and its pace.

Imports nothing heavy, as code that only shows events need not load what the work needs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from .report.report import StudyReport
    from .results.resume import PlannedStudy
    from .stopwatch import Span
    from .study.plan import StudyPlan


PatchUnit: TypeAlias = Literal["patches", "percent"]


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """All studies are planned. planned: their plans, in order."""

    planned: "tuple[PlannedStudy, ...]"


@dataclass(frozen=True, slots=True)
class Tuning:
    """A device that is being opened measures tactics, which it keeps for later starts.

    what: the current convolution. share: share of the convolutions that are done; 1 at the end.
    """

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class DeviceOpened:
    """A device is ready to compute. note: why it was chosen, if the user did not choose it."""

    device: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class StudyStarted:
    """A study is about to be read; studies that are kept or refused never start.

    While one study is in the network, the next one is read and the one before is stored.

    planned: planned work on it.
    """

    planned: "PlannedStudy"


@dataclass(frozen=True, slots=True)
class TilesDone:
    """Progress of a study's patches; 0 is reported once, before the first.

    A process of its own per device reports at most ten patches a second, and always the last one.

    study: its name. done, total: patches. unit: their unit; percent for whole-volume inference.
    volume, volumes: number of the current volume, from 1, and of all, which are translated one by
    one.
    """

    study: str
    done: int
    total: int
    unit: PatchUnit = "patches"
    volume: int = 1
    volumes: int = 1


@dataclass(frozen=True, slots=True)
class Worked:
    """A stage worked on a study for some time.

    span: that work.
    """

    span: "Span"


@dataclass(frozen=True, slots=True)
class StudyDone:
    """A study has its row. trace: traceback of the error that made it fail."""

    row: "StudyReport"
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """Remark for the owner of the output folder or of the device, in a sentence.

    text: that sentence.
    """

    text: str


def unit_of(plan: "StudyPlan") -> PatchUnit:
    """Return the unit in which the progress of a study is shown."""
    return "patches" if plan.inference == "patches" else "percent"


def opening_event(what: str, share: float | None) -> Remark | Tuning:
    """Return the event of a message of an opening device; share: None for one to keep."""
    return Remark(what) if share is None else Tuning(what, share)


Event: TypeAlias = (
    Remark | BatchStarted | Tuning | DeviceOpened | StudyStarted | TilesDone | Worked | StudyDone
)
Listen: TypeAlias = Callable[[Event], None]


class Thinning:
    """Selection of the events to send to another process: all but some reports of patches.

    seconds: shortest pause between such reports; the first and the last of a study always pass.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next = clock()

    def takes(self, event: object) -> bool:
        """Return whether to send an event now."""
        if not isinstance(event, TilesDone) or event.done in (0, event.total):
            return True
        if (now := self._clock()) < self._next:
            return False
        self._next = now + self._seconds
        return True


class Pace:
    """Estimates the time left by input bytes, the only measure known before a study is read.

    done, total: finished studies, and all. study: the study whose patches are translated, or that
    is read while there is none. patches: its finished patches, and all. unit: their unit. volume:
    its current volume, and the number of them.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._reached: dict[str, float] = {}
        self._started = self._patches_started = clock()
        self.done = self.total = 0
        self.study = ""
        self.patches = (0, 0)
        self.unit: PatchUnit = "patches"
        self.volume = (1, 1)

    def handle(self, event: Event) -> None:
        """Record an event of the batch."""
        match event:
            case BatchStarted(planned):
                self.total = len(planned)
                self._sizes = {
                    str(p.study.name): _size(p) for p in planned if p.action == "translate"
                }
                self._started = self._clock()
            case StudyStarted(planned):
                if not self._translating:
                    self.study, self.patches = str(planned.study.name), (0, 0)
                    self.volume = (1, 1)
            case TilesDone(study, done, total, unit, volume, volumes):
                if done == 0:
                    self._patches_started = self._clock()
                self.study, self.patches, self.unit = study, (done, total), unit
                self.volume = volume, volumes
                self._reached[study] = done / total
            case StudyDone(row):
                self.done += 1
                self._reached[row.name] = 1.0
            case _:
                pass

    @property
    def _translating(self) -> bool:
        done, total = self.patches
        return done < total

    @property
    def patches_per_second(self) -> float | None:
        """Patches per second of the current study, since its first one began."""
        seconds = self._clock() - self._patches_started
        return self.patches[0] / seconds if self.patches[0] and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds for all pending studies; None before anything is done."""
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
