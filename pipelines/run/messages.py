"""What a supervisor and its worker processes say to each other over a shared batch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ..events import Event
    from ..results.manifest import ManifestEntry
    from ..results.resume import PlannedStudy


@dataclass(frozen=True, slots=True)
class StopWork:
    """To a worker: end at the next tile, but store what the network has done with."""


@dataclass(frozen=True, slots=True)
class StopStoring:
    """To a worker: store nothing more."""


@dataclass(frozen=True, slots=True)
class StudyWanted:
    """To the supervisor: there is room to read a study."""


@dataclass(frozen=True, slots=True)
class StudyGiven:
    """To a worker: a study, or None if there are no more.

    planned: that study.
    """

    planned: "PlannedStudy | None"


@dataclass(frozen=True, slots=True)
class ResultMade:
    """To the supervisor: an entry for the manifest, which only it writes to."""

    entry: "ManifestEntry"


@dataclass(frozen=True, slots=True)
class ResultRecorded:
    """To a worker: the entry is on disk, unless there was an error."""

    error: OSError | None


@dataclass(frozen=True, slots=True)
class Ended:
    """To the supervisor, as the last: trouble is one sentence if that is before its time."""

    trouble: str | None = None


BatchOrder: TypeAlias = StudyGiven | ResultRecorded | StopWork | StopStoring
BatchNews: TypeAlias = "Event | StudyWanted | ResultMade | Ended"
