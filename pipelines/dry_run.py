"""What a batch would do: everything short of the network, and nothing is written."""

from collections.abc import Iterator
from dataclasses import dataclass

from .failures import failure_of
from .plan import PlannedStudy
from .report import Failure
from .stopwatch import Stopwatch
from .study_run import prepare_study
from .translate import Job


@dataclass(frozen=True, slots=True)
class DryRow:
    """One study: its plan, its tiles if it is due, and why it would fail if that is known."""

    planned: PlannedStudy
    tiles: int = 0
    failure: Failure | None = None


def dry_run(job: Job) -> Iterator[DryRow]:
    """One row a study; studies that are due are read and prepared, one at a time."""
    for planned in job.plan():
        yield _row(job, planned)


def _row(job: Job, planned: PlannedStudy) -> DryRow:
    if planned.action != "translate":
        return DryRow(planned, failure=planned.refusal)
    watch = Stopwatch()
    try:
        ready = prepare_study(planned.study, job.model, job.settings, watch)
    except Exception as error:  # as in a batch, a study's trouble is its own
        return DryRow(planned, failure=failure_of(error, watch.stage))
    return DryRow(planned, tiles=len(ready.tiling))
