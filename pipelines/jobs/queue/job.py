"""A job: its record for workers, and what the queue records and reports about it."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast, get_args

from ....engine.decoding import FieldError, decode, decode_known, parse
from ...errors import QueueError
from ...settings import ADDED, TranslateOptions, added_at_default
from .schedule import SchedulingClass

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


_LISTED = 6
"""Version of the first worker that heeds what was listed."""
_IMAGES = 7
"""Version of the first worker that tells apart series that are stored in the same files."""
_INCOMPLETE = 8
"""Version of the first worker whose results say that their source is incomplete."""
_NAMED = 9
"""Version of the first worker whose results may have other names than their scans."""
VERSION = max(_NAMED, *(version for version in ADDED.values() if version))
"""The newest job that a worker of this program does right."""

_OPTIONS = TranslateOptions.__dataclass_fields__


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int


@dataclass(frozen=True, slots=True)
class StudyJob:
    """All that a worker needs to know; the paths are absolute and must be the same on every host.

    study: place of the result below `output`. files: what the study is stored in. model_sha256:
    the model file's hash when the job was made. options: with a patch. listed: as of a study, by
    which images show that came since. images: `Series.images_sha256` of each of its scans, if other
    series have files of these, too. incomplete: that the files are not the whole scan, in words for
    its result; mostly empty. mirrored, others: as of a study and of its manifest entry, where
    results do not mirror the inputs.
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
        """The job as text in ASCII, all its fields and options side by side.

        Undecodable bytes of a path stand as lone surrogates.
        """
        fields = asdict(self)
        options: dict[str, Any] = fields.pop("options")
        needed = {name: version for name, version in ADDED.items() if version}
        for name in needed.keys() & added_at_default(options):
            del options[name], needed[name]
        added = {"listed": _LISTED, "images": _IMAGES, "incomplete": _INCOMPLETE}
        added |= {"mirrored": _NAMED, "others": _NAMED}
        for name, version in added.items():
            if fields[name]:
                needed[name] = version
            else:
                del fields[name]
        return json.dumps({"version": max(needed.values(), default=1), **fields, **options})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The job that `to_json` wrote. Raises QueueError for one of a newer program."""
        try:
            fields = decode(dict[str, Any], parse(text))
            if decode(_Versioned, fields).version > VERSION:
                raise QueueError(
                    "This job was made by a newer version of cuda-cyclegan; update this worker."
                )
            del fields["version"]
            named = {name: fields.pop(name) for name in _OPTIONS if name in fields}
            options = decode_known(TranslateOptions, named)
            job = replace(decode_known(cls, {**fields, "options": {}}), options=options)
            if options.patch is None:
                raise FieldError("patch", "is missing")
            if not job.files:
                raise FieldError("files", "must name a file")
            paths = {"study": job.study, "output": job.output, "model": job.model}
            several = {"files": job.files, "others": job.others}
            each = [(name, path) for name, paths_of in several.items() for path in paths_of]
            for name, path in (*paths.items(), *each):
                if "\0" in path:
                    raise FieldError(name, "holds a zero byte, which no name may have")
            return job
        except FieldError as error:
            raise QueueError(f"This job cannot be read: {error}; submit it again.") from error

    def key(self) -> str:
        """A name that equal work has in common: same files as they stand now, model and settings,
        whatever else is listed beside the files.

        Raises OSError for a file that is gone.
        """
        states = [os.stat(file) for file in self.files]  # noqa: PTH116
        marks = [(state.st_size, state.st_mtime_ns) for state in states]
        work = replace(self, listed=()).to_json()
        return hashlib.sha256(json.dumps([work, marks]).encode()).hexdigest()

    def is_like(self, other: "StudyJob") -> bool:
        """Whether another job differs in its study only: same model, settings and folder."""
        own = replace(self, study=other.study, files=other.files)
        own = replace(own, listed=other.listed, images=other.images)
        own = replace(own, mirrored=other.mirrored, others=other.others)
        return replace(own, incomplete=other.incomplete) == other

    @property
    def mirrored_name(self) -> str:
        """What `study` would be if the results mirrored the inputs."""
        return self.mirrored[0] if self.mirrored else self.study

    @property
    def target(self) -> Path:
        """Where the result goes."""
        return Path(self.output) / self.study
