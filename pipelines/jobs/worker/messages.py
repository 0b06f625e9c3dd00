"""How a worker is told to work, and what it tells; imports nothing heavy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ....engine.options import NO_LIMITS, CudaLimits
from ...events import Remark
from ...run.blame import TRIES
from ...run.messages import StopWork
from ..queue.job import OpenJobs

if TYPE_CHECKING:
    from ...report.report import StudyReport

WorkerEnd: TypeAlias = Literal["stopped", "empty", "restart"]
"""Why a worker ended: it was told to, there is nothing left, or a failure may have harmed it."""


@dataclass(frozen=True, slots=True)
class YieldLimits:
    """How much of a GPU others may use before a worker starts no job.

    memory: bytes. load: percent of the time in which their kernels run.
    """

    memory: int
    load: int


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker goes about it.

    until_empty: end when no job may start and none runs elsewhere, instead of waiting for more.
    waits: and not before those have run that may start later. only: the batch to do jobs of, ""
    for all. tries: workers that may die of a job before it is given up. yield_limits: how much of
    the GPU other programs may use; None takes no notice of them. limits: of what this program may
    take there. sharing: workers that were started together, among which the machine is divided.
    """

    until_empty: bool = False
    waits: bool = False
    only: str = ""
    tries: int = TRIES
    yield_limits: YieldLimits | None = None
    limits: CudaLimits = NO_LIMITS
    sharing: int = 1


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job was taken. study: place of its result; "" if that cannot be read."""

    job: str
    study: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job is over. study: place of its result. row: of the study, None if it was given up."""

    job: str
    study: str
    row: "StudyReport | None"


@dataclass(frozen=True, slots=True)
class JobPutOff:
    """A job waits for something to pass, and the queued ones of its batch with it.

    study: place of its result. why: one sentence; "" if the same was told of its batch already.
    """

    job: str
    study: str
    why: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """No job starts for now. reason: in words, None if there simply is none.

    left: jobs that may start later, and those of other workers. is_paused: whether all are held.
    """

    reason: str | None
    left: tuple[OpenJobs, ...] = ()
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class TuningBegan:
    """The device tries plans, which may take as long as its worker was allowed."""


@dataclass(frozen=True, slots=True)
class TuningEnded:
    """So many seconds later a plan is known for each of so many convolutions, and kept.

    plans: convolutions with a plan.
    """

    seconds: float
    plans: int


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """No job is left that may start now, and the worker ends. left, is_paused: as of `Waiting`."""

    left: tuple[OpenJobs, ...]
    is_paused: bool


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker ends before its time. why: one sentence."""

    why: str


WorkerEvent: TypeAlias = (
    Remark
    | JobStarted
    | JobEnded
    | JobPutOff
    | Waiting
    | TuningBegan
    | TuningEnded
    | NothingLeft
    | WorkerFailed
)


@dataclass(frozen=True, slots=True)
class Begin:
    """To a worker, which may have been started in advance: the device that it works on."""

    device: str


@dataclass(frozen=True, slots=True)
class FinishJobs:
    """To a worker: take nothing more, and end after what is at hand."""


QueueOrder: TypeAlias = Begin | FinishJobs | StopWork
Tell: TypeAlias = Callable[[WorkerEvent], None]
