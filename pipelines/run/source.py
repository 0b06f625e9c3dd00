"""Where a worker's jobs come from and where their outcomes go; the studies of a batch in memory."""

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from ...engine.model.model_file import Model
from ...engine.options import Precision
from ..cycle import back_options
from ..report.report import StudyReport
from ..results.manifest import Recipe
from ..results.resume import PlannedStudy
from ..results.sidecar import SidecarMaker
from ..results.storing import Record, Store
from ..settings import TranslateOptions, TranslateSettings
from .blame import TRIES, is_blamed
from .networks import NetworkUse
from .outcomes import Outcomes


@dataclass(frozen=True, slots=True)
class JobKind:
    """What jobs have in common that a worker does together; can be sent to another process.

    model: with its card. options: none left open. recipe: hashes of model and settings. back: the
    reverse model; None without a cycle check. opens: whether the network opens; without, no study
    is to be translated.
    """

    model: Model
    options: TranslateOptions
    recipe: Recipe
    back: Model | None = None
    opens: bool = True

    @property
    def settings(self) -> TranslateSettings:
        """Settings that change the results."""
        return self.options.settings()

    @property
    def precision(self) -> Precision:
        """Precision in which the network starts."""
        return self.settings.precision

    @property
    def uses(self) -> tuple[NetworkUse, ...]:
        """Networks of a study: the model's, and the reverse model's if there is one."""
        forward = self.model, self.options
        if self.back is None:
            return (forward,)
        return forward, (self.back, back_options(self.options, self.back))

    def store(self, record: Record) -> Store:
        """Return the store of the results, which are recorded there."""
        sidecars = SidecarMaker.of(self.model.card, self.model.sha256, self.options)
        return Store(record, self.recipe, self.model.card, sidecars)


class JobSource(Protocol):
    """Gives a worker its jobs, each a study with what is to be done about it.

    One thread at a time calls `take`, and the thread that runs the worker the others.
    """

    @property
    def record(self) -> Record:
        """Where results of the current kind are recorded."""
        ...

    def next_kind(self) -> JobKind | None:
        """Wait for jobs and return their kind; None if there are no more."""
        ...

    def take(self) -> PlannedStudy | None:
        """Return the next job of that kind, in hand from then on; None if there are no more."""
        ...

    def may_begin(self, study: str, /) -> bool:
        """Return whether the network may begin with a job, by the name of its study."""
        ...

    def finish(self, row: StudyReport, /) -> None:
        """Take the row of a job that ended, or of another name of its study."""
        ...

    def put_back(self, why: str) -> None:
        """Take back the jobs in hand, as the worker lost its device; why: a sentence."""
        ...


class BatchStudies:
    """Studies of a batch: those that wait, and what became of the others.

    A crash counts against a study if it was the only suspect. Suspects are done again, each alone
    on a worker, and fail after three crashes. recorded: names of results that workers recorded.
    """

    def __init__(self, studies: Iterable[PlannedStudy]) -> None:
        self.outcomes = Outcomes()
        self.recorded = set[str]()
        self._waiting = deque(studies)
        self._crashes = Counter[str]()

    @property
    def any_waiting(self) -> bool:
        """Whether a study waits."""
        return bool(self._waiting)

    def take(self, in_hand: dict[str, PlannedStudy]) -> PlannedStudy | None:
        """Move a study into a worker's hand and return it; None if there is none for it."""
        if any(name in self._crashes for name in in_hand):
            return None
        for planned in self._waiting:
            name = str(planned.study.name)
            if not in_hand or name not in self._crashes:
                self._waiting.remove(planned)
                in_hand[name] = planned
                return planned
        return None

    def put_back(
        self,
        in_hand: Collection[PlannedStudy],
        why: str,
        suspects: Collection[str],
        *,
        counts: bool = True,
    ) -> list[PlannedStudy]:
        """Have studies wait again, before all others; return those that have failed instead.

        why: what ended their worker, a sentence. suspects: names of those that may have crashed it.
        counts: whether a crash may count.
        """
        failed = list[PlannedStudy]()
        for planned in reversed([*in_hand]):
            name = str(planned.study.name)
            if name in suspects:
                self._crashes[name] += counts and is_blamed(len(suspects))
                if self._crashes[name] >= TRIES:
                    failed.append(planned)
                    continue
            again = planned.begun_again(why) if self.outcomes.of(planned) else planned
            aliases = tuple(map(self._replacing, again.aliases))
            self._waiting.appendleft(self._replacing(replace(again, aliases=aliases)))
        return failed

    def give_up(self) -> list[PlannedStudy]:
        """Return all that wait, which nothing will do."""
        left = [*self._waiting]
        self._waiting.clear()
        return left

    def _replacing(self, planned: PlannedStudy) -> PlannedStudy:
        """The study, which may replace what a worker recorded before it died."""
        is_recorded = str(planned.study.name) in self.recorded
        return replace(planned, replaces=planned.replaces or is_recorded)


class ListSource:
    """The studies of a batch for a worker in the process that holds their manifest.

    record: the manifest.
    """

    def __init__(self, kind: JobKind, studies: BatchStudies, record: Record) -> None:
        self.record = record
        self._kinds = iter([kind])
        self._studies = studies
        self._in_hand: dict[str, PlannedStudy] = {}
        self._is_open = True
        self._lock = threading.Lock()

    def next_kind(self) -> JobKind | None:
        """Return the one kind of the batch, once."""
        return next(self._kinds, None)

    def take(self) -> PlannedStudy | None:
        """Return the next study that waits."""
        with self._lock:
            return self._studies.take(self._in_hand) if self._is_open else None

    def may_begin(self, _study: str) -> bool:
        """Return True: a batch has no start window."""
        return True

    def finish(self, row: StudyReport) -> None:
        """Let go of a study that ended."""
        with self._lock:
            self._in_hand.pop(row.name, None)

    def put_back(self, why: str) -> None:
        """Have all studies in hand wait again; those that the network began with are suspects."""
        with self._lock:
            self._is_open = False
            outcomes = self._studies.outcomes
            begun = {name for name, planned in self._in_hand.items() if outcomes.of(planned)}
            self._studies.put_back(self._in_hand.values(), why, begun)
            self._in_hand.clear()
