"""The log of `worker`: one line a job, and none lost with a worker that dies."""

import json
import re
import urllib.request
from pathlib import Path

import pytest
from support.queue_world import QueueWorld
from support.waiting import wait_for

from cuda_cyclegan.cli.commands.queue.worker import JobLog, _failure_hook
from cuda_cyclegan.pipelines.jobs.events import JobDeferred, JobEnded, JobStarted, NothingLeft
from cuda_cyclegan.pipelines.jobs.queue.job import OpenJobs
from cuda_cyclegan.pipelines.report.report import Failure, StudyReport


def row(status: str, failure: Failure | None = None) -> StudyReport:
    return StudyReport("a.nii", Path("a"), Path("b"), status, seconds=2.0, failure=failure)  # pyright: ignore[reportArgumentType]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines without their times."""
    return [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]


def test_a_job_has_one_line_with_its_study_and_what_became_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = JobLog(_failure_hook(""))
    for number, row_ in enumerate(
        (row("translated"), row("failed", Failure("write", "the disk is full.", "write")), None)
    ):
        log.handle("cpu", JobStarted(f"b/{number}", "a.nii"))
        log.handle("cpu", JobEnded(f"b/{number}", "a.nii", row_))
    assert lines(capsys) == [
        "cpu: b/0 translated: a.nii, 2.00 s",
        "cpu: b/1 failed: a.nii, 2.00 s: write: the disk is full.",
        "cpu: b/2 failed permanently: a.nii: it crashed too many workers",
    ]
    assert log.has_failures


def test_waiting_is_advised_for_jobs_that_start_by_themselves_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = JobLog(_failure_hook(""))
    held = OpenJobs(2, "waiting")
    log.handle("cpu", NothingLeft((held,), is_paused=False))
    log.handle("cpu", NothingLeft((held, OpenJobs(1, "queued")), is_paused=False))
    first, second = lines(capsys)
    reported = (
        "cpu: no job is left that may start now; 2 jobs held until 'jobs run-now' or 'jobs move"
    )
    assert first == f"{reported} --at'"
    assert second.endswith("; add --wait to wait for them")


def test_a_worker_that_dies_leaves_a_line_with_the_jobs_in_its_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = JobLog(_failure_hook(""))
    log.handle("cpu", JobStarted("b/1", "a.nii"))
    log.handle("cpu", JobEnded("b/1", "a.nii", row("translated")))
    log.handle("cpu", JobStarted("b/2", "c.nii"))
    log.handle("cpu", JobStarted("b/3", "d.nii"))
    log.handle("cuda:0", JobStarted("b/4", "e.nii"))
    log.died("cpu", "killed by SIGKILL")
    log.died("cpu", "killed by SIGKILL")
    assert lines(capsys)[1:] == [
        "cpu: the worker ended while running b/2 (c.nii), b/3 (d.nii) (killed by SIGKILL); "
        "starting a new one",
        "cpu: the worker ended (killed by SIGKILL); starting a new one",
    ]
    assert not log.has_failures


def test_a_batch_that_waits_for_a_disk_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = JobLog(_failure_hook(""))
    for why in ("write: the disk is full.", ""):
        log.handle("cpu", JobStarted("b/1", "a.nii"))
        log.handle("cpu", JobDeferred("b/1", "a.nii", why))
    assert lines(capsys) == [
        "cpu: b/1 waits: a.nii: write: the disk is full. Its batch is retried every minute until "
        "then."
    ]
    log.died("cpu", "killed by SIGKILL")
    assert "while running" not in capsys.readouterr().err
    assert not log.has_failures


@pytest.mark.process
def test_a_worker_logs_to_a_file_and_runs_the_command_after_failures(world: QueueWorld) -> None:
    world.scans(1)
    (world.inputs / "empty.nii").touch()
    world.submit()
    log, counts = world.folder / "worker.log", world.folder / "counts"
    hook = f"echo $CUDA_CYCLEGAN_TRANSLATED $CUDA_CYCLEGAN_FAILED > '{counts}'"
    options = ["--log-file", str(log), "--log-format", "json", "--on-failure", hook]
    worker = world.start("worker", "--device", "cpu", "--until-empty", *options)
    assert worker.wait() == 0
    found = {
        line["study"]: line
        for line in map(json.loads, log.read_text().splitlines())
        if "study" in line
    }
    assert found["000.nii"]["status"] == "translated"
    assert (found["empty.nii"]["status"], found["empty.nii"]["level"]) == ("failed", "warning")
    assert counts.read_text() == "1 1\n"


@pytest.mark.process
def test_a_worker_serves_metrics(world: QueueWorld) -> None:
    world.scans(1)
    world.submit()
    worker = world.start("worker", "--device", "cpu", "--metrics", "127.0.0.1:0")
    reported = wait_for(worker, "metrics at ", "000.nii")
    [url] = re.findall(r"metrics at (\S+)", reported)
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    assert 'cuda_cyclegan_studies_total{outcome="translated"} 1.0' in text
    assert "cuda_cyclegan_workers 1.0" in text
    assert world.run("worker", "--metrics", "9477").exit_code == 2
