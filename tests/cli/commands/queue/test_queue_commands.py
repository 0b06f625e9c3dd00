"""submit, worker and jobs as people use them, with real worker processes."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Generator
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
import sqlalchemy as sa
from support.batch_world import scan, tiny_model
from support.dicom_phantoms import PATIENT, PATIENT_ID, Phantom
from support.queue_world import COMMAND, QueueWorld, children, handles, spares
from support.waiting import eventually

from cuda_cyclegan.cli.render.jobs_watch import fitting
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.liveness import life
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.state import SchedulingClass
from cuda_cyclegan.pipelines.jobs.queue.tables import QueueTables
from cuda_cyclegan.pipelines.jobs.worker.messages import JobEnded

pydicom: Any = _pydicom


@pytest.fixture
def world(tmp_path: Path) -> Generator[QueueWorld]:
    made = QueueWorld(tmp_path)
    yield made
    made.close()


def test_a_batch_from_submission_to_summary(world: QueueWorld) -> None:
    world.scans(3)
    (world.inputs / "empty.nii").touch()
    batch = world.submit("--name", "afternoon", "--preview")
    assert "afternoon" in world.did("jobs")
    world.work()
    assert world.made() == {"000.nii", "001.nii", "002.nii"}
    assert (world.output / "000.nii.preview.png").exists()
    listed = world.did("jobs", batch)
    assert "4 jobs: 3 done, 1 failed" in listed
    assert "No worker is running" not in listed, "and none is needed"
    assert "failed: empty.nii: unreadable: " in listed
    summary = world.run("jobs", "summary", batch)
    assert summary.exit_code == 1
    assert "3 translated, 1 failed" in summary.stdout
    assert "empty.nii" in summary.stderr
    summary = world.run("jobs", "summary", world.submit("--overwrite"))
    assert "4 studies in 0.00 s: 4 open" in summary.stdout
    assert "No worker is running; 'cuda-cyclegan worker' does the jobs" in world.did("jobs")

    scan(world.inputs / "empty.nii")
    assert "1 job queued again" in world.did("jobs", "retry", batch)
    world.work()
    assert world.run("jobs", "summary", batch).exit_code == 0
    assert "4 translated" in world.did("jobs", "summary", batch)


def test_a_summary_is_stored_as_a_report_and_as_a_page(world: QueueWorld) -> None:
    world.scans(1)
    (world.inputs / "empty.nii").touch()
    batch = world.submit("--preview")
    world.work()
    report, page = world.folder / "night.json", world.folder / "night.html"
    files = ["--report", str(report), "--html", str(page)]
    assert world.run("jobs", "summary", batch, *files).exit_code == 1
    assert json.loads(report.read_text())["totals"]["translated"] == 1
    assert json.loads(report.read_text())["settings"]["precision"] is None
    assert "1 failure" in page.read_text()
    assert "Middle slices of 000.nii" in page.read_text()
    assert "1 translated, 1 failed" in world.did("report", str(report))
    refused = world.run("jobs", "summary", batch, *files)
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    assert world.run("jobs", "summary", batch, *files, "--force").exit_code == 1
    printed = world.run("jobs", "summary", batch, "--report", "-")
    assert json.loads(printed.stdout)["totals"]["failed"] == 1


def test_jobs_tells_who_holds_what_and_what_waits_until_when(world: QueueWorld) -> None:
    world.scans(1)
    batch = world.submit("--overlap", "0.5")
    world.submit("--at", "2100-01-01T00:00")
    world.submit("--window", "03:00-03:01", "--overlap", "0.3")
    with QueueTables(queue_place(world.queue), create=False) as tables:
        assert Claims(tables, "ward:anna:1a2b:cuda:0", batch).take(SchedulingClass("normal"))
    with life(queue_place(world.queue), "cpu"):
        told = world.did("jobs")
        assert json.loads(world.did("jobs", "--json"))["workers"] == 1
    assert f"At work: {batch}/00001 000.nii, on cuda:0 of anna@ward since 20" in told
    assert "Later: 1 job queued for 03:00-03:01, 1 job waits until 2100-01-01 00:00" in told
    assert "No worker is running" not in told
    assert json.loads(world.did("jobs", "--json"))["workers"] == 0


def test_a_submission_ends_with_the_next_step(world: QueueWorld) -> None:
    world.scans(1)
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    done = world.run("submit", *paths)
    batch = done.stdout.strip()
    assert done.stderr.splitlines()[-1] == (
        f"No worker is running; to begin: cuda-cyclegan worker; to look: cuda-cyclegan jobs {batch}"
    )
    with life(queue_place(world.queue), "cpu"):
        again = world.run("submit", *paths, "--overlap", "0.5", "--queue", world.queue)
    assert "1 worker is running; to look: cuda-cyclegan jobs " in again.stderr
    assert again.stderr.splitlines()[-1].endswith(f"--queue {world.queue}")


def test_a_job_may_have_one_named_file_as_its_result_beside_the_scan(world: QueueWorld) -> None:
    world.scans(1)
    source, target = world.inputs / "000.nii", world.inputs / "made.nii.gz"
    paths = ["--model", str(world.model), "--output", str(target)]
    batch = world.did("submit", str(source), *paths).strip()
    world.work()
    assert [job["state"] for job in world.jobs(batch)] == ["done"]
    assert target.is_file()


def test_a_result_equals_that_of_translate_and_is_kept_afterwards(world: QueueWorld) -> None:
    world.scans(2)
    paths = [str(world.inputs), "--model", str(world.model), "--output"]
    world.did("translate", *paths, str(world.folder / "direct"))
    world.submit()
    world.work()
    for name in world.made():
        direct = (world.folder / "direct" / name).read_bytes()
        assert (world.output / name).read_bytes() == direct
    assert "2 up to date" in world.did("translate", *paths, str(world.output))
    batch = world.submit()
    world.work()
    assert {job["result"]["status"] for job in world.jobs(batch)} == {"up to date"}


def test_inputs_and_models_that_went_away_fail_alone(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit()
    (world.inputs / "000.nii").unlink()
    world.work()
    gone, done = world.jobs(batch)
    assert (gone["state"], done["state"]) == ("failed", "done")
    assert "does not exist" in gone["reason"]

    scan(world.inputs / "000.nii")
    world.did("jobs", "retry", batch)
    tiny_model(world.model, seed=1)
    world.work()
    assert "another model" in world.jobs(batch)[0]["reason"]
    world.did("jobs", "retry", batch)
    world.model.unlink()
    world.work()
    assert world.jobs(batch)[0]["state"] == "failed"


def test_a_killed_worker_is_replaced_and_its_job_done(world: QueueWorld) -> None:
    world.scans(20)
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: len(world.made()) >= 3)
    [child] = children(worker.pid)
    os.kill(child, signal.SIGKILL)
    eventually(lambda: len(world.made()) == 20)
    eventually(lambda: all(job["state"] == "done" for job in world.jobs(batch)))
    [successor] = children(worker.pid)
    assert successor != child
    worker.terminate()
    _, log = worker.communicate()
    assert worker.returncode == 0
    assert "killed by SIGKILL" in log
    assert not [path for path in world.output.rglob("*") if path.name.endswith(".part")]


def test_a_process_that_waits_for_anothers_end_may_be_killed_itself(world: QueueWorld) -> None:
    world.scans(20)
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: len(world.made()) >= 3 and len(spares(worker.pid)) == 1)
    [child], [spare] = children(worker.pid), spares(worker.pid)
    os.kill(spare, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    eventually(lambda: all(job["state"] == "done" for job in world.jobs(batch)))
    [successor] = children(worker.pid)
    assert successor not in (child, spare)
    worker.terminate()
    worker.communicate()
    assert worker.returncode == 0
    assert not any(Path(f"/proc/{process}").exists() for process in (child, spare, successor))


def test_two_workers_share_a_folder_and_stop_at_the_end_of_their_jobs(world: QueueWorld) -> None:
    world.scans(60, (40, 40, 40))  # work for longer than a worker pauses between its questions
    batch = world.submit()
    world.did("jobs", "pause")
    first, second = world.start("worker"), world.start("worker")
    for worker in (first, second):
        assert worker.stderr is not None
        assert any("waiting for jobs that may start" in line for line in worker.stderr)
    world.did("jobs", "resume")
    eventually(lambda: len({job["worker"] for job in world.jobs(batch) if job["worker"]}) == 2)
    first.send_signal(signal.SIGTERM)
    _, log = first.communicate()
    assert first.returncode == 0
    assert log.count(" started") == log.count(" translated") + log.count(" interrupted")
    assert log.count(" interrupted") <= 1  # one that was read ahead
    eventually(lambda: all(job["state"] == "done" for job in world.jobs(batch)))
    second.send_signal(signal.SIGINT)
    _, other = second.communicate()
    assert log.count(" translated") + other.count(" translated") == 60
    lines = (world.output / ".cuda-cyclegan" / "manifest.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    assert sum(entry["status"] == "written" for entry in written) == 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_worker_that_is_stopped_while_it_starts_ends(
    world: QueueWorld, number: signal.Signals
) -> None:
    worker = world.start("worker", "--device", "cpu")
    eventually(lambda: handles(worker.pid, signal.SIGHUP))
    assert children(worker.pid) == []
    worker.send_signal(number)
    assert worker.wait(timeout=20) == 0


def test_ctrl_c_while_a_worker_starts_is_told_without_a_traceback(world: QueueWorld) -> None:
    """A terminal sends it to every process."""
    worker = world.start("worker", "--device", "cpu", start_new_session=True)
    eventually(lambda: handles(worker.pid, signal.SIGHUP))
    os.killpg(worker.pid, signal.SIGINT)
    _, log = worker.communicate(timeout=20)
    assert worker.returncode == 0
    assert "Traceback" not in log


def test_a_worker_says_that_nothing_may_start_now(world: QueueWorld) -> None:
    world.scans(1)
    world.submit("--at", "2100-01-01T00:00")
    worker = world.start("worker", "--device", "cpu", "--until-empty")
    _, log = worker.communicate()
    assert worker.returncode == 0
    told = (
        " cpu: no job is left that may start now; 1 job waits until 2100-01-01 00:00; --wait waits"
    )
    assert log.endswith(f"{told}\n")


def test_a_worker_that_waits_stays_until_the_last_job_has_run(world: QueueWorld) -> None:
    world.scans(1)
    soon = datetime.now() + timedelta(seconds=4)
    batch = world.submit("--at", soon.isoformat())
    log = ended(world, "--until-empty", "--wait")
    assert re.search(r"waiting for jobs that may start; 1 job waits until \d{4}-\d\d-\d\d ", log)
    assert log.endswith(" cpu: no job is left that may start now\n")
    assert [job["state"] for job in world.jobs(batch)] == ["done"]
    assert world.run("worker", "--wait").exit_code == 2


def test_a_worker_does_the_jobs_of_one_batch_only(world: QueueWorld) -> None:
    world.scans(2)
    first = world.submit()
    second = world.submit("--overlap", "0.5")
    log = ended(world, "--until-empty", "--only", second)
    assert log.count(" translated") == 2
    assert {job["state"] for job in world.jobs(second)} == {"done"}
    assert {job["state"] for job in world.jobs(first)} == {"queued"}
    unknown = world.run("worker", "--only", "20261121-aaaaaa")
    assert (unknown.exit_code, "holds no batch" in unknown.stderr) == (2, True)


def test_a_worker_names_studies_and_its_status_tells_failures_if_asked(world: QueueWorld) -> None:
    world.scans(1)
    (world.inputs / "empty.nii").touch()
    batch = world.submit()
    log = ended(world, "--until-empty", "--fail-on-error", status=1)
    assert re.search(rf" cpu: {batch}/00001 translated: 000.nii, \d\.\d\d s$", log, re.MULTILINE)
    assert re.search(rf" cpu: {batch}/00002 failed: empty.nii.*: unreadable: ", log)
    world.did("jobs", "retry", batch)
    ended(world, "--until-empty")


def test_a_pause_is_what_a_worker_waits_for(world: QueueWorld) -> None:
    world.scans(1)
    world.submit()
    world.did("jobs", "pause")
    log = ended(world, "--until-empty")
    assert "now; paused: no job starts until 'jobs resume'; 1 job queued; --wait waits" in log


def ended(world: QueueWorld, *options: str, status: int = 0) -> str:
    """What a worker on the CPU logged until its end."""
    worker = world.start("worker", "--device", "cpu", *options)
    _, log = worker.communicate(timeout=120)
    assert worker.returncode == status, log
    return log


def test_a_worker_whose_parent_is_killed_ends(world: QueueWorld) -> None:
    worker = world.start("worker")
    eventually(lambda: len(children(worker.pid)) == 1)
    [child] = children(worker.pid)
    worker.kill()
    worker.wait()
    eventually(lambda: not Path(f"/proc/{child}").exists())


def test_a_closed_window_keeps_jobs_and_a_pause_all(world: QueueWorld) -> None:
    now = datetime.now()
    opens, closes = now + timedelta(hours=2), now + timedelta(hours=3)
    world.scans(2)
    later = world.submit("--window", f"{opens:%H:%M}-{closes:%H:%M}")
    world.work()
    assert {job["state"] for job in world.jobs(later)} == {"queued"}
    assert f"queued for {opens:%H:%M}" in world.did("jobs", later)
    world.did("jobs", "cancel", later)
    batch = world.submit()
    world.did("jobs", "pause")
    world.work()
    assert {job["state"] for job in world.jobs(batch)} == {"queued"}
    assert "Paused" in world.did("jobs")
    world.did("jobs", "resume")
    world.work()
    assert {job["state"] for job in world.jobs(batch)} == {"done"}


def test_a_job_keeps_private_elements_if_its_submission_asked(world: QueueWorld) -> None:
    Phantom().write(world.inputs / "ct")
    world.submit("--keep-private-tags")
    world.work()
    for path in world.output.rglob("*.dcm"):
        assert pydicom.dcmread(path).private_block(0x0019, "MAKER")[1].value == "secret"
    assert len(list(world.output.rglob("*.dcm"))) == 12


def test_job_records_name_no_patient(world: QueueWorld) -> None:
    phantom = Phantom()
    phantom.write(world.inputs / "ct")
    batch = world.submit()
    world.work()
    told = world.did("jobs", batch, "--json") + world.did("jobs", "summary", batch)
    files = [path for path in Path(world.queue).parent.rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files)
    for secret in (*PATIENT.split("^"), PATIENT_ID, phantom.study, phantom.series, "Roe"):
        assert secret not in told
        assert secret.encode() not in stored


def test_what_cannot_be_done_along_with_another_is_not_queued_and_said(world: QueueWorld) -> None:
    world.inputs.mkdir()
    for name in ("a.mha", "a.nrrd"):
        (world.inputs / name).touch()
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    submitted = world.run("submit", *paths, "--format", "nifti")
    assert submitted.exit_code == 1
    assert "1 study queued" in submitted.stderr
    assert "a.nrrd is not queued: its result would overwrite that of a.mha" in submitted.stderr
    assert len(world.jobs(submitted.stdout.strip())) == 1


def test_what_cannot_have_the_format_is_not_queued_and_said(world: QueueWorld) -> None:
    world.scans(1)
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    submitted = world.run("submit", *paths, "--format", "dicom")
    assert submitted.exit_code == 1
    assert "000.nii is not queued: it is no DICOM series" in submitted.stderr
    Phantom().write(world.inputs / "ct")
    submitted = world.run("submit", *paths, "--format", "dicom")
    assert submitted.exit_code == 1
    assert "1 study queued" in submitted.stderr


def test_a_large_batch_is_watched_by_the_jobs_that_run(world: QueueWorld) -> None:
    world.scans(30)
    batch = world.submit()
    with open_queue(queue_place(world.queue)) as queue:
        assert len(fitting(queue, batch, 40)) == 34
        with QueueTables(queue_place(world.queue), create=False) as tables:
            claims = Claims(tables, "one")
            for _ in range(20):
                claim = claims.take(SchedulingClass("normal"))
                assert claim
                if not claim.job.endswith("20"):
                    claims.end(claim, {}, well=True)
        shown = fitting(queue, batch, 10)
    assert [line.split()[0] for line in shown[2:]] == ["019.nii", "30", "No"]
    assert shown[-2] == "30 jobs: 10 queued, 1 running, 19 done"


def test_a_watch_leaves_the_last_state_and_nothing_else_on_the_screen(world: QueueWorld) -> None:
    world.scans(1)
    (world.inputs / f"{'long' * 40}.nii").touch()
    batch = world.submit()
    world.work()
    terminal, end = os.openpty()
    command = [*COMMAND, "jobs", batch, "--watch", "--queue", world.queue]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(command, stdout=end, stderr=end, env=environment)
    os.close(end)
    said = b""
    with contextlib.suppress(OSError):  # what a terminal without a program ends with
        while piece := os.read(terminal, 4096):
            said += piece
    os.close(terminal)
    assert process.wait() == 0
    left = said.decode().replace("\r", "").rpartition("\x1b[2K")[2]
    assert "2 jobs: 1 done, 1 failed" in left
    assert left.count("000.nii") == 1
    drawn = said.decode().partition("\x1b[2K")[0].replace("\x1b[?25l", "")
    assert max(map(len, drawn.replace("\r", "").splitlines())) <= 80, (
        "nothing wraps while it is drawn"
    )


def test_a_watched_folder_becomes_jobs(world: QueueWorld) -> None:
    world.inputs.mkdir()
    paths = ["--model", str(world.model), "--output", str(world.output)]
    watch = world.start("watch", str(world.inputs), *paths, "--settle", "0.5")
    scan(world.inputs / "a.nii")
    eventually(lambda: world.run("jobs").stdout.count(" 1 ") == 1)
    scan(world.inputs / "b.nii")
    eventually(lambda: len(world.did("jobs").splitlines()) == 5)
    watch.terminate()
    _, log = watch.communicate()
    assert log.count("1 study queued") == 2
    assert log.splitlines()[0].endswith(f" watching {world.inputs}")
    world.work()
    assert world.made() == {"a.nii", "b.nii"}


def test_what_cannot_be_is_refused_in_one_sentence(world: QueueWorld) -> None:
    world.scans(1)
    for arguments, why in [
        (["jobs"], "no queue at"),
        (["jobs", "--queue", "mysql://me:secret@host/db"], "neither a file nor a valid"),
        (["worker", "--queue", f"{world.folder}/none/q.db", "--device", "cuda:0"], "cuda:0"),
    ]:
        refused = world.run(*arguments)
        assert refused.exit_code in (2, 4)
        assert why in refused.stderr
        assert "Traceback" not in refused.stderr
        assert "secret" not in refused.stderr
    batch = world.submit()
    commands = ["cancel", "retry", "summary", "show", "show --json", "show --watch"]
    for what, name in product(commands, ["20200101-nobody", ""]):
        unknown = world.run("jobs", *what.split(), name)
        assert (unknown.exit_code, "no batch" in unknown.stderr, unknown.stdout) == (2, True, "")
    assert "1 job cancelled" in world.did("jobs", "cancel", f"{batch}/00001")
    assert stat.S_IMODE(Path(world.queue).stat().st_mode) == 0o600
    Path(world.queue).parent.chmod(0o777)
    refused = world.run("jobs")
    assert refused.exit_code == 2
    assert "Other users can write" in refused.stderr


def test_cancelling_stops_a_running_job_and_leaves_nothing(world: QueueWorld) -> None:
    scan(world.inputs / "large.nii", shape=(320, 320, 320))
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: world.jobs(batch)[0]["state"] == "running")
    world.did("jobs", "cancel", batch)
    assert worker.stderr is not None
    assert any(" interrupted" in line for line in worker.stderr)
    assert world.jobs(batch)[0]["state"] == "cancelled"
    assert world.made() == set()
    world.scans(1)
    world.submit()
    eventually(lambda: "000.nii" in world.made())


def test_a_second_signal_hands_the_job_back(world: QueueWorld) -> None:
    scan(world.inputs / "large.nii", shape=(320, 320, 320))
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: world.jobs(batch)[0]["state"] == "running")
    worker.terminate()
    assert worker.stderr is not None
    next(line for line in worker.stderr if "once more" in line)
    worker.terminate()
    worker.communicate()
    assert worker.returncode == 0
    assert world.jobs(batch)[0]["state"] == "queued"
    assert world.made() == set()


def test_a_job_that_kills_its_workers_is_given_up(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit()
    with QueueTables(queue_place(world.queue), create=False) as tables:
        for name in ("first", "second", "third"):
            claims = Claims(tables, name)
            taken = claims.take(SchedulingClass("normal"))
            assert taken is not None
            assert taken.job == f"{batch}/00001"
            claims.take_over(claims.held()[name])
    told = world.work()
    assert JobEnded(f"{batch}/00001", "000.nii", None) in told
    poison, harmless = world.jobs(batch)
    assert (poison["state"], harmless["state"]) == ("given up", "done")
    assert "3 workers died of it" in poison["reason"]
    assert "given up: 000.nii" in world.did("jobs", batch)
    assert "000.nii" in world.run("jobs", "summary", batch).stderr


def test_a_job_of_a_newer_program_and_a_lost_folder_fail_alone(world: QueueWorld) -> None:
    world.scans(3)
    batch = world.submit()
    with QueueTables(queue_place(world.queue), create=False) as tables, tables.begin() as writing:
        inputs = tables.inputs
        for number, payload in (("00001", '{"version": 99}'), ("00002", "damaged")):
            stored = json.dumps({"positionalArgs": [payload], "namedArgs": {}})
            where = inputs.c.workflow_uuid == f"{batch}/{number}"
            writing.execute(sa.update(inputs).where(where).values(inputs=stored))
    world.output.write_text("a file stands where the folder should be")
    world.work()
    newer, damaged, lost = world.jobs(batch)
    assert "newer version" in newer["reason"]
    assert "cannot be read" in damaged["reason"]
    assert lost["reason"].startswith("write: ")
    assert world.run("jobs", "summary", batch).exit_code == 1
    assert "newer version" in world.did("jobs", batch)


def test_a_damaged_row_is_set_aside_and_stops_nothing(world: QueueWorld) -> None:
    world.scans(5)
    batch = world.submit()
    with QueueTables(queue_place(world.queue), create=False) as tables, tables.begin() as writing:
        inputs = tables.inputs
        one, two, three = (f"{batch}/0000{number}" for number in (1, 2, 3))
        writing.execute(sa.update(inputs).where(inputs.c.workflow_uuid == one).values(inputs="{"))
        writing.execute(sa.delete(inputs).where(inputs.c.workflow_uuid == two))
        number = '{"positionalArgs": ["{\\"version\\": 1, \\"output\\": 7}"]}'
        where = inputs.c.workflow_uuid == three
        writing.execute(sa.update(inputs).where(where).values(inputs=number))
    assert "5 queued" in world.did("jobs", batch)
    world.work()
    rows = world.jobs(batch)
    assert [row["state"] for row in rows] == ["failed"] * 3 + ["done"] * 2
    assert all("This job cannot be read" in row["reason"] for row in rows[:3])
    assert batch in world.did("jobs")
    assert "2 translated, 3 failed" in world.run("jobs", "summary", batch).stdout
    assert "3 jobs queued again" in world.did("jobs", "retry", batch)
    assert "3 jobs cancelled" in world.did("jobs", "cancel", batch)
    assert world.run("jobs", "summary", f"{batch}/00001").exit_code == 2


def test_what_is_open_already_is_not_queued_again(world: QueueWorld) -> None:
    world.scans(2)
    old = world.submit()
    world.did("jobs", "cancel", old)
    new = world.submit()
    assert "0 jobs queued again, 2 for equal work open already" in world.did("jobs", "retry", old)
    world.did("jobs", "cancel", f"{new}/00001")
    assert "1 job queued again, 1 for equal work open already" in world.did("jobs", "retry", old)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of a quarter of a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_fails_the_jobs_that_do_not_fit(world: QueueWorld, small_disk: Path) -> None:
    world.output = small_disk / "out"
    scan(world.inputs / "large.nii", shape=(64, 64, 64))
    scan(world.inputs / "small.nii")
    batch = world.submit()
    world.work()
    large, small = world.jobs(batch)
    assert (large["state"], small["state"]) == ("failed", "done")
    assert "the disk is full; make room" in large["reason"]
    assert world.made() == {"small.nii"}
    assert not [path for path in world.output.rglob("*") if path.name.endswith(".part")]


def test_a_full_disk_of_the_queue_is_told(world: QueueWorld, small_disk: Path) -> None:
    small_disk.chmod(0o700)
    world.queue = str(small_disk / "queue.db")
    world.scans(1)
    refused = world.run(
        *("submit", str(world.inputs), "--model", str(world.model)),
        *("--output", str(world.output)),
    )
    assert refused.exit_code == 2
    assert "disk or server is there and not full" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_closed_terminal_ends_all_processes_in_order(world: QueueWorld) -> None:
    """SIGHUP comes to each of them; the first one ends last."""
    scan(world.inputs / "large.nii", shape=(200, 200, 200))
    batch = world.submit()
    worker = world.start("worker", start_new_session=True)
    eventually(lambda: world.jobs(batch)[0]["state"] == "running")
    [child] = children(worker.pid)
    os.killpg(worker.pid, signal.SIGHUP)
    worker.communicate()
    assert worker.returncode == 0
    assert not Path(f"/proc/{child}").exists()
    assert world.jobs(batch)[0]["state"] in ("done", "queued")  # as far as the network had come
