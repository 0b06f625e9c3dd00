"""A batch of studies: what becomes of each, also when it is stopped halfway."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from ..events import Event, Listen
from ..report.report import StudyReport
from ..results.resume import PlannedStudy
from .outcomes import Outcomes

PATIENCE = 3.0
"""Seconds that a stopped batch gives results to get stored; a hung disk must not hold it."""

LAST_MOMENT = 1.0
"""Seconds that those which are in place then have to get recorded."""


class Execution(Protocol):
    """What carries studies from file to file."""

    @property
    def outcomes(self) -> Outcomes:
        """What became of its studies so far."""
        ...

    def run(self) -> Iterator[Event]:
        """Everything that happens until the last study is over."""
        ...

    def stop(self) -> None:
        """Begin nothing more; what the network has done with is still stored."""
        ...

    def rest(self, seconds: float) -> Iterator[Event]:
        """What still happens after a stop, for so long."""
        ...

    def abort(self) -> None:
        """Store nothing more, and remove what is being stored."""
        ...


def run_batch(
    planned: Sequence[PlannedStudy], execution: Execution, listen: Listen
) -> tuple[StudyReport, ...]:
    """The rows of all studies in their order, or what there is of them at a KeyboardInterrupt.

    After a KeyboardInterrupt, what the network has done with is still stored if that is soon done;
    another one ends that too.
    """
    try:
        for event in execution.run():
            listen(event)
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            execution.stop()
            for event in execution.rest(PATIENCE):
                listen(event)
        with suppress(KeyboardInterrupt):
            execution.abort()
            for event in execution.rest(LAST_MOMENT):
                listen(event)
    finally:
        execution.stop()
    return tuple(row for study in planned if (row := execution.outcomes.of(study)))
