"""What a batch tells its caller while it runs, so that nothing in here prints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .plan import PlannedStudy
from .report import StudyReport


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """The device is open and every study has its plan. note: why this device was taken."""

    device: str
    note: str | None
    planned: tuple[PlannedStudy, ...]


@dataclass(frozen=True, slots=True)
class StudyStarted:
    """Work on a study begins; studies that are kept or refused never start."""

    planned: PlannedStudy


@dataclass(frozen=True, slots=True)
class TilesDone:
    """So many of the current study's tiles are translated; 0 comes once, before the first."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StudyDone:
    """A study has its row. trace: the traceback of what made it fail."""

    row: StudyReport
    trace: str | None = None


Event: TypeAlias = BatchStarted | StudyStarted | TilesDone | StudyDone
Listen: TypeAlias = Callable[[Event], None]
