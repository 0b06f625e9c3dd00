"""Sources of a worker's jobs, which also take their outcomes; the studies of a batch in memory."""

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from ...engine.model.model_file import Model
from ...engine.options import Precision
from ..cycle import reverse_options
from ..report.report import StudyReport
from ..results.manifest import Recipe
from ..results.resume import PlannedStudy
from ..results.sidecar import SidecarMaker
from ..results.storing import Record, Store
from ..retries import TRIES, crash_counts
from ..series_description import DescriptionPattern
from ..settings import ResolvedOptions
from .networks import NetworkUse
from .outcomes import Outcomes


@dataclass(frozen=True, slots=True)
class JobKind:
    """Common properties of jobs that a worker runs together; can be sent to another process.

    model: the model with its model card. options: of all its studies. recipe: hashes of
    model and settings. back: the reverse model; None without a cycle check. opens: whether the
    network opens; if not, no study needs translation. checks_whole: whether a first study may be
    compared with its whole volume.
    """

    model: Model
    options: ResolvedOptions
    recipe: Recipe
    back: Model | None = None
    opens: bool = True
    checks_whole: bool = True

    @property
    def precision(self) -> Precision:
        """Precision in which the network starts."""
        return self.options.precision

    @property
    def uses(self) -> tuple[NetworkUse, ...]:
        """Networks of a study: the model's, and the reverse model's if there is one."""
        forward = self.model, self.options
        if self.back is None:
            return (forward,)
        return forward, (self.back, reverse_options(self.options, self.back))

    def store(self, record: Record) -> Store:
        """Return the store of the results, which are recorded in `record`."""
        sidecars = SidecarMaker.of(self.model.card, self.model.sha256, self.options)
        text = self.options.series_description
        described = DescriptionPattern.of_setting(text) if text else None
        return Store(record, self.recipe, self.model.card, sidecars, described)


class JobSource(Protocol):
    """Source of a worker's jobs, each a planned study.

    One thread at a time calls `take`, and any thread `close`; the thread that runs the worker calls
    the other methods.
    """

    @property
    def record(self) -> Record:
        """Record of the results of the current kind."""
        ...

    def next_kind(self) -> JobKind | None:
        """Wait for jobs and return their kind; None if there are no more."""
        ...

    def take(self) -> PlannedStudy | None:
        """Return the next job of that kind, claimed from then on; None if there are no more."""
        ...

    def may_begin(self, _study: str, /) -> bool:
        """Return whether the network may begin with a job, by the name of its study; True for
        sources without start windows.
        """
        return True

    def finish(self, row: StudyReport, /) -> None:
        """Accept the row of a job that ended, or of another name of its study."""
        ...

    def close(self) -> None:
        """Return no further job; nothing to do for a source whose other end ends its jobs."""

    def reclaim(self, why: str) -> None:
        """Reclaim the claimed jobs after the device was lost; why: a sentence."""
        ...


class BatchStudies:
    """Studies of a batch: those that wait, and the outcomes of the others.

    A crash counts against a study if it was the only suspect. Suspects are repeated, each alone on
    a worker, and fail after three crashes. recorded: names of results that workers recorded.
    """

    def __init__(self, studies: Iterable[PlannedStudy]) -> None:
        self.outcomes = Outcomes()
        self.recorded = set[str]()
        self._waiting = deque(studies)
        self._crashes = Counter[str]()

    @property
    def any_waiting(self) -> bool:
        """Whether any study waits."""
        return bool(self._waiting)

    def take(self, claimed: dict[str, PlannedStudy]) -> PlannedStudy | None:
        """Claim a study for a worker and return it; None if there is none for it.

        claimed: the worker's claimed studies by name, to which the study is added.
        """
        if any(name in self._crashes for name in claimed):
            return None
        for planned in self._waiting:
            name = str(planned.study.name)
            if not claimed or name not in self._crashes:
                self._waiting.remove(planned)
                claimed[name] = planned
                return planned
        return None

    def requeue(
        self,
        claimed: Collection[PlannedStudy],
        why: str,
        suspects: Collection[str],
        *,
        counts: bool = True,
    ) -> list[PlannedStudy]:
        """Requeue studies at the head of the queue; return those that have failed instead.

        why: the reason their worker ended, a sentence. suspects: names of studies that may have
        crashed it. counts: whether a crash may count.
        """
        failed = list[PlannedStudy]()
        for planned in reversed([*claimed]):
            name = str(planned.study.name)
            if name in suspects:
                self._crashes[name] += counts and crash_counts(len(suspects))
                if self._crashes[name] >= TRIES:
                    failed.append(planned)
                    continue
            again = planned.begun_again(why) if self.outcomes.of(planned) else planned
            aliases = tuple(map(self._replacing, again.aliases))
            self._waiting.appendleft(self._replacing(replace(again, aliases=aliases)))
        return failed

    def drain(self) -> list[PlannedStudy]:
        """Remove and return all waiting studies, which no worker will translate."""
        left = [*self._waiting]
        self._waiting.clear()
        return left

    def _replacing(self, planned: PlannedStudy) -> PlannedStudy:
        """Return the study with permission to replace a result recorded before its worker died."""
        is_recorded = str(planned.study.name) in self.recorded
        return replace(planned, replaces=planned.replaces or is_recorded)


class ListSource(JobSource):
    """Source of a batch's studies for a worker in the process that owns their manifest.

    record: manifest of the batch.
    """

    def __init__(self, kind: JobKind, studies: BatchStudies, record: Record) -> None:
        self._record = record
        self._kinds = iter([kind])
        self._studies = studies
        self._claimed: dict[str, PlannedStudy] = {}
        self._is_open = True
        self._lock = threading.Lock()

    @property
    def record(self) -> Record:
        """Manifest of the batch."""
        return self._record

    def next_kind(self) -> JobKind | None:
        """Return the one kind of the batch, once."""
        return next(self._kinds, None)

    def take(self) -> PlannedStudy | None:
        """Claim and return the next waiting study."""
        with self._lock:
            return self._studies.take(self._claimed) if self._is_open else None

    def finish(self, row: StudyReport) -> None:
        """Remove a study that ended from the claimed ones."""
        with self._lock:
            self._claimed.pop(row.name, None)

    def reclaim(self, why: str) -> None:
        """Requeue all claimed studies; those that the network began with are suspects."""
        with self._lock:
            self._is_open = False
            outcomes = self._studies.outcomes
            begun = {name for name, planned in self._claimed.items() if outcomes.of(planned)}
            self._studies.requeue(self._claimed.values(), why, begun)
            self._claimed.clear()
