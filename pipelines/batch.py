"""A batch of studies: what becomes of each, also when it is stopped halfway."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..io.atomic import remove_parts_of_this_process
from .conveyor import Conveyor, Lanes
from .events import Listen
from .plan import PlannedStudy
from .report import StudyReport
from .stations import Task

PATIENCE = 3.0
"""Seconds that a stopped batch gives results to get stored; a hung disk must not hold it."""


class Batch:
    """Studies under one set of settings."""

    def __init__(
        self, planned: Sequence[PlannedStudy], task: Task, lanes: Lanes, listen: Listen
    ) -> None:
        self._planned = planned
        self._conveyor = Conveyor(task, planned, lanes)
        self._output = task.store.manifest.output
        self._listen = listen

    def run(self) -> tuple[StudyReport, ...]:
        """The rows of all studies in their order, or what there is of them at a KeyboardInterrupt.

        After a KeyboardInterrupt, what the network has done with is still stored if that is soon
        done; another one ends that too.
        """
        try:
            for event in self._conveyor.run():
                self._listen(event)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                self._conveyor.stop()
                for event in self._conveyor.rest(PATIENCE):
                    self._listen(event)
            if self._conveyor.cut():
                remove_parts_of_this_process(self._output)
        finally:
            self._conveyor.stop()
        return tuple(row for planned in self._planned if (row := self._row(planned)))

    def _row(self, planned: PlannedStudy) -> StudyReport | None:
        name, line = str(planned.study.name), self._conveyor.stations
        if name in line.rows:
            return line.rows[name]
        ticket = line.begun.get(name)
        return ticket and replace(ticket.timed(ticket.row), status="interrupted")
