"""A batch shared by several worker processes, one a device: each gets a study when it has room."""

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ...engine.errors import EngineError
from ...io.files.parts import remove_leftovers
from ..events import DeviceOpened, Event, StudyDone, Worked
from ..execution.batch import LAST_MOMENT
from ..execution.outcomes import BatchEvents, Outcomes
from ..report.report import Failure
from ..results.manifest import Manifest, ManifestEntry
from ..results.resume import PlannedStudy
from .batch_worker import Setup, work
from .launch import WorkerProcess, ending, launch
from .messages import (
    BatchNews,
    BatchOrder,
    Ended,
    ResultMade,
    ResultRecorded,
    StopStoring,
    StopWork,
    StudyGiven,
    StudyWanted,
)
from .retry import TRIES, is_blamed
from .spare_workers import SpareWorkers
from .supervisor import Restart, RestartPolicy, Supervisor

_RESTARTS = RestartPolicy(most=TRIES + 2)
"""More than die of one study, at first with others in hand and then of it alone."""


@dataclass(slots=True)
class _AtWork:
    """What a device's worker has in hand. finished: studies; trouble: what it said at its end."""

    in_hand: dict[str, PlannedStudy] = field(default_factory=dict[str, PlannedStudy])
    finished: int = 0
    has_device: bool = False
    trouble: str | None = None


class SharedBatch:
    """Stands where a `StudyPipeline` stands for one device, and owns the studies and the manifest.

    Studies of a worker that dies go to another one, alone, to see which of them was the cause. The
    worker is replaced if its device had opened, unless too many die there one after another.
    outcomes: of an earlier process; it died of those that are begun there and did not end. spares:
    the first worker of a device, where one was started already; then this process is a command,
    which may end before its workers have closed their cards.
    """

    def __init__(
        self,
        setups: Sequence[Setup],
        studies: Sequence[PlannedStudy],
        manifest: Manifest,
        outcomes: Outcomes | None = None,
        spares: SpareWorkers | None = None,
    ) -> None:
        self._waiting = deque(studies)
        self._manifest = manifest
        self._at_work = {setup.name: _AtWork() for setup in setups}
        self._asking: deque[str] = deque()
        self.outcomes = outcomes or Outcomes()
        self._deaths = Counter[str]()
        self._opened = set[str]()
        self._awaits_ends = spares is None
        self._recorded: set[str] = set()
        self._trouble = ""
        self._is_stopped = False
        self._events = BatchEvents(self.outcomes)
        launches = {setup.name: partial(_launched, setup, spares) for setup in setups}
        self._supervisor: Supervisor[BatchOrder, BatchNews]
        self._supervisor = Supervisor(launches, self._hear, self._on_end, _RESTARTS)
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        suspects = [str(study.study.name) for study in studies if self.outcomes.of(study)]
        self._deaths.update(dict.fromkeys(suspects, int(is_blamed(len(suspects)))))

    def run(self) -> Iterator[Event]:
        """Everything that happens until the last study is over."""
        self._thread.start()
        yield from self._events.listen()

    def stop(self) -> None:
        """Begin nothing more; what the networks have done with is still stored."""
        self._is_stopped = True
        self._supervisor.post(lambda: self._end(StopWork()))

    def rest(self, seconds: float) -> Iterator[Event]:
        """What still happens after a stop, for so long."""
        return self._events.listen(seconds)

    def abort(self) -> None:
        """End all workers, and remove what they may have been storing."""
        self._supervisor.post(self._abort)
        if self._thread.is_alive():
            self._thread.join()
        remove_leftovers(self._manifest.output)

    def _supervise(self) -> None:
        try:
            self._supervisor.run()
            self._give_up()
            self._events.end()
        except BaseException as error:
            self._events.fail(error)

    def _abort(self) -> None:
        self._is_stopped = True
        self._end(StopStoring())
        self._supervisor.kill_in(LAST_MOMENT)

    def _end(self, order: StopWork | StopStoring) -> None:
        """Have all workers stop, those too that wait for what others might leave."""
        self._supervisor.stop(order)
        self._hand_out()

    def _hear(self, device: str, news: BatchNews) -> None:
        match news:
            case StudyWanted():
                self._asking.append(device)
                self._hand_out()
            case ResultMade(entry):
                self._supervisor.tell(device, ResultRecorded(self._record(entry)))
            case Ended(trouble):
                self._at_work[device].trouble = trouble
                if not (trouble or self._awaits_ends):  # in trouble, a successor needs the card
                    self._supervisor.let_go(device)
            case _:
                self._note(device, news)

    def _on_end(self, device: str, status: int, _seconds: float) -> Restart:
        """What a worker had in hand goes to others, unless a stop was the end of it."""
        dead, self._at_work[device] = self._at_work[device], _AtWork()
        self._asking = deque(other for other in self._asking if other != device)
        self._trouble = dead.trouble or _death(device, status)
        if not self._is_stopped:
            self._blame(dead)
        if dead.in_hand:
            remove_leftovers(self._manifest.output)
        may_open = dead.has_device or dead.trouble is None
        is_needed = bool(self._waiting) and not self._is_stopped
        self._hand_out()
        if not (may_open and is_needed):
            return "none"
        return "at once" if dead.finished else "in vain"

    def _record(self, entry: ManifestEntry) -> OSError | None:
        self._recorded.add(entry.output)
        try:
            self._manifest.append(entry)
        except OSError as error:
            return error
        return None

    def _note(self, device: str, event: Event) -> None:
        worker = self._at_work[device]
        match event:
            case DeviceOpened():
                worker.has_device = True
                if device in self._opened:
                    return
                self._opened.add(device)
            case Worked(span):
                event = Worked(replace(span, track=f"{device}: {span.track}"))
            case StudyDone(row):
                worker.in_hand.pop(row.name, None)
                worker.finished += 1
            case _:
                pass
        self._events.tell(event)
        if isinstance(event, StudyDone):
            self._hand_out()

    def _hand_out(self) -> None:
        """Give waiting studies to workers that ask, and the end once nobody's can come back."""
        if not self._is_stopped:
            self._asking = deque(
                device for device in self._asking if not self._was_given_one(device)
            )
        if self._is_stopped or not any(one.in_hand for one in self._at_work.values()):
            while self._asking:
                self._supervisor.tell(self._asking.popleft(), StudyGiven(None))

    def _was_given_one(self, device: str) -> bool:
        """Whether there was a study for it; one that a worker died over is worked on alone."""
        in_hand = self._at_work[device].in_hand
        if any(name in self._deaths for name in in_hand):
            return False
        for planned in self._waiting:
            name = str(planned.study.name)
            if not in_hand or name not in self._deaths:
                self._waiting.remove(planned)
                in_hand[name] = planned
                self._supervisor.tell(device, StudyGiven(planned))
                return True
        return False

    def _blame(self, dead: _AtWork) -> None:
        counts = dead.has_device and is_blamed(len(dead.in_hand))
        for name, planned in reversed(dead.in_hand.items()):
            self._deaths[name] += counts
            if self._deaths[name] >= TRIES:
                self._fail(planned)
                continue
            again = planned.begun_again(self._trouble) if self.outcomes.of(planned) else planned
            aliases = tuple(map(self._replacing, again.aliases))
            self._waiting.appendleft(self._replacing(replace(again, aliases=aliases)))

    def _replacing(self, planned: PlannedStudy) -> PlannedStudy:
        """A study that may replace what a worker recorded before it died."""
        is_recorded = str(planned.study.name) in self._recorded
        return replace(planned, replaces=planned.replaces or is_recorded)

    def _fail(self, planned: PlannedStudy) -> None:
        failure = Failure("engine", self._trouble, None)
        for each in (*planned.aliases, planned):
            row = replace(each.opening_row, status="failed", failure=failure)
            self._events.tell(StudyDone(row))

    def _give_up(self) -> None:
        """Nobody is left: what still waits cannot be done."""
        if self._is_stopped or not self._waiting:
            return
        if not self.outcomes.any_ended:
            raise EngineError(self._trouble)
        while self._waiting:
            self._fail(self._waiting.popleft())


def _launched(setup: Setup, spares: SpareWorkers | None) -> WorkerProcess[BatchOrder, BatchNews]:
    worker = spares.take(setup) if spares else None
    return worker or launch(partial(work, setup), device=setup.name)


def _death(device: str, status: int) -> str:
    return (
        f"The process for {device} ended in the middle of its work ({ending(status)}); see "
        "the system's log for memory or driver errors."
    )
