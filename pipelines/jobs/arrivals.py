"""A folder in which studies arrive: which of them are complete, and not queued yet."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
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
    handed_on: bool = False


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
        """Those jobs whose studies have just become complete, each only once until it changes.

        Results that are up to date by the manifest, as after a restart, are left out. models:
        further hashes by which results of the jobs' model are recorded. words: what they are to say
        of it.
        """
        now = self._clock()
        ready: list[StudyJob] = []
        for job in jobs:
            try:
                marks = hash(_marks(job))
            except OSError:
                continue  # it went while we looked
            seen = self._seen.get(job.study)
            if seen is None or seen.marks != marks:
                self._seen[job.study] = _Seen(marks, now)
            elif not seen.handed_on and now - seen.since >= self._settle:
                seen.handed_on = True
                ready.append(job)
        return _without_done(ready, models, words)


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


def _without_done(
    jobs: list[StudyJob], models: Collection[str], words: tuple[str, ...]
) -> list[StudyJob]:
    if not jobs:
        return []
    entries = load(Path(jobs[0].output))

    def is_done(job: StudyJob) -> bool:
        entry = entries.get(job.study)
        if entry is None or entry.status != "written":
            return False
        if entry.change_of({job.model_sha256, *models}, words):
            return False
        known = [(state.name, state.size, state.modified_ns) for state in entry.inputs]
        return known == [(Path(file).name, size, changed) for file, size, changed in _marks(job)]

    return [job for job in jobs if not is_done(job)]
