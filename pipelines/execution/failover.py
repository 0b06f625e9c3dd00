"""A batch in this process, and where that loses its device, in a worker process for the rest."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from ..progress.events import DeviceOpened, Event
from ..report.report import StudyReport
from ..results.resume import PlannedStudy
from .batch import Execution
from .stages import DeviceLostError
from .study_pipeline import StudyPipeline

Successor: TypeAlias = Callable[[Sequence[PlannedStudy], Collection[str]], Execution]
"""Has other processes go on with these studies. The names are those of studies over which the
device may have been lost.
"""


class Failover:
    """A pipeline whose driver refuses all further work of its process can only hand it over."""

    def __init__(
        self, studies: Sequence[PlannedStudy], pipeline: StudyPipeline, successor: Successor
    ) -> None:
        self._studies = studies
        self._pipeline = pipeline
        self._successor = successor
        self._current: Execution = pipeline

    def run(self) -> Iterator[Event]:
        """Everything that happens until the last study is over."""
        try:
            yield from self._pipeline.run()
            return
        except DeviceLostError as error:
            self._pipeline.stop()
            why = str(error)
        yield from self._pipeline.rest(threading.TIMEOUT_MAX)
        rows = [(study, self._pipeline.row(study)) for study in self._studies]
        left = [
            study.begun_again(why) if row else study
            for study, row in rows
            if not row or row.status == "interrupted"
        ]
        suspects = [row.name for _, row in rows if row and row.status == "interrupted"]
        self._current = self._successor(left, suspects)
        for event in self._current.run():
            if not isinstance(event, DeviceOpened):  # the same one again
                yield event

    def stop(self) -> None:
        """Begin nothing more; what the network has done with is still stored."""
        self._current.stop()

    def rest(self, seconds: float) -> Iterator[Event]:
        """What still happens after a stop, for so long."""
        return self._current.rest(seconds)

    def cut(self) -> None:
        """Store nothing more, and remove what is being stored."""
        self._current.cut()

    def row(self, planned: PlannedStudy) -> StudyReport | None:
        """What became of a study, if it was begun with."""
        return self._current.row(planned) or self._pipeline.row(planned)
