"""What a node tells while it runs; nothing in it names a patient."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Received:
    """An association ended. route: its called AE title. caller: who called.

    objects: new ones. known: those that were there already. refusals: why images were not taken,
    with how many. bytes: of all that were taken. seconds: that it lasted. reason: why it broke off;
    "" after an orderly release.
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
    """Connections that came to no association.

    address: from which. titles: calling and called AE title of the last one, where they are the
    reason. reason: why not. count: since the last time.
    """

    address: str
    titles: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A series became a job.

    series: study, round and label. job: in the queue. images: that it has. before: that it had when
    it was translated before, or 0. remark: that its source is incomplete, in words; mostly empty.
    """

    series: str
    job: str
    images: int
    before: int
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A study that waits for what it lacks.

    study: its name. gap: what that is, in words. until: when it is translated without, in seconds
    since 1970.
    """

    study: str
    gap: str
    until: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A study of which nothing, or not all, becomes a job. reason: why not. study: its name."""

    study: str
    reason: str


@dataclass(frozen=True, slots=True)
class SeriesTranslated:
    """A job ended, and its result is to be sent. series: as in `Queued`."""

    series: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A job ended without a result. series: as in `Queued`. reason: why."""

    series: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """All objects of a result are confirmed.

    series: as in `Queued`. destination: who has it. objects: how many. seconds: that it took.
    """

    series: str
    destination: str
    objects: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NotSent:
    """A destination, or one result, has to wait. what: a destination or a series.

    reason: why. again: seconds until the next try.
    """

    what: str
    reason: str
    again: float


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A result could not be sent for as long as its route says. series, reason: as in `Failed`."""

    series: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A result that was given up is to be sent after all. series: as in `Queued`."""

    series: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A peer knows which of the objects that it asked about are safe.

    route: its called AE title. peer: who asked. safe, asked: how many objects.
    """

    route: str
    peer: str
    safe: int
    asked: int


@dataclass(frozen=True, slots=True)
class NotReported:
    """A peer will not hear of the objects that it asked about. route, peer: as in `Reported`.

    reason: why not.
    """

    route: str
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Emptied:
    """A study was removed from the inbox, with its results. study: its name."""

    study: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that passes, or that somebody must see to. reason: what."""

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
    | GaveUp
    | Resumed
    | Reported
    | NotReported
    | Emptied
    | Trouble
)
