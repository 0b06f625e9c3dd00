"""A job: one study to translate, as plain JSON that any worker of the queue can read."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from ....engine.options import Precision
from ....io.choice import FEWEST_SLICES, OutputFormat
from ....io.links import Links
from ...errors import QueueError
from ...settings import Blend

VERSION = 1
"""Raised when an older worker could not do a newer job right."""


@dataclass(frozen=True, slots=True)
class StudyJob:
    """All that a worker needs to know; the paths are absolute and must be the same on every host.

    study: place of the result below `output`. files: what the study is stored in. model_sha256:
    the model file's hash when the job was made. precision: None takes the device's default.
    """

    study: str
    files: tuple[str, ...]
    output: str
    model: str
    model_sha256: str
    patch: tuple[int, int, int]
    overlap: float
    blend: Blend
    precision: Precision | None
    volume_index: int | None
    overwrite: bool
    output_format: OutputFormat = "same"
    fewest_slices: int = FEWEST_SLICES
    allow_uneven: bool = False
    preview: bool = False
    seam_score: bool = False
    keep_private: bool = False
    links: Links = "inside"

    def to_json(self) -> str:
        """The job as text in ASCII; undecodable bytes of a path stand as lone surrogates."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The job that `to_json` wrote. Raises QueueError for one of a newer program."""
        try:
            fields: dict[str, Any] = json.loads(text)
            version = fields.pop("version")
            if version > VERSION:
                raise QueueError(
                    "This job was made by a newer version of cuda-cyclegan; update this worker."
                )
            fields["files"] = tuple(fields["files"])
            fields["patch"] = tuple(fields["patch"])
            job = cls(**fields)
            _check(job)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise QueueError(
                f"This job cannot be read ({type(error).__name__}: {error}); submit it again."
            ) from error
        return job

    def key(self) -> str:
        """A name that equal work has in common: same files as they stand now, model and settings.

        Raises OSError for a file that is gone.
        """
        states = [os.stat(file) for file in self.files]  # noqa: PTH116
        marks = [(state.st_size, state.st_mtime_ns) for state in states]
        return hashlib.sha256(json.dumps([self.to_json(), marks]).encode()).hexdigest()

    def is_like(self, other: "StudyJob") -> bool:
        """Whether another job differs in its study only: same model, settings and folder."""
        return replace(self, study=other.study, files=other.files) == other

    @property
    def target(self) -> Path:
        """Where the result goes."""
        return Path(self.output) / self.study


_KINDS = get_type_hints(StudyJob)


def _check(job: StudyJob) -> None:
    """Raise TypeError for a field of another type than it is declared with."""
    for name, kind in _KINDS.items():
        if not _fits(getattr(job, name), kind):
            raise TypeError(f"{name} is of another kind")
    if not job.files:
        raise ValueError("it names no file")


def _fits(value: Any, kind: Any) -> bool:
    origin, members = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in members
    if origin is tuple:
        kinds = members[:1] * len(value) if members[-1] is ... else members
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if members:
        return any(_fits(value, member) for member in members)
    return type(value) in ((int, float) if kind is float else (kind,))
