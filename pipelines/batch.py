"""A batch of studies: what becomes of each, also when it is stopped halfway."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..io.atomic import remove_parts_of_this_process
from .conveyor import Conveyor, Lanes, Task, opening_row
from .events import Event, Listen, StudyDone, TilesDone, Worked
from .plan import PlannedStudy
from .report import StudyReport
from .stopwatch import Stage

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
        self._rows: dict[str, StudyReport] = {}
        self._begun: dict[str, dict[Stage, float]] = {}

    def run(self) -> tuple[StudyReport, ...]:
        """The rows of all studies in their order, or what there is of them at a KeyboardInterrupt.

        After a KeyboardInterrupt, what the network has done with is still stored if that is soon
        done; another one ends that too.
        """
        try:
            for event in self._conveyor.run():
                self._hear(event)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                self._conveyor.stop()
                for event in self._conveyor.rest(PATIENCE):
                    self._hear(event)
            if self._conveyor.cut():
                remove_parts_of_this_process(self._output)
        finally:
            self._conveyor.stop()
        return tuple(row for planned in self._planned if (row := self._row(planned)))

    def _hear(self, event: Event) -> None:
        match event:
            case TilesDone(study, 0, _):
                self._begun[study] = {}
            case Worked(span) if span.study in self._begun:
                spent = self._begun[span.study]
                spent[span.stage] = spent.get(span.stage, 0.0) + span.seconds
            case StudyDone(row):
                self._rows[row.name] = row
            case _:
                pass
        self._listen(event)

    def _row(self, planned: PlannedStudy) -> StudyReport | None:
        name = str(planned.study.name)
        if name in self._rows or name not in self._begun:
            return self._rows.get(name)
        stages = self._begun[name]
        row = replace(opening_row(planned), status="interrupted")
        return replace(row, stages=stages, seconds=sum(stages.values()))
