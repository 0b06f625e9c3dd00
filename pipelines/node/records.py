"""Records of the node: studies, the series submitted from them, and pending reports."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from ...io.dicom_network.storage_commitment import Commitment

SeriesState: TypeAlias = Literal["queued", "failed", "sending", "sent", "undelivered"]


@dataclass(frozen=True, slots=True)
class StudyName:
    """Name of a study in the inbox, without its identifiers.

    route: called AE title. name: of its folder, a day and a hash of its UID.
    """

    route: str
    name: str

    def __str__(self) -> str:
        return f"{self.route}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "StudyName":
        """Parse what `str` returned."""
        route, _, name = text.rpartition("/")
        return cls(route, name)

    @property
    def day(self) -> str:
        """Day on which its first object arrived, such as 20261122."""
        return self.name.partition("-")[0]

    @property
    def key(self) -> str:
        """Hash of its UID."""
        return self.name.partition("-")[2]


def output_of(results: Path, route: str, day: str) -> Path:
    """Return the folder of results of a route's studies that began to arrive on a day."""
    return results / route / day


def digest_of(names: Iterable[str]) -> str:
    """Return the hash of a set of file names."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Gap:
    """Known gap in a study; false if there is none.

    refused: number of refused images. broke_off: whether its last transfer did not end in order.
    """

    refused: int = 0
    broke_off: bool = False

    def __bool__(self) -> bool:
        return bool(self.refused or self.broke_off)

    def figures(self, images: int) -> str:
        """Describe the gap. images: number of images that the study has."""
        parts = [f"{_images(images)} of the study received"]
        if self.refused:
            parts.append(f"{_images(self.refused)} not taken")
        if self.broke_off:
            parts.append("the transfer broke off")
        return ", ".join(parts)

    def remark(self, images: int) -> str:
        """Return the note in results on an incomplete source, or "" without a gap."""
        if not self:
            return ""
        verb = "was" if self.refused else "may be"
        return f"the source {verb} incomplete: {self.figures(images)}"


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """Series of a study, or several that are channels of one, submitted as a job.

    label: its name in results. round: number of the study's translation that it belongs to. files:
    hash of its file names. images: number of images. job: identifier in the queue. key: of equal
    work there. state: progress. reason: of a failure or wait. queued, done, begun, sent: when the
    job was queued and had ended, and when sending began and ended, in seconds since 1970; 0 before.
    received: from when to when its objects arrived. others: names of further results of a model
    with several. remark: note on an incomplete source in its result. model: hash of the model file.
    destination: what it was sent to; "" before. rejects: place of the earlier result that this one,
    a rejection note, is about; "" for a result. The last three are "" in records of 0.2.0.
    """

    label: str
    round: int
    files: str
    images: int
    job: str
    key: str
    state: SeriesState = "queued"
    reason: str = ""
    queued: float = 0.0
    done: float = 0.0
    sent: float = 0.0
    received: tuple[float, float] = (0.0, 0.0)
    begun: float = 0.0
    others: tuple[str, ...] = ()
    remark: str = ""
    model: str = ""
    destination: str = ""
    rejects: str = ""

    @property
    def place(self) -> str:
        """Path of its result, relative to the study's results."""
        return f"{self.round}/{self.label}"

    @property
    def places(self) -> tuple[str, ...]:
        """Paths of all its results, `place` first."""
        return self.place, *(f"{self.round}/{other}" for other in self.others)


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """Study that was examined.

    study: route and name. objects: hash of its file names. images: number of images. arrived: when
    it had first arrived. looked: when it was examined. rounds: number of translations. series:
    those submitted as jobs, older rounds first. left_out: why other parts became no job. emptied:
    when it was removed; 0 before. refused, broke_off: its `Gap`. held, until: start and end of its
    hold; 0 without one.
    """

    study: str
    objects: str
    images: int
    arrived: float
    looked: float
    rounds: int
    series: tuple[SeriesRecord, ...] = ()
    left_out: tuple[str, ...] = ()
    emptied: float = 0.0
    refused: int = 0
    broke_off: bool = False
    held: float = 0.0
    until: float = 0.0

    @property
    def last(self) -> float:
        """Time of its last record, in seconds since 1970."""
        times = ((one.queued, one.done, one.begun, one.sent) for one in self.series)
        return max(self.looked, self.emptied, self.held, *map(max, times))

    @property
    def is_pending(self) -> bool:
        """Whether results of it are still to be written."""
        return bool(self.held) or any(one.state == "queued" for one in self.series)

    @property
    def gap(self) -> Gap:
        """Known gap."""
        return Gap(self.refused, self.broke_off)

    def with_series(self, changed: SeriesRecord) -> "StudyRecord":
        """Return a copy in which a series replaces its earlier state."""
        return replace(
            self,
            series=tuple(changed if one.place == changed.place else one for one in self.series),
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """Attempt to send an object that its destination has not confirmed.

    tries: how often it was sent. is_open: whether neither a confirmation nor a refusal came once,
    so that the destination may have it.
    """

    tries: int = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class ReportKey:
    """Identity of a storage commitment report; a repeated request has the same.

    route: called AE title. title: calling AE title of the requester. transaction: UID that the
    requester chose.
    """

    route: str
    title: str
    transaction: str


@dataclass(frozen=True, slots=True)
class PendingReport:
    """Storage commitment report that its requester has not accepted yet.

    route, title: as of `ReportKey`. moment: time of the request, in seconds since 1970. commitment:
    the request.
    """

    route: str
    title: str
    moment: float
    commitment: Commitment

    @property
    def key(self) -> ReportKey:
        """Identity of the report."""
        return ReportKey(self.route, self.title, self.commitment.transaction)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps of all studies, by study name.

    refused: hashes of refused images. open: studies with a transfer that has not ended in order.
    """

    refused: dict[str, set[str]]
    open: set[str]
