"""Worker processes as people start and stop them."""

import os
import re
import signal
from typing import Any

import pytest
from support.batch_world import recorded, scan
from support.processes import runs
from support.queue_world import QueueWorld, child_after, children, handles, spares
from support.waiting import ENOUGH, eventually, wait_for

from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables


@pytest.mark.process
def test_a_killed_worker_is_replaced_and_its_job_done(world: QueueWorld) -> None:
    world.scans(20)
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: len(world.made()) >= 3, evidence=lambda: world.did("jobs", batch))
    child = child_after(worker.pid)
    os.kill(child, signal.SIGKILL)
    world.wait_until_done(batch)
    assert len(world.made()) == 20
    child_after(worker.pid, child)
    worker.terminate()
    _, log = worker.communicate()
    assert worker.returncode == 0, log
    assert "killed by SIGKILL" in log
    assert not [path for path in world.output.rglob("*") if path.name.endswith(".part")]


@pytest.mark.slow
def test_a_process_that_waits_for_anothers_end_may_be_killed_itself(world: QueueWorld) -> None:
    world.scans(20)
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: len(world.made()) >= 3 and len(spares(worker.pid)) == 1)
    child, [spare] = child_after(worker.pid), spares(worker.pid)
    os.kill(spare, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    world.wait_until_done(batch)
    successor = child_after(worker.pid, child, spare)
    worker.terminate()
    _, log = worker.communicate()
    assert worker.returncode == 0, log
    assert not any(map(runs, (child, spare, successor)))


@pytest.mark.slow
def test_two_workers_share_a_folder_and_stop_at_the_end_of_their_jobs(world: QueueWorld) -> None:
    world.scans(60, (40, 40, 40))  # work for longer than a worker pauses between its questions
    batches = [world.submit()]
    world.did("jobs", "pause")
    first, second = world.start("worker"), world.start("worker")
    for worker in (first, second):
        wait_for(worker, "waiting for jobs that may start")
    world.did("jobs", "resume")

    def jobs() -> list[dict[str, Any]]:
        return [job for batch in batches for job in world.jobs(batch)]

    def both_have_work() -> bool:
        found = jobs()
        if all(job["state"] == "done" for job in found):  # by one of them, while the other slept
            batches.append(world.submit("--overwrite"))
        return len({job["worker"] for job in found if job["worker"]}) == 2

    eventually(both_have_work)
    first.send_signal(signal.SIGTERM)
    _, log = first.communicate()
    assert first.returncode == 0, log
    reported = [
        line.split()[3] for line in log.splitlines() if any(each in line for each in batches)
    ]
    assert (
        len(set(reported)) == len(reported) == log.count(" translated") + log.count(" interrupted")
    )
    assert log.count(" interrupted") <= 1  # one that was read ahead
    eventually(lambda: all(job["state"] == "done" for job in jobs()))
    second.send_signal(signal.SIGINT)
    _, other = second.communicate()
    assert log.count(" translated") + other.count(" translated") == 60 * len(batches)
    written = [entry for entry in recorded(world.output) if entry["status"] == "written"]
    assert len(written) == 60 * len(batches)


@pytest.mark.process
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_stopped_while_it_starts_ends(
    world: QueueWorld, number: signal.Signals
) -> None:
    with world.held() as go_on:
        worker = world.start("worker", "--device", "cpu", go_on=go_on)
        eventually(lambda: handles(worker.pid, signal.SIGHUP))
        worker.send_signal(number)
        wait_for(worker, "stopping after the running jobs")
        assert children(worker.pid) == []
    _, log = worker.communicate(timeout=ENOUGH)
    assert (worker.returncode, log) == (0, "")


@pytest.mark.slow
def test_ctrl_c_while_a_worker_starts_is_reported_without_a_traceback(world: QueueWorld) -> None:
    """A terminal sends it to every process."""
    worker = world.start("worker", "--device", "cpu", start_new_session=True)
    eventually(lambda: handles(worker.pid, signal.SIGHUP))
    os.killpg(worker.pid, signal.SIGINT)
    _, log = worker.communicate(timeout=ENOUGH)
    assert worker.returncode == 0, log
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_worker_says_that_nothing_may_start_now(world: QueueWorld) -> None:
    world.scans(1)
    world.submit("--at", "2100-01-01T00:00")
    log = ended(world, "--until-empty")
    reported = (
        " cpu: no job is left that may start now; 1 job waits until 2100-01-01 00:00; "
        "add --wait to wait for them"
    )
    assert log.endswith(f"{reported}\n")


@pytest.mark.slow
def test_a_worker_that_waits_stays_until_the_last_job_has_run(world: QueueWorld) -> None:
    world.scans(1)
    batch = world.submit("--at", "2100-01-01T00:00")
    worker = world.start("worker", "--device", "cpu", "--until-empty", "--wait")
    wait_for(worker, "waiting for jobs that may start; 1 job waits until 2100-01-01 00:00")
    with open_tables(queue_place(world.queue), create=False) as tables, tables.writing() as writing:
        writing.change("UPDATE {jobs} SET due = 0")
    _, log = worker.communicate(timeout=ENOUGH)
    assert worker.returncode == 0, log
    assert log.endswith(" cpu: no job is left that may start now\n")
    assert [job["state"] for job in world.jobs(batch)] == ["done"]
    assert world.run("worker", "--wait").exit_code == 2


@pytest.mark.slow
def test_a_worker_does_the_jobs_of_one_batch_only(world: QueueWorld) -> None:
    world.scans(2)
    first = world.submit()
    second = world.submit("--overlap", "0.5")
    log = ended(world, "--until-empty", "--only", second)
    assert log.count(" translated") == 2
    assert {job["state"] for job in world.jobs(second)} == {"done"}
    assert {job["state"] for job in world.jobs(first)} == {"queued"}
    unknown = world.run("worker", "--only", "20261121-aaaaaa")
    assert (unknown.exit_code, "has no batch" in unknown.stderr) == (2, True)


@pytest.mark.slow
def test_a_worker_names_studies_and_its_status_shows_failures_if_asked(world: QueueWorld) -> None:
    world.scans(1)
    (world.inputs / "empty.nii").touch()
    batch = world.submit()
    log = ended(world, "--until-empty", "--fail-on-error", status=1)
    assert re.search(rf" cpu: {batch}/00001 translated: 000.nii, \d\.\d\d s$", log, re.MULTILINE)
    assert re.search(rf" cpu: {batch}/00002 failed: empty.nii.*: unreadable: ", log)
    world.did("jobs", "retry", batch)
    ended(world, "--until-empty")


@pytest.mark.slow
def test_a_pause_is_what_a_worker_waits_for(world: QueueWorld) -> None:
    world.scans(1)
    world.submit()
    world.did("jobs", "pause")
    log = ended(world, "--until-empty")
    reported = (
        "now; paused: no job starts until 'jobs resume'; 1 job queued; add --wait to wait for them"
    )
    assert reported in log


def ended(world: QueueWorld, *options: str, status: int = 0) -> str:
    """Run a worker on the CPU until its end and return its log."""
    worker = world.start("worker", "--device", "cpu", *options)
    _, log = worker.communicate(timeout=ENOUGH)
    assert worker.returncode == status, log
    return log


def test_a_worker_whose_parent_is_killed_ends(world: QueueWorld) -> None:
    worker = world.start("worker")
    child = child_after(worker.pid)
    worker.kill()
    worker.wait()
    eventually(lambda: not runs(child))


@pytest.mark.process
def test_cancelling_stops_a_running_job_and_leaves_nothing(world: QueueWorld) -> None:
    scan(world.inputs / "large.nii", shape=(320, 320, 320))
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: world.jobs(batch)[0]["state"] == "running")
    world.did("jobs", "cancel", batch)
    wait_for(worker, " interrupted")
    assert world.jobs(batch)[0]["state"] == "cancelled"
    assert world.made() == set()
    world.scans(1)
    world.submit()
    eventually(lambda: "000.nii" in world.made())


@pytest.mark.slow
def test_a_second_signal_hands_the_job_back(world: QueueWorld) -> None:
    scan(world.inputs / "large.nii", shape=(320, 320, 320))
    batch = world.submit()
    worker = world.start("worker")
    eventually(lambda: world.jobs(batch)[0]["state"] == "running")
    worker.terminate()
    wait_for(worker, "signal again")
    worker.terminate()
    _, log = worker.communicate()
    assert worker.returncode == 0, log
    assert world.jobs(batch)[0]["state"] == "queued"
    assert world.made() == set()


@pytest.mark.slow
def test_a_closed_terminal_ends_all_processes_in_order(world: QueueWorld) -> None:
    """SIGHUP comes to each of them; the first one ends last."""
    scan(world.inputs / "large.nii", shape=(200, 200, 200))
    batch = world.submit()
    worker = world.start("worker", start_new_session=True)
    eventually(lambda: world.jobs(batch)[0]["state"] == "running")
    [child] = children(worker.pid)
    os.killpg(worker.pid, signal.SIGHUP)
    _, log = worker.communicate()
    assert worker.returncode == 0, log
    assert not runs(child)
    assert world.jobs(batch)[0]["state"] in ("done", "queued")  # as far as the network had come
