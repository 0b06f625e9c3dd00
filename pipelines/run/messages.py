"""Messages between a supervisor and its worker processes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ..events import Event
    from ..results.manifest import ManifestEntry
    from ..results.resume import PlannedStudy


@dataclass(frozen=True, slots=True)
class Begin:
    """Order to a prewarmed worker of the queue. device: the device that it uses."""

    device: str


@dataclass(frozen=True, slots=True)
class FinishJobs:
    """Order to a worker of the queue: claim no more jobs, and end after the claimed ones."""


@dataclass(frozen=True, slots=True)
class JobAssigned:
    """Order to a prewarmed worker of a batch: its job, without the model's weights, which it has
    read itself.

    worker: pickled job. sha256: hash of the model's file.
    """

    worker: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class StopWork:
    """Order to a worker: end at the next patch, but store what the network has finished."""


@dataclass(frozen=True, slots=True)
class StopStoring:
    """Order to a worker: store nothing more."""


@dataclass(frozen=True, slots=True)
class StudyRequested:
    """Message to the supervisor: the worker has room to read a study."""


@dataclass(frozen=True, slots=True)
class StudyAssigned:
    """Message to a worker: its next study.

    planned: the study, or None if there are no more.
    """

    planned: "PlannedStudy | None"


@dataclass(frozen=True, slots=True)
class Happened:
    """Message to the supervisor: events, in their order."""

    events: "tuple[Event, ...]"


@dataclass(frozen=True, slots=True)
class ResultMade:
    """Message to the supervisor: an entry for the manifest, which only the supervisor writes."""

    entry: "ManifestEntry"


@dataclass(frozen=True, slots=True)
class ResultRecorded:
    """Message to a worker: the entry is on disk, unless there was an error."""

    error: OSError | None


@dataclass(frozen=True, slots=True)
class Ended:
    """Last message to the supervisor. trouble: one sentence if the worker ends prematurely."""

    trouble: str | None = None


BatchOrder: TypeAlias = StudyAssigned | ResultRecorded | StopWork | StopStoring | JobAssigned
QueueOrder: TypeAlias = Begin | FinishJobs | StopWork
BatchNews: TypeAlias = Happened | StudyRequested | ResultMade | Ended
