"""A job: its record for workers, and what the queue records and reports about it."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self, TypeAlias, cast, get_args

from ....engine.decoding import FieldError, decode, decode_known, encode_stated, parse
from ....engine.model.calibration import ResultReference
from ...errors import QueueError, SettingsError
from ...settings import TranslateOptions, omitted_at_default
from .schedule import SchedulingClass

JobState: TypeAlias = Literal[
    "waiting", "queued", "running", "done", "failed", "given up", "cancelled"
]
STATES: tuple[JobState, ...] = get_args(JobState)
OPEN: tuple[JobState, ...] = ("waiting", "queued", "running")
ENDED_BADLY: tuple[JobState, ...] = ("failed", "given up", "cancelled")

Transfer: TypeAlias = Literal["receive", "send"]
TRANSFERS: tuple[Transfer, ...] = get_args(Transfer)
"""Steps of a node, before and after the worker."""
Interval: TypeAlias = tuple[float, float]
"""Start and end, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class JobPaths:
    """Files of a job, for display; "" if they cannot be read.

    model: path of the model. inputs: folder of the scans, without the part that the result's path
    repeats. output: folder of the results.
    """

    model: str = ""
    inputs: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class BatchCount:
    """Number of jobs of a batch by state.

    batch: number of the batch. name: as given by the user. submitted: seconds since 1970. jobs:
    counts by state. work: files of its first job.
    """

    batch: str
    name: str
    submitted: float
    jobs: Mapping[JobState, int]
    work: JobPaths = JobPaths()


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """Number of open jobs of one state and scheduling class.

    count: number of jobs. state: their state. window: window of the day in which they may start; ""
    is any time. until: earliest start, in seconds since 1970; None if they do not wait for a time.
    """

    count: int
    state: JobState
    window: str = ""
    until: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether they wait until a user gives them a time."""
        return self.state == "waiting" and self.until is None


NOT_RECORDED = "not recorded"
"""Verification of the model's reading, for jobs that were submitted before it was recorded."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in the queue; times are seconds since 1970.

    job: `<batch>/<number>`. state: waiting, running or ended. scheduling: priority and time window.
    tries: as in `Claim`. worker: the last one that claimed it. submitted, started, ended: None
    before. not_before: None for any time. payload: the job as JSON. result:
    record of the worker, in the form of `study_row.to_json`; empty until the job ended.
    established: how the model's reading was verified. reference: results of the model's
    reference set, if it was calibrated. transfers: intervals in which a node received
    the files and sent the result. deferred: why it was last deferred; "" if it was not. name: of
    its batch, as given by the user. route: AE title at which a node received its study; "" for
    others.
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
    reference: ResultReference | None = None
    transfers: Mapping[Transfer, Interval] = field(default_factory=dict[Transfer, Interval])
    deferred: str = ""
    name: str = ""
    route: str = ""

    @property
    def number(self) -> str:
        """Number within the batch."""
        return self.job.partition("/")[2]

    @property
    def study(self) -> str:
        """Path of the result below the output folder."""
        return str(self.asked.get("study", ""))

    @property
    def asked(self) -> Mapping[str, Any]:
        """Fields of the job, as far as they can be read; for display only."""
        return json_object(self.payload)

    @property
    def work(self) -> JobPaths:
        """Model and folders, for display."""
        return work_of(self.payload)

    @property
    def seconds(self) -> float:
        """Wall time of the translation; 0 until it ended."""
        found = self.row.get("seconds")
        return float(found) if isinstance(found, int | float) else 0.0

    @property
    def was_up_to_date(self) -> bool:
        """Whether the result was up to date already."""
        return self.row.get("status") == "up to date"

    @property
    def row(self) -> Mapping[str, Any]:
        """Recorded row of the study; empty until the job ended, or if it cannot be read."""
        found: Any = self.result.get("row")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    @property
    def reason(self) -> str | None:
        """One sentence on why there is no result, or none yet."""
        if self.state == "waiting":
            return self.deferred or None
        if self.state == "given up":
            return (
                f"{self.tries - 1} workers crashed while running it; see their logs, then run "
                "'jobs retry'"
            )
        if self.state != "failed":
            return None
        failure: Any = self.row.get("failure")
        if not isinstance(failure, dict) or not {"kind", "reason"} <= failure.keys():
            return "the queue's record of it cannot be read"
        return f"{failure['kind']}: {failure['reason']}"


def counted_open(rows: Iterable[JobRow]) -> tuple[OpenJobs, ...]:
    """Count the open jobs among rows by state, window and earliest start."""
    kinds = Counter[tuple[JobState, str, float | None]](
        (row.state, row.scheduling.window, row.not_before if row.state == "waiting" else None)
        for row in rows
        if row.state in OPEN
    )
    return tuple(OpenJobs(count, *kind) for kind, count in kinds.items())


@dataclass(frozen=True)
class Claim:
    """A worker's claim on a job.

    job: `<batch>/<number>`. token: proves the claim, until another worker reclaims the job. tries:
    this one, and those that ended with a crash of the worker. payload: the job as JSON. scheduling:
    priority and time window. alone: whether the job may have caused such a crash and runs alone.
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
        """Path of the result below the output folder; "" if it cannot be read."""
        return str(json_object(self.payload).get("study", ""))

    @cached_property
    def work(self) -> "StudyJob":
        """The decoded job. Raises QueueError if it cannot be read."""
        return StudyJob.from_json(self.payload)


@dataclass(frozen=True, slots=True)
class Submitted:
    """Outcome of a submission.

    batch: number of the batch. added: number of new jobs. known: number of jobs whose work was open
    already. jobs: all jobs, as `<batch>/<number>`, by the key of their work. open_already: those
    whose work was open already.
    """

    batch: str
    added: int
    known: int
    jobs: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    open_already: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class SummaryMark:
    """Period of a summary that continues the last one of the same selection.

    since: end of the last one by this host's clock, None if there was none. until: end of this one,
    in milliseconds of the database's clock.
    """

    since: datetime | None
    until: int


@dataclass(frozen=True, slots=True)
class Retried:
    """Outcome of a retry.

    again: number of jobs queued again. known: number of jobs whose work was open already.
    """

    again: int
    known: int


def json_object(text: Any) -> dict[str, Any]:
    """Decode a JSON object; return an empty one if the text holds none, as in a damaged row."""
    try:
        found: Any = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def work_of(payload: str) -> JobPaths:
    """Return the files of a job's text, as far as they can be read."""
    asked = json_object(payload)
    files, study = asked.get("files"), PurePosixPath(str(asked.get("study", "")))
    first = cast("list[Any]", files)[0] if isinstance(files, list) and files else ""
    folder, above = PurePosixPath(str(first)).parent.parts, study.parent.parts
    if above and folder[-len(above) :] == above:
        folder = folder[: -len(above)]
    inputs = str(PurePosixPath(*folder)) if first else ""
    return JobPaths(str(asked.get("model", "")), inputs, str(asked.get("output", "")))


FIRST_VERSIONS = {
    "links": 1,
    "verify": 2,
    "any_modality": 3,
    "nan_to": 3,
    "strict_input": 4,
    "cycle_check": 4,
    "spread": 4,
    "resample_channels": 4,
    "inference": 5,
    "listed": 6,
    "images": 7,
    "incomplete": 8,
    "output_type": 9,
    "every_volume": 9,
    "result_name": 9,
    "layout": 9,
    "bids_suffix": 9,
    "sidecar": 9,
    "any_contrast": 9,
    "allow_synthetic": 9,
    "mirrored": 9,
    "others": 9,
    "series_description": 10,
}
"""Fields and options that are not in a job at their default, with the version of a job that has
one, which is part of its key. Up to 9, they are those of 0.2.0.
"""
VERSION = max(FIRST_VERSIONS.values())
"""Newest job version that a worker of this program handles."""

_OPTIONS = TranslateOptions.__dataclass_fields__


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int


@dataclass(frozen=True, slots=True)
class StudyJob:
    """One study to translate; all paths are absolute and must be the same on every host.

    study: path of the result below `output`. files: files of the study. model_sha256: hash of the
    model file when the job was made. options: with a patch. listed: folders and their times, as in
    `Study`, which reveal images that arrived since. images: `Series.images_sha256` of each scan, if
    other series share its files. incomplete: text for the result if files of the scan are missing.
    mirrored, others: as in a study and its manifest entry, if results do not mirror the inputs.
    """

    study: str
    files: tuple[str, ...]
    output: str
    model: str
    model_sha256: str
    options: TranslateOptions
    listed: tuple[tuple[str, int], ...] = ()
    images: tuple[str, ...] = ()
    incomplete: str = ""
    mirrored: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Encode the job as ASCII text, with all fields and options in one object.

        Undecodable bytes of a path become lone surrogates.
        """
        stated = encode_stated(self)
        options: dict[str, Any] = stated.pop("options")
        for name in FIRST_VERSIONS.keys() & omitted_at_default(options):
            del options[name]
        stated |= options
        return json.dumps(
            {"version": max(FIRST_VERSIONS.get(name, 1) for name in stated), **stated}
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode what `to_json` wrote. Raises QueueError, also for a job of a newer program."""
        try:
            fields = decode(dict[str, Any], parse(text))
            if decode(_Versioned, fields).version > VERSION:
                raise QueueError(
                    "This job was submitted by a newer version of cuda-cyclegan; update this "
                    "worker."
                )
            del fields["version"]
            named = {name: fields.pop(name) for name in _OPTIONS if name in fields}
            options = decode_known(TranslateOptions, named)
            job = replace(decode_known(cls, {**fields, "options": {}}), options=options)
            for name in ("patch", "overlap", "blend"):
                if getattr(options, name) is None:
                    raise FieldError(name, "is missing")
            if not job.files:
                raise FieldError("files", "must name a file")
            paths = {"study": job.study, "output": job.output, "model": job.model}
            several = {"files": job.files, "others": job.others}
            each = [(name, path) for name, paths_of in several.items() for path in paths_of]
            for name, path in (*paths.items(), *each):
                if "\0" in path:
                    raise FieldError(name, "contains a zero byte, which no name may have")
            return job
        except (FieldError, SettingsError) as error:
            reason = str(error).removesuffix(".")
            raise QueueError(f"This job cannot be read: {reason}; submit it again.") from error

    def key(self) -> str:
        """Hash of the work: present state of the files, model and settings.

        Raises OSError for a missing file.
        """
        states = [os.stat(file) for file in self.files]  # noqa: PTH116
        marks = [(state.st_size, state.st_mtime_ns) for state in states]
        work = replace(self, listed=()).to_json()
        return hashlib.sha256(json.dumps([work, marks]).encode()).hexdigest()

    def is_like(self, other: "StudyJob") -> bool:
        """Return whether another job differs in its study only: same model, settings and folder."""
        own = replace(self, study=other.study, files=other.files)
        own = replace(own, listed=other.listed, images=other.images)
        own = replace(own, mirrored=other.mirrored, others=other.others)
        return replace(own, incomplete=other.incomplete) == other

    @property
    def mirrored_name(self) -> str:
        """Value that `study` would have if the results mirrored the inputs."""
        return self.mirrored[0] if self.mirrored else self.study

    @property
    def target(self) -> Path:
        """Path of the result."""
        return Path(self.output) / self.study
