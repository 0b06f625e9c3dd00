"""Events that a node reports while it runs; they contain no patient identifiers."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Received:
    """End of an association that brought objects.

    route: called AE title. caller: calling AE title. objects: number of new objects. known: number
    of objects that were stored before. refusals: reasons of refused images, with their numbers.
    bytes: size of all objects taken. seconds: duration. reason: why it broke off; "" after an
    orderly release.
    """

    route: str
    caller: str
    objects: int
    known: int
    refusals: tuple[tuple[str, int], ...]
    bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Rejected connections.

    address: of the peer. titles: calling and called AE title of the last one, if they are the
    reason. reason: why they were rejected. count: number since the last report.
    """

    address: str
    titles: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Queued:
    """Submission of a series as a job.

    series: study, round and label. job: its identifier in the queue. images: number of images.
    before: number of images when it was last translated, or 0. remark: note on an incomplete
    source, usually empty.
    """

    series: str
    job: str
    images: int
    before: int
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """Hold of an incomplete study.

    study: its name. gap: description of what is missing. until: end of the hold, in seconds since
    1970.
    """

    study: str
    gap: str
    until: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Part of a study, or all of it, that becomes no job. study: its name. reason: why not."""

    study: str
    reason: str


@dataclass(frozen=True, slots=True)
class SeriesTranslated:
    """End of a job whose result will be sent.

    series: as in `Queued`. suspicion: note on a suspicious result; "" for others.
    """

    series: str
    suspicion: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """End of a job without a result. series: as in `Queued`. reason: why."""

    series: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """Confirmation of all objects of a result.

    series: as in `Queued`. destination: the receiver. objects: number of objects. seconds: duration
    of sending. remark: warnings of the destination, usually empty.
    """

    series: str
    destination: str
    objects: int
    seconds: float
    remark: str = ""


@dataclass(frozen=True, slots=True)
class NotSent:
    """Failed try to send. what: a destination or a series. reason: why it failed.

    again: seconds until the next try.
    """

    what: str
    reason: str
    again: float


@dataclass(frozen=True, slots=True)
class CommitmentRequested:
    """Request for storage commitment that a destination accepted.

    series, destination, objects: as in `Sent`. earlier: number of requests without a report before.
    """

    series: str
    destination: str
    objects: int
    earlier: int


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """Report of a destination that it lacks objects, which are sent again.

    series: as in `Queued`. reason: which objects, and why.
    """

    series: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReportRefused:
    """Storage commitment report of a peer that counts for nothing.

    route: called AE title. peer: calling AE title. reason: why it was refused.
    """

    route: str
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class SendingAbandoned:
    """Result that could not be sent within its route's `retry`. series, reason: as in `Failed`."""

    series: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """Result whose sending was given up and resumes. series: as in `Queued`."""

    series: str


@dataclass(frozen=True, slots=True)
class Reported:
    """Storage commitment report that was delivered.

    route: called AE title. peer: the requester. safe, asked: number of objects.
    """

    route: str
    peer: str
    safe: int
    asked: int


@dataclass(frozen=True, slots=True)
class NotReported:
    """Storage commitment report that was given up. route, peer: as in `Reported`. reason: why."""

    route: str
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Emptied:
    """Removal of a study and its results. study: its name."""

    study: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Problem that may resolve itself or need attention. reason: description."""

    reason: str


NodeEvent: TypeAlias = (
    Received
    | TurnedAway
    | Queued
    | Held
    | LeftOut
    | SeriesTranslated
    | Failed
    | Sent
    | NotSent
    | CommitmentRequested
    | NotCommitted
    | ReportRefused
    | SendingAbandoned
    | Resumed
    | Reported
    | NotReported
    | Emptied
    | Trouble
)
