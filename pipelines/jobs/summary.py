"""Report of a batch of jobs, in the form of `translate`'s report of a run."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ...engine.decoding import FieldError
from ..errors import QueueError
from ..report.codec import row_of_job
from ..report.report import BatchReport, Failure, ModelName, StudyReport, Use
from ..stopwatch import STAGES
from ..timestamps import iso_time
from .queue.job import OPEN, JobRow, StudyJob


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
            Path(first.model).stem, Path(first.model), first.model_sha256, rows[0].established
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
