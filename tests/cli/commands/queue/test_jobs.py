"""Output of `jobs`, and cancelling, retrying and pausing of jobs."""

import contextlib
import json
import os
import re
import stat
from itertools import product
from pathlib import Path

import pytest
from support.pages import json_in
from support.processes import started
from support.queue_world import COMMAND, QueueWorld, closed_window

from cuda_cyclegan.cli.render.queue import fitting
from cuda_cyclegan.pipelines.jobs.events import JobEnded
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.liveness import membership
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables


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
    names = [study["name"] for study in json_in(page.read_text())["studies"]]
    assert [names[int(at)] for at in json_in(page.read_text(), "pictures")] == ["000.nii"]
    assert "1 translated, 1 failed" in world.did("report", str(report))
    refused = world.run("jobs", "summary", batch, *files)
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    assert world.run("jobs", "summary", batch, *files, "--force").exit_code == 1
    printed = world.run("jobs", "summary", batch, "--report", "-")
    assert json.loads(printed.stdout)["totals"]["failed"] == 1


def test_jobs_shows_who_holds_what_and_what_waits_until_when(world: QueueWorld) -> None:
    world.scans(1)
    batch = world.submit("--overlap", "0.5")
    world.submit("--at", "2100-01-01T00:00")
    window = closed_window()
    world.submit("--window", window, "--overlap", "0.3")
    with open_tables(queue_place(world.queue), create=False) as tables:
        assert Claims(tables, "ward:anna:1a2b:cuda:0", batch).claim(SchedulingClass("normal"))
    with open_tables(queue_place(world.queue), create=False) as tables, membership(tables, "cpu"):
        reported = world.did("jobs")
        assert json.loads(world.did("jobs", "--json"))["workers"] == 1
    assert f"Running: {batch}/00001 000.nii, on cuda:0 of anna@ward since 20" in reported
    later = f"Later: 1 job waits for the window {window}, 1 job waits until 2100-01-01 00:00"
    assert later in reported
    assert "No worker is running" not in reported
    assert json.loads(world.did("jobs", "--json"))["workers"] == 0


def test_a_large_batch_is_watched_by_the_jobs_that_run(world: QueueWorld) -> None:
    world.scans(30)
    batch = world.submit()
    with open_queue(queue_place(world.queue)) as queue:
        assert len(fitting(queue, batch, 40)) == 37
        with open_tables(queue_place(world.queue), create=False) as tables:
            claims = Claims(tables, "one")
            for _ in range(20):
                claim = claims.claim(SchedulingClass("normal"))
                assert claim
                if not claim.job.endswith("20"):
                    claims.acknowledge(claim, {}, well=True)
        shown = fitting(queue, batch, 10)
    assert [line.split()[0] for line in shown[2:]] == ["019.nii", "30", "No"]
    assert shown[-2] == "30 jobs: 10 queued, 1 running, 19 done"


@pytest.mark.process
def test_a_watch_leaves_the_last_state_and_nothing_else_on_the_screen(world: QueueWorld) -> None:
    world.scans(1)
    (world.inputs / f"{'long' * 40}.nii").touch()
    batch = world.submit()
    world.work()
    terminal, end = os.openpty()
    command = [*COMMAND, "jobs", batch, "--watch", "--queue", world.queue]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with started(command, stdout=end, stderr=end, env=environment) as process:
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


def test_impossible_request_is_refused_in_one_sentence(world: QueueWorld) -> None:
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
    commands = ["cancel", "retry", "run-now", "summary", "show", "show --json", "show --watch"]
    for what, name in product(commands, ["20200101-nobody", ""]):
        unknown = world.run("jobs", *what.split(), name)
        assert (unknown.exit_code, "no batch" in unknown.stderr, unknown.stdout) == (2, True, "")
    assert "1 job cancelled" in world.did("jobs", "cancel", f"{batch}/00001")
    assert stat.S_IMODE(Path(world.queue).stat().st_mode) == 0o600
    Path(world.queue).parent.chmod(0o777)
    refused = world.run("jobs")
    assert refused.exit_code == 2
    assert "Other users can write" in refused.stderr


def test_jobs_that_wait_are_started_now(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit("--at", "2100-01-01T00:00", "--window", "03:00-03:01")
    world.did("jobs", "pause")
    reported = world.did("jobs", "run-now", f"{batch}/00001")
    assert reported == "1 job may start now\nPaused: no job starts until 'jobs resume'\n"
    world.did("jobs", "resume")
    start = "may start 2100-01-01 03:00 (window 03:00-03:01, not before 2100-01-01 00:00)"
    assert start in world.did("jobs", batch)
    assert "Later: 1 job waits until 2100-01-01 03:00" in world.did("jobs", batch)
    first, second = world.jobs(batch)
    assert (first["state"], first["window"], first["not_before"]) == ("queued", None, None)
    assert (second["state"], second["window"]) == ("waiting", "03:00-03:01")
    world.work()
    assert world.states(batch) == ["done", "waiting"]
    assert world.did("jobs", "run-now", batch) == "1 job may start now\n"
    world.work()
    assert world.states(batch) == ["done"] * 2


def test_jobs_are_held_and_moved(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit()
    assert world.did("jobs", "hold", batch) == "2 jobs held\n"
    assert "2 jobs held until 'jobs run-now' or 'jobs move --at'" in world.did("jobs")
    world.work()
    assert world.states(batch) == ["waiting"] * 2
    moved = world.run("jobs", "move", batch, "--window", "any")
    assert moved.stdout == "2 jobs moved\n"
    assert moved.stderr.startswith("Later: 2 jobs held until 'jobs run-now' or 'jobs move --at'\n")
    other = world.submit("--overlap", "0.5")
    assert world.did("jobs", "cancel", other) == "2 jobs cancelled\n"
    for change in (["move", "--priority", "low"], ["hold"], ["cancel"]):
        reported = world.did("jobs", change[0], other, *change[1:])
        assert re.fullmatch(r"no job \w+: all 2 have ended\n", reported)
    assert world.did("jobs", "run-now", f"{batch}/00001") == "1 job may start now\n"
    moving = ["--at", "2100-01-01T00:00", "--window", "night", "--priority", "low"]
    assert world.did("jobs", "move", f"{batch}/00002", *moving) == "1 job moved\n"
    first, second = world.jobs(batch)
    assert (first["state"], first["priority"]) == ("queued", "normal")
    assert (second["state"], second["window"], second["priority"]) == (
        "waiting",
        "19:00-07:00",
        "low",
    )
    assert second["not_before"].startswith("2100-01-01T00:00")
    assert world.did("jobs", "move", second["job"], "--window", "any") == "1 job moved\n"
    _, second = world.jobs(batch)
    assert (second["window"], second["not_before"][:16]) == (None, "2100-01-01T00:00")
    for wrong in ([], ["--window", "x"], ["--at", "x"]):
        assert world.run("jobs", "move", batch, *wrong).exit_code == 2
    world.work()
    assert world.states(batch) == ["done", "waiting"]


def test_jobs_show_their_model_and_folders(world: QueueWorld) -> None:
    world.scans(1)
    batch = world.submit("--name", "evening")
    about = f"{batch} evening {world.inputs} by {world.model.stem} to {world.output}"
    assert about in world.did("jobs")
    shown = world.did("jobs", batch)
    for line in (f"Model: {world.model}", f"Scans: {world.inputs}", f"Results: {world.output}"):
        assert line in shown
    [listed] = json.loads(world.did("jobs", "--json"))["batches"]
    assert (listed["output"], "work" in listed) == (str(world.output), False)


def test_a_job_that_kills_its_workers_is_abandoned(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit()
    with open_tables(queue_place(world.queue), create=False) as tables:
        for name in ("first", "second", "third"):
            claims = Claims(tables, name)
            taken = claims.claim(SchedulingClass("normal"))
            assert taken is not None
            assert taken.job == f"{batch}/00001"
            claims.reclaim(claims.in_flight()[name])
    reported = world.work()
    assert JobEnded(f"{batch}/00001", "000.nii", None) in reported
    poison, harmless = world.jobs(batch)
    assert (poison["state"], harmless["state"]) == ("given up", "done")
    assert "3 workers crashed while running it" in poison["reason"]
    assert "given up: 000.nii" in world.did("jobs", batch)
    assert "000.nii" in world.run("jobs", "summary", batch).stderr


def test_a_job_of_a_newer_program_and_a_lost_folder_fail_alone(world: QueueWorld) -> None:
    world.scans(3)
    batch = world.submit()
    with open_tables(queue_place(world.queue), create=False) as tables, tables.writing() as writing:
        for number, payload in ((1, '{"version": 99}'), (2, "damaged")):
            damaged = "UPDATE {payloads} SET payload = :payload WHERE number = :number"
            writing.change(damaged, payload=payload, number=number)
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
    with open_tables(queue_place(world.queue), create=False) as tables, tables.writing() as writing:
        damaged = "UPDATE {payloads} SET payload = :payload WHERE number = :number"
        writing.change(damaged, number=1, payload="{")
        writing.change("DELETE FROM {payloads} WHERE number = 2")
        writing.change(damaged, number=3, payload='{"version": 1, "output": 7}')
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
