"""The log of `worker`: one line a job, and none lost with a worker that dies."""

from pathlib import Path

import pytest

from cuda_cyclegan.cli.commands.queue.worker import JobLog
from cuda_cyclegan.pipelines.jobs.events import JobDeferred, JobEnded, JobStarted
from cuda_cyclegan.pipelines.report.report import Failure, StudyReport


def row(status: str, failure: Failure | None = None) -> StudyReport:
    return StudyReport("a.nii", Path("a"), Path("b"), status, seconds=2.0, failure=failure)  # pyright: ignore[reportArgumentType]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Without their times."""
    return [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]


def test_a_job_has_one_line_with_its_study_and_what_became_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = JobLog()
    for number, row_ in enumerate(
        (row("translated"), row("failed", Failure("write", "the disk is full.", "write")), None)
    ):
        log.hear("cpu", JobStarted(f"b/{number}", "a.nii"))
        log.hear("cpu", JobEnded(f"b/{number}", "a.nii", row_))
    assert lines(capsys) == [
        "cpu: b/0 translated: a.nii, 2.00 s",
        "cpu: b/1 failed: a.nii, 2.00 s: write: the disk is full.",
        "cpu: b/2 failed permanently: a.nii: it crashed too many workers",
    ]
    assert log.has_failures


def test_a_worker_that_dies_leaves_a_line_with_the_jobs_in_its_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = JobLog()
    log.hear("cpu", JobStarted("b/1", "a.nii"))
    log.hear("cpu", JobEnded("b/1", "a.nii", row("translated")))
    log.hear("cpu", JobStarted("b/2", "c.nii"))
    log.hear("cpu", JobStarted("b/3", "d.nii"))
    log.hear("cuda:0", JobStarted("b/4", "e.nii"))
    log.died("cpu", "killed by SIGKILL")
    log.died("cpu", "killed by SIGKILL")
    assert lines(capsys)[1:] == [
        "cpu: the worker ended while running b/2 (c.nii), b/3 (d.nii) (killed by SIGKILL); "
        "starting a new one",
        "cpu: the worker ended (killed by SIGKILL); starting a new one",
    ]
    assert not log.has_failures


def test_a_batch_that_waits_for_a_disk_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = JobLog()
    for why in ("write: the disk is full.", ""):
        log.hear("cpu", JobStarted("b/1", "a.nii"))
        log.hear("cpu", JobDeferred("b/1", "a.nii", why))
    assert lines(capsys) == [
        "cpu: b/1 waits: a.nii: write: the disk is full. Its batch is retried every minute until "
        "then."
    ]
    log.died("cpu", "killed by SIGKILL")
    assert "while running" not in capsys.readouterr().err
    assert not log.has_failures
