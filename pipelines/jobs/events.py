"""Settings of a worker of the queue, and its events; imports nothing heavy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...engine.options import NO_LIMITS, CudaLimits
from ..events import Remark, Tuning
from ..retries import TRIES
from ..run.messages import Ended
from .queue.job import OpenJobs

if TYPE_CHECKING:
    from ..report.report import StudyReport

WorkerEnd: TypeAlias = Literal["stopped", "empty", "restart"]
"""Reason why a worker ended: it was stopped, no job is left, or a failure may have harmed it."""


@dataclass(frozen=True, slots=True)
class YieldLimits:
    """Use of a GPU by other programs up to which a worker starts jobs.

    memory: bytes. load: percent of the time in which their kernels run.
    """

    memory: int
    load: int


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker.

    until_empty: end when no job may start and none runs elsewhere, instead of waiting for more.
    waits: also wait for jobs scheduled for later. only: batch to take jobs from, "" for all.
    tries: worker crashes after which a job is dead-lettered. yield_limits: use of the GPU by other
    programs up to which jobs start; None ignores it. limits: limits on this program's use of a GPU.
    sharing: number of workers that were started together, among which the machine is divided.
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
    """A job was claimed. job: its name. study: path of its result; "" if that cannot be read."""

    job: str
    study: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job ended. job: its name. study: path of its result. row: row of the study, None if it was
    dead-lettered.
    """

    job: str
    study: str
    row: "StudyReport | None"


@dataclass(frozen=True, slots=True)
class JobDeferred:
    """A job was deferred, and the queued ones of its batch with it.

    job: its name. study: path of its result. why: reason in one sentence; "" if it was already
    reported for its batch.
    """

    job: str
    study: str
    why: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """No job starts for now. reason: in words, None if the queue has no job.

    left: jobs that may start later, and those of other workers. is_paused: whether work is paused.
    """

    reason: str | None
    left: tuple[OpenJobs, ...] = ()
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """No job is left that may start now, and the worker ends. left, is_paused: as in `Waiting`."""

    left: tuple[OpenJobs, ...]
    is_paused: bool


WorkerEvent: TypeAlias = (
    Remark | Tuning | JobStarted | JobEnded | JobDeferred | Waiting | NothingLeft | Ended
)
OnEvent: TypeAlias = Callable[[WorkerEvent], None]
