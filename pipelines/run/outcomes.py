"""Outcomes of the studies of a batch, and the queue of its events to the listening thread."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic

from ..events import Event, StudyDone, StudyStarted, TilesDone, Worked
from ..report.report import StudyReport
from ..results.resume import PlannedStudy
from ..stopwatch import Stage


class Outcomes:
    """Outcome of each study according to the events of a batch; any thread may read it."""

    def __init__(self) -> None:
        self._ended: dict[str, StudyReport] = {}
        self._begun: set[str] = set()
        self._stages: dict[str, dict[Stage, float]] = {}

    @property
    def any_ended(self) -> bool:
        """Whether any study has ended, whatever its status."""
        return bool(self._ended)

    def handle(self, event: Event) -> None:
        """Handle an event; those of one study must come from one thread at a time."""
        match event:
            case StudyStarted(planned):
                self._stages[str(planned.study.name)] = {}
            case Worked(span):
                spent = self._stages[span.study]
                spent[span.stage] = spent.get(span.stage, 0.0) + span.seconds
            case TilesDone(study, 0, _):
                self._begun.add(study)
            case StudyDone(row):
                self._ended[row.name] = row
            case _:
                pass

    def of(self, planned: PlannedStudy) -> StudyReport | None:
        """Return a study's row.

        A study that has not ended is interrupted if the network began with it, and None if not.
        """
        name = str(planned.study.name)
        if name in self._ended or name not in self._begun:
            return self._ended.get(name)
        stages = dict(self._stages[name])
        row = replace(planned.opening_row, status="interrupted", stages=stages)
        return replace(row, seconds=sum(stages.values()))


_DEAF_SECONDS = 0.5
"""Longest delay of a signal, in seconds: the system may deliver it to another thread, which does
not wake the listening one.
"""


class BatchEvents:
    """Queue of events from the threads where they happen to the one that listens.

    outcomes: record each event in the thread where it happens, so that an interrupt of the
    listening thread may lose an event, but no outcome. expected: errors that end a thread and not
    the batch. Spans of work, a dozen per study, wake nobody: each time the listening thread wakes
    up, the others wait for the interpreter's lock. They come with the next event of another kind.
    """

    def __init__(self, outcomes: Outcomes, expected: tuple[type[BaseException], ...] = ()) -> None:
        self.outcomes = outcomes
        self.is_over = False
        self.expected = expected
        self._queue: deque[Event | BaseException | None] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def report(self, event: Event) -> None:
        """Record an event and queue it for the listening thread."""
        self.outcomes.handle(event)
        self._put(event)

    def fail(self, error: BaseException) -> None:
        """Queue the error that ended a thread."""
        self._put(error)

    def end(self) -> None:
        """Mark the end: no event follows."""
        self._put(None)

    def listen(self, seconds: float = threading.TIMEOUT_MAX) -> Iterator[Event]:
        """Yield events until the end, or for `seconds`; raise an error that is not expected."""
        end = monotonic() + seconds
        while not self.is_over and (left := end - monotonic()) > 0:
            with suppress(Empty):
                self._wakes.get(timeout=min(left, _DEAF_SECONDS))
            while self._queue:
                event = self._queue.popleft()
                if event is None:
                    self.is_over = True
                elif not isinstance(event, BaseException):
                    yield event
                elif not isinstance(event, self.expected):
                    raise event

    def _put(self, event: Event | BaseException | None) -> None:
        self._queue.append(event)
        if not isinstance(event, Worked):
            self._wakes.put(None)
