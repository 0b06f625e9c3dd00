"""What the queue tells about its jobs; imports nothing heavy, for the command line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

JobState: TypeAlias = Literal[
    "waiting", "queued", "running", "done", "failed", "given up", "cancelled"
]
STATES: tuple[JobState, ...] = get_args(JobState)
OPEN: tuple[JobState, ...] = ("waiting", "queued", "running")
ENDED_BADLY: tuple[JobState, ...] = ("failed", "given up", "cancelled")

Passage: TypeAlias = Literal["receive", "send"]
PASSAGES: tuple[Passage, ...] = get_args(Passage)
"""What a node does before a worker, and after it."""
Interval: TypeAlias = tuple[float, float]
"""Start and end, in seconds since 1970."""

Priority: TypeAlias = Literal["urgent", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)


@dataclass(frozen=True, slots=True)
class SchedulingClass:
    """Jobs of one priority that may start in one window of the day; "" is any time."""

    priority: Priority
    window: str = ""

    def __str__(self) -> str:
        return f"{self.priority} {self.window}".rstrip()

    @classmethod
    def parse(cls, text: str) -> "SchedulingClass":
        """The class of a name that `str` made; one of another kind counts as normal."""
        word, _, window = text.partition(" ")
        known: dict[str, Priority] = {priority: priority for priority in PRIORITIES}
        return cls(known.get(word, "normal"), window)


@dataclass(frozen=True, slots=True)
class BatchCount:
    """One batch: how many jobs are in which state. submitted: seconds since 1970.

    batch: its number. name: that the user gave it. jobs: by state.
    """

    batch: str
    name: str
    submitted: float
    jobs: Mapping[JobState, int]


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """Jobs of one kind that have not ended. count: how many. state: which they are in.

    window: of the day in which they may start; "" is any time. until: before which none starts, in
    seconds since 1970; None if they do not wait.
    """

    count: int
    state: JobState
    window: str = ""
    until: float | None = None


NOT_RECORDED = "not recorded"
"""Of jobs that were submitted before it was: by what it is known how a model computes."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as the queue knows it; times are seconds since 1970.

    job: `<batch>/<number>`. tries: as of a `Claim`. worker: the last one that took it. result: what
    the worker recorded, as `study_row.to_json` makes it; empty until it ended. state: where it
    stands. scheduling: its class. submitted, started, ended: None before. not_before: None for any
    time. payload: the job as JSON. established: by what it is known how its model computes.
    passages: what a node did besides the worker, from when to when. put_off: why it had to wait the
    last time that a worker took it; "" if it had not.
    """

    job: str
    state: JobState
    scheduling: SchedulingClass
    tries: int
    worker: str | None
    submitted: float
    not_before: float | None
    started: float | None
    ended: float | None
    payload: str
    result: Mapping[str, Any] = field(default_factory=dict[str, Any])
    established: str = NOT_RECORDED
    passages: Mapping[Passage, Interval] = field(default_factory=dict[Passage, Interval])
    put_off: str = ""

    @property
    def number(self) -> str:
        """Which one of its batch."""
        return self.job.partition("/")[2]

    @property
    def study(self) -> str:
        """Place of the result below the output folder."""
        return str(self.asked.get("study", ""))

    @property
    def asked(self) -> Mapping[str, Any]:
        """The job's fields, as far as they can be read; for showing only."""
        return json_object(self.payload)

    @property
    def seconds(self) -> float:
        """Wall time of the translation; 0 until it ended."""
        found = self.row.get("seconds")
        return float(found) if isinstance(found, int | float) else 0.0

    @property
    def was_up_to_date(self) -> bool:
        """Whether nothing had to be done."""
        return self.row.get("status") == "up to date"

    @property
    def row(self) -> Mapping[str, Any]:
        """The study's row as recorded; empty until the job ended, or if it cannot be read."""
        found: Any = self.result.get("row")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    @property
    def reason(self) -> str | None:
        """Why there is no result, or none yet, in one sentence."""
        if self.state == "waiting":
            return self.put_off or None
        if self.state == "given up":
            return f"{self.tries - 1} workers died of it; see their logs, then 'jobs retry'"
        if self.state != "failed":
            return None
        failure: Any = self.row.get("failure")
        if not isinstance(failure, dict) or not {"kind", "reason"} <= failure.keys():
            return "the queue's record of it cannot be read"
        return f"{failure['kind']}: {failure['reason']}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a worker took.

    token: what makes the worker its owner, until another takes it over. tries: this one, and those
    that ended with the worker's death. alone: whether it may have been the cause of such a death.
    job: `<batch>/<number>`. payload: the job as JSON. scheduling: its class.
    """

    job: str
    token: str
    tries: int
    payload: str
    scheduling: SchedulingClass
    alone: bool

    @property
    def batch(self) -> str:
        """The batch of the job."""
        return self.job.partition("/")[0]

    @property
    def study(self) -> str:
        """Place of the result below the output folder; "" if that cannot be read."""
        return str(json_object(self.payload).get("study", ""))


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission. known: jobs for equal work that were open already.

    batch: its number. added: new jobs. jobs: `<batch>/<number>` of all, by their work's key.
    """

    batch: str
    added: int
    known: int
    jobs: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a retry. known: jobs left as they are, for equal work is open already.

    again: jobs that are queued again.
    """

    again: int
    known: int


def json_object(text: Any) -> dict[str, Any]:
    """The object that a text holds in JSON; an empty one if it holds none, as in a damaged row."""
    try:
        found: Any = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
