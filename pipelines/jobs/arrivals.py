"""A folder in which studies arrive: which of them are complete, and not queued yet."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..results.manifest import load
from .queue.job import StudyJob

Marks: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, size and change time of every file of a study."""


@dataclass(slots=True)
class _Seen:
    """marks: their hash, as a folder is watched for months and a study may have many files."""

    marks: int
    since: float
    handed_over: bool = False


class Arrivals:
    """Remembers what a folder held before.

    settle: seconds for which nothing of a study may have changed before it counts as complete.
    """

    def __init__(self, settle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle = settle
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def complete(
        self, jobs: Iterable[StudyJob], models: Collection[str] = (), words: tuple[str, ...] = ()
    ) -> list[StudyJob]:
        """Jobs whose studies are complete, until `handed_over`, and again once a study changes.

        Results that are up to date by the manifest, as after a restart, are left out. models:
        further hashes by which results of the jobs' model are recorded. words: what they are to say
        of it.
        """
        now = self._clock()
        settled: list[tuple[StudyJob, Marks]] = []
        for job in jobs:
            try:
                marks = _marks(job)
            except OSError:
                continue  # it went while we looked
            seen = self._seen.get(job.study)
            if seen is None or seen.marks != hash(marks):
                self._seen[job.study] = _Seen(hash(marks), now)
            elif not seen.handed_over and now - seen.since >= self._settle:
                settled.append((job, marks))
        done = _done(settled, models, words)
        self.handed_over(done)
        return [job for job, _ in settled if not self._seen[job.study].handed_over]

    def handed_over(self, jobs: Iterable[StudyJob]) -> None:
        """Mark studies of which nothing is left to do until they change."""
        for job in jobs:
            self._seen[job.study].handed_over = True


class Complaints:
    """What is wrong with a folder, each told once, and only after it has stood for a while.

    What is being copied in is damaged as long as that takes. settle: seconds.
    """

    def __init__(self, settle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle = settle
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}
        self._told: set[str] = set()

    def due(self, found: Mapping[str, str]) -> dict[str, str]:
        """Those of the complaints, by what they are about, that are to be told now."""
        now = self._clock()
        self._since = {each: self._since.get(each, now) for each in found.items()}
        due = {
            name: reason
            for (name, reason), since in self._since.items()
            if name not in self._told and now - since >= self._settle
        }
        self._told |= due.keys()
        return due


def _marks(job: StudyJob) -> Marks:
    states = [(file, Path(file).stat()) for file in job.files]
    return tuple((file, state.st_size, state.st_mtime_ns) for file, state in states)


def _done(
    settled: Sequence[tuple[StudyJob, Marks]], models: Collection[str], words: tuple[str, ...]
) -> list[StudyJob]:
    """Jobs whose results are up to date by the manifest."""
    if not settled:
        return []
    entries = load(Path(settled[0][0].output))

    def is_done(job: StudyJob, marks: Marks) -> bool:
        entry = entries.get(job.study)
        if entry is None or entry.status != "written":
            return False
        if entry.change_of({job.model_sha256, *models}, words):
            return False
        known = [(state.name, state.size, state.modified_ns) for state in entry.inputs]
        return known == [(Path(file).name, size, changed) for file, size, changed in marks]

    return [job for job, marks in settled if is_done(job, marks)]
