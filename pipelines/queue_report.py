"""A batch of jobs as the report that `translate` makes of a run."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from .queue_job import StudyJob
from .queue_state import OPEN, JobRow
from .report import BatchReport, Failure, ModelName, StudyReport
from .settings import TranslateSettings
from .study_row import from_json


def report_of(rows: Sequence[JobRow]) -> BatchReport:
    """The report of one batch's rows, at least one; jobs that are open count as not reached."""
    jobs = [StudyJob.from_json(row.payload) for row in rows]
    ended = [_study(row, job) for row, job in zip(rows, jobs, strict=True) if row.state not in OPEN]
    first = jobs[0]
    starts = [row.started for row in rows if row.started]
    ends = [row.ended for row in rows if row.ended]
    return BatchReport(
        model=ModelName(Path(first.model).stem, Path(first.model), first.model_sha256),
        settings=TranslateSettings(
            first.patch, first.overlap, first.blend, first.precision or "fp32", first.volume_index
        ),
        device=", ".join(sorted({row.worker for row in rows if row.worker})),
        output=Path(first.output),
        started=datetime.fromtimestamp(rows[0].submitted).astimezone().isoformat(),
        seconds=max(ends) - min(starts) if starts and ends else 0.0,
        studies=tuple(ended),
        skipped=(),
        not_reached=len(rows) - len(ended),
    )


def _study(row: JobRow, job: StudyJob) -> StudyReport:
    source, output = Path(job.files[0]), job.target
    if "row" in row.result:
        return from_json(row.result["row"], job.study, source, output)
    if row.state == "cancelled":
        return StudyReport(job.study, source, output, "interrupted")
    failure = Failure("internal", row.reason or "", None)
    return StudyReport(job.study, source, output, "failed", failure=failure)
