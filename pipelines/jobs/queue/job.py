"""A job: one study to translate, as plain JSON that any worker of the queue can read."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from ....engine.decoding import FieldError, decode, decode_known, parse
from ....engine.options import Precision
from ....io.choice import FEWEST_SLICES, OutputFormat
from ....io.links import Links
from ...errors import QueueError
from ...settings import Blend

VERSION = 1
"""Raised when an older worker could not do a newer job right."""


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int


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
            fields = decode(dict[str, Any], parse(text))
            if decode(_Versioned, fields).version > VERSION:
                raise QueueError(
                    "This job was made by a newer version of cuda-cyclegan; update this worker."
                )
            del fields["version"]
            return decode_known(cls, fields)
        except FieldError as error:
            raise QueueError(f"This job cannot be read: {error}; submit it again.") from error

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
