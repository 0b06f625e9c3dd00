"""Sums of jobs: the report of one batch, as `translate` writes of a run, and a night's overview."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ...engine.decoding import FieldError
from ..errors import QueueError
from ..report.codec import row_of_job
from ..report.report import BatchReport, Failure, FailureClass, ModelName, StudyReport, Use
from ..report.suspicion import NO_ORIGIN, Origin, Suspicion, reading_order, suspicions
from ..stopwatch import STAGES
from ..timestamps import iso_time
from .queue.job import OPEN, JobPaths, JobRow, OpenJobs, StudyJob, counted_open
from .queue.queue import Queue

JobOutcome: TypeAlias = Literal["translated", "up to date", "failed", "cancelled"]
OUTCOMES: tuple[JobOutcome, ...] = get_args(JobOutcome)
_OUTCOME: Mapping[str, JobOutcome] = {"interrupted": "cancelled"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs of an overview.

    batch: number of their batch, or one job as `<batch>/<number>`; "" for any. since: earliest end
    of those that ended; None for any. name: pattern for the names of their batches, as in a shell;
    "" for any. route: AE title of the node's route; "" for any.
    """

    batch: str = ""
    since: datetime | None = None
    name: str = ""
    route: str = ""

    def has(self, row: JobRow) -> bool:
        """Whether a job's batch and route are selected."""
        is_named = not self.name or fnmatchcase(row.name, self.name)
        return is_named and self.route in ("", row.route)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """Job that ended. job: `<batch>/<number>`. row: row of its study. output: folder of results;
    "" if it cannot be read. origin: model and settings; results of one are compared.
    """

    job: str
    row: StudyReport
    output: str
    origin: Origin = NO_ORIGIN

    @property
    def outcome(self) -> JobOutcome:
        """Outcome of the job."""
        return _OUTCOME.get(self.row.status) or _known(self.row.status)


def _known(status: str) -> JobOutcome:
    return next(each for each in OUTCOMES if each == status)


@dataclass(frozen=True, slots=True)
class BatchOverview:
    """Selected jobs of one batch.

    batch: number of the batch. name: as given by the user. route: AE title of the node's route.
    work: model and folders of its first job. ended: jobs that ended, in order. open: number of
    jobs that have not. busy: seconds in which any of its jobs was in progress. last: when the last
    one ended, in seconds since 1970; None if none did.
    """

    batch: str
    name: str
    route: str
    work: JobPaths
    ended: tuple[EndedJob, ...]
    open: int
    busy: float
    last: float | None

    def count(self, outcome: JobOutcome) -> int:
        """Return the number of jobs with an outcome."""
        return sum(one.outcome == outcome for one in self.ended)

    @property
    def voxels(self) -> int:
        """Source voxels of the translated studies."""
        return sum(one.row.voxels for one in self.ended if one.outcome == "translated")

    @property
    def voxels_per_second(self) -> float | None:
        """Source voxels of translated studies per busy second."""
        return self.voxels / self.busy if self.voxels and self.busy else None


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of selected jobs.

    selection: the selected jobs. until: time of the overview. batches: those with selected jobs,
    oldest first. waiting: open jobs of them, by state and start. busy: seconds in which any job was
    in progress. paused: whether no job may start. workers: number of living workers.
    """

    selection: Selection
    until: datetime
    batches: tuple[BatchOverview, ...]
    waiting: tuple[OpenJobs, ...] = ()
    busy: float = 0.0
    paused: bool = False
    workers: int = 0

    @property
    def totals(self) -> dict[JobOutcome, int]:
        """Number of jobs by outcome."""
        return {one: sum(batch.count(one) for batch in self.batches) for one in OUTCOMES}

    @property
    def open(self) -> int:
        """Number of jobs that have not ended."""
        return sum(batch.open for batch in self.batches)

    @property
    def failures(self) -> list[EndedJob]:
        """Failed jobs, in order."""
        ended = (one for batch in self.batches for one in batch.ended)
        return [one for one in ended if one.outcome == "failed"]

    def suspicious(self) -> list[tuple[EndedJob, Suspicion]]:
        """Return the jobs with suspicious results, the most suspicious first."""
        ended = [one for batch in self.batches for one in batch.ended]
        found = suspicions([one.row for one in ended], [one.origin for one in ended])
        order = (at for at in reading_order(found) if found[at].is_suspicious)
        return [(ended[at], found[at]) for at in order]

    @property
    def causes(self) -> dict[FailureClass, int]:
        """Number of failures by class, most frequent first."""
        kinds = Counter[FailureClass](
            one.row.failure.kind for one in self.failures if one.row.failure
        )
        return dict(kinds.most_common())

    @property
    def voxels_per_second(self) -> float | None:
        """Source voxels of translated studies per busy second."""
        voxels = sum(batch.voxels for batch in self.batches)
        return voxels / self.busy if voxels and self.busy else None

    @property
    def studies_per_hour(self) -> float | None:
        """Translated studies per busy hour."""
        translated = self.totals["translated"]
        return translated * 3600 / self.busy if translated and self.busy else None


def overview_of(
    queue: Queue, selection: Selection, listed: Sequence[JobRow] | None = None
) -> Overview:
    """Return the overview of the selected jobs of a queue. Raises QueueError or QueueLostError.

    listed: the jobs of the selection's batch, if they were read already.
    """
    if listed is None:
        batch = selection.batch
        listed = queue.jobs(batch) if batch else queue.jobs_since(selection.since)
    rows = [row for row in listed if selection.has(row)]
    by_batch = groupby(rows, key=lambda row: row.job.partition("/")[0])
    groups = sorted(
        ((name, list(found)) for name, found in by_batch),
        key=lambda group: min(row.submitted for row in group[1]),
    )
    return Overview(
        selection,
        datetime.now().astimezone(),
        tuple(_batch(name, found) for name, found in groups),
        counted_open(rows),
        _busy(rows),
        queue.is_paused(),
        queue.workers(),
    )


def _batch(name: str, rows: Sequence[JobRow]) -> BatchOverview:
    ended = [row for row in rows if row.state not in OPEN]
    return BatchOverview(
        name,
        rows[0].name,
        rows[0].route,
        next((row.work for row in rows if row.work.model), JobPaths()),
        tuple(EndedJob(row.job, study_of(row), row.work.output, _origin(row)) for row in ended),
        len(rows) - len(ended),
        _busy(ended),
        max((row.ended for row in ended if row.ended), default=None),
    )


def _busy(rows: Iterable[JobRow]) -> float:
    """Return the seconds in which at least one job was in progress."""
    spans = sorted((row.started, row.ended) for row in rows if row.started and row.ended)
    total, until = 0.0, 0.0
    for start, stop in spans:
        total += max(stop - max(start, until), 0.0)
        until = max(until, stop)
    return total


def report_of(rows: Sequence[JobRow]) -> BatchReport:
    """Return the report of one batch's rows; open jobs count as not reached.

    Raises QueueError if no job can be read.
    """
    first = next((job for row in rows if (job := _job(row))), None)
    if first is None:
        first = StudyJob.from_json(rows[0].payload)
    closed = [row for row in rows if row.state not in OPEN]
    ended = [study_of(row) for row in closed]
    workers = {row.worker for row in rows if row.worker}
    starts = [row.started for row in rows if row.started]
    ends = [row.ended for row in rows if row.ended]
    wall = max(ends) - min(starts) if starts and ends else 0.0
    # The database's clock may have been set back, and some of its times are in whole seconds.
    wall = max([wall, *(study.seconds for study in ended)])
    return BatchReport(
        model=ModelName(
            Path(first.model).stem,
            Path(first.model),
            first.model_sha256,
            rows[0].established,
            rows[0].reference,
        ),
        options=first.options,
        device=", ".join(sorted(workers)),
        output=Path(first.output),
        started=iso_time(rows[0].submitted),
        seconds=wall,
        use=_use(ended, wall, workers),
        studies=tuple(
            _with_transfers(study, row) for study, row in zip(ended, closed, strict=True)
        ),
        skipped=(),
        not_reached=len(rows) - len(ended),
    )


def _with_transfers(study: StudyReport, row: JobRow) -> StudyReport:
    """Return the study with the steps of a node before and after the worker."""
    spent = {stage: max(stop - start, 0.0) for stage, (start, stop) in row.transfers.items()}
    known = {**spent, **study.stages}
    return replace(study, stages={stage: known[stage] for stage in STAGES if stage in known})


def _use(studies: Sequence[StudyReport], wall: float, workers: Collection[str]) -> Use:
    spent = [study.stages for study in studies]
    busy = sum(seconds for stages in spent for seconds in stages.values())
    computing = sum(stages.get("infer", 0.0) for stages in spent)
    return Use(wall, busy, computing, len(workers))


def _job(row: JobRow) -> StudyJob | None:
    try:
        return StudyJob.from_json(row.payload)
    except QueueError:
        return None


def _origin(row: JobRow) -> Origin:
    """Return a job's model and settings; without a chosen precision, those of all others."""
    job = _job(row)
    if job is None:
        return NO_ORIGIN
    options = job.options if job.options.precision else replace(job.options, precision="fp32")
    return Origin(f"{job.model_sha256} {options.resolved().fingerprint()}", row.reference)


def suspicion_of(row: JobRow) -> Suspicion:
    """Judge the result of one job alone, by the model's reference set and the limits for any
    batch.
    """
    [found] = suspicions([study_of(row)], [_origin(row)])
    return found


def study_of(row: JobRow) -> StudyReport:
    """Return the row of a study whose job ended."""
    job = _job(row)
    name, source, output = row.job, Path(), Path()
    if job:
        name, source, output = job.study, Path(job.files[0]), job.target
    if row.row:
        try:
            return row_of_job(row.row, name, source, output)
        except FieldError as error:
            failure = Failure("internal", f"Its outcome cannot be read: {error}.", None)
            return StudyReport(name, source, output, "failed", failure=failure)
    if row.state == "cancelled":
        return StudyReport(name, source, output, "interrupted")
    failure = Failure("internal", row.reason or "The queue's record cannot be read.", None)
    return StudyReport(name, source, output, "failed", failure=failure)
