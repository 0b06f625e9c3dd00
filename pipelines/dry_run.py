"""What a batch would do and cost: everything short of the network, and nothing is written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..engine.tuning import cache_folder
from .failures import failure_of
from .footprint import footprint
from .plan import PlannedStudy
from .rates import RateCache, Rates, Work, wall_seconds
from .report import Failure
from .stopwatch import Stopwatch
from .study_run import prepare_study, read_study
from .translate import Job


@dataclass(frozen=True, slots=True)
class DryRow:
    """One study: its plan, what it would take if it is due, and why it would fail if it would.

    host_bytes: held at its largest, besides the program itself. work: None if nothing of the kind
    was measured on this machine yet.
    """

    planned: PlannedStudy
    tiles: int = 0
    host_bytes: int = 0
    work: Work | None = None
    failure: Failure | None = None


def dry_run(job: Job) -> Iterator[DryRow]:
    """One row a study; studies that are due are read and prepared, one at a time."""
    rates = RateCache(cache_folder()).get(job.rate_key)
    for planned in job.plan():
        yield _row(job, planned, rates)


def batch_seconds(rows: Sequence[DryRow]) -> float | None:
    """Wall time of the whole batch; None if it is not known for each study that is due."""
    due = [row for row in rows if row.tiles]
    works = [row.work for row in due if row.work]
    return wall_seconds(works) if due and len(works) == len(due) else None


def _row(job: Job, planned: PlannedStudy, rates: Rates | None) -> DryRow:
    if planned.action != "translate":
        return DryRow(planned, failure=planned.refusal)
    watch = Stopwatch()
    try:
        volume = read_study(planned.study, job.settings, watch)
        held = footprint(volume, job.model.card, job.settings.patch).peak
        study = prepare_study(volume, job.model, job.settings, watch)
    except Exception as error:  # as in a batch, a study's trouble is its own
        return DryRow(planned, failure=failure_of(error, watch.stage))
    tiles = len(study.tiling)
    work = Work.of(volume.voxels.size, tiles, rates) if rates else None
    return DryRow(planned, tiles, held, work)
