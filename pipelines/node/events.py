"""What a node tells while it runs; nothing in it names a patient."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Received:
    """An association ended. route: its called AE title. caller: who called.

    objects: new ones. known: those that were there already. refused: those that were not taken.
    reason: why it broke off; "" after an orderly release.
    """

    route: str
    caller: str
    objects: int
    known: int
    refused: int
    bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Connections from an address that came to no association. count: since the last time."""

    address: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A series became a job. before: images that it had when it was translated before, or 0."""

    series: str
    job: str
    images: int
    before: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A study of which nothing, or not all, becomes a job."""

    study: str
    reason: str


@dataclass(frozen=True, slots=True)
class Translated:
    """A job ended, and its result is to be sent."""

    series: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A job ended without a result."""

    series: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """All objects of a result are confirmed."""

    series: str
    destination: str
    objects: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NotSent:
    """A destination, or one result, has to wait. what: a destination or a series.

    again: seconds until the next try.
    """

    what: str
    reason: str
    again: float


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A result could not be sent for as long as its route says."""

    series: str
    reason: str


@dataclass(frozen=True, slots=True)
class Emptied:
    """A study was removed from the inbox, with its results."""

    study: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that passes, or that somebody must see to."""

    reason: str


NodeEvent: TypeAlias = (
    Received
    | TurnedAway
    | Queued
    | LeftOut
    | Translated
    | Failed
    | Sent
    | NotSent
    | GaveUp
    | Emptied
    | Trouble
)
