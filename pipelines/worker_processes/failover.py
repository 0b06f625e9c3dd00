"""A batch in this process, and where that loses its device, in a worker process for the rest."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ..events import DeviceOpened, Event
from ..execution.batch import Execution
from ..execution.outcomes import Outcomes
from ..execution.study_pipeline import StudyPipeline
from ..execution.under_way import DeviceLostError
from ..results.resume import PlannedStudy

Successor: TypeAlias = Callable[[Sequence[PlannedStudy], Outcomes], Execution]
"""Has other processes go on with these studies, and with what became of all before."""


class Failover:
    """A pipeline whose driver refuses all further work of its process can only hand it over."""

    def __init__(
        self, studies: Sequence[PlannedStudy], pipeline: StudyPipeline, successor: Successor
    ) -> None:
        self._studies = studies
        self._pipeline = pipeline
        self._successor = successor
        self._current: Execution = pipeline
        self.outcomes = pipeline.outcomes

    def run(self) -> Iterator[Event]:
        """Everything that happens until the last study is over."""
        try:
            yield from self._pipeline.run()
            return
        except DeviceLostError as error:
            self._pipeline.stop()
            why = str(error)
        yield from self._pipeline.rest()
        rows = [(study, self.outcomes.of(study)) for study in self._studies]
        left = [
            study.begun_again(why) if row else study
            for study, row in rows
            if not row or row.status == "interrupted"
        ]
        self._current = self._successor(left, self.outcomes)
        for event in self._current.run():
            if not isinstance(event, DeviceOpened):  # the same one again
                yield event

    def stop(self) -> None:
        """Begin nothing more; what the network has done with is still stored."""
        self._current.stop()

    def rest(self, seconds: float) -> Iterator[Event]:
        """What still happens after a stop, for so long."""
        return self._current.rest(seconds)

    def abort(self) -> None:
        """Store nothing more, and remove what is being stored."""
        self._current.abort()
