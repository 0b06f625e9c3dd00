"""What a batch tells its caller while it runs, so that nothing in here prints.

Imports nothing heavy, as whoever only shows it need not load what the work needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from ..report.report import StudyReport
    from ..results.resume import PlannedStudy
    from ..stopwatch import Span
    from ..study.plan import StudyPlan

TileUnit: TypeAlias = Literal["tiles", "percent"]


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """Every study has its plan.

    planned: in order.
    """

    planned: "tuple[PlannedStudy, ...]"


@dataclass(frozen=True, slots=True)
class Tuning:
    """A device that is being opened tries out plans, which it keeps for later starts.

    what: the convolution at hand. share: of the convolutions, how many are done; 1 at the end.
    """

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class DeviceOpened:
    """A device is ready to compute. note: why it was taken, if nobody asked for it."""

    device: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class StudyStarted:
    """A study is about to be read; studies that are kept or refused never start.

    While one study is in the network, the next one is read and the one before is stored.

    planned: what is to be done with it.
    """

    planned: "PlannedStudy"


@dataclass(frozen=True, slots=True)
class TilesDone:
    """So many of a study's tiles are translated; 0 comes once, before the first.

    done, total: tiles. unit: of these; percent where the volume is translated at once. volume: the
    how manieth is at hand of so many volumes, which are translated one by one.
    """

    study: str
    done: int
    total: int
    unit: TileUnit = "tiles"
    volume: int = 1
    volumes: int = 1


@dataclass(frozen=True, slots=True)
class Worked:
    """A stage worked on a study for some time.

    span: from when to when.
    """

    span: "Span"


@dataclass(frozen=True, slots=True)
class StudyDone:
    """A study has its row. trace: the traceback of what made it fail."""

    row: "StudyReport"
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that the owner of the output folder or of the device should know, in a sentence.

    text: that sentence.
    """

    text: str


def unit_of(plan: "StudyPlan") -> TileUnit:
    """In which the progress of a study is told."""
    return "tiles" if plan.inference == "patches" else "percent"


def opening_event(what: str, share: float | None) -> Remark | Tuning:
    """The event for what a device says as it is opened; share: None with a sentence to keep."""
    return Remark(what) if share is None else Tuning(what, share)


Event: TypeAlias = (
    Remark | BatchStarted | Tuning | DeviceOpened | StudyStarted | TilesDone | Worked | StudyDone
)
Listen: TypeAlias = Callable[[Event], None]
