"""A job: one study to translate, as plain JSON that any worker of the queue can read."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from ....engine.decoding import FieldError, decode, decode_known, parse
from ...errors import QueueError
from ...settings import ADDED, TranslateOptions, added_at_default

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
