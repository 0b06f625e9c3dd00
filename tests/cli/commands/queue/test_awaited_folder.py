"""Jobs whose output folder cannot take results for now wait for it, and say so."""

import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest
from support.batch_world import scan
from support.queue_world import QueueWorld

from cuda_cyclegan.pipelines.jobs.events import JobDeferred, NothingLeft, WorkerEvent
from cuda_cyclegan.pipelines.jobs.queue import claims
from cuda_cyclegan.pipelines.results.manifest import Manifest

SHAPE = (40, 36, 32)
DEFER_SECONDS = 3600.0


@pytest.fixture(autouse=True)
def deferred_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test takes so long, however busy the machine is."""
    monkeypatch.setattr(claims, "DEFER_SECONDS", DEFER_SECONDS)


def put_off(reported: list[WorkerEvent]) -> list[JobDeferred]:
    return [event for event in reported if isinstance(event, JobDeferred)]


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


@pytest.mark.process
def test_a_full_disk_fails_no_job_and_all_are_done_once_it_has_space(
    world: QueueWorld, small_disk: Path
) -> None:
    world.output = small_disk / "out"
    world.scans(6, SHAPE)
    batch = world.submit()
    reported = world.work()
    states = world.states(batch)
    made = states.count("done")
    assert 1 <= made <= 3
    assert states.count("waiting") == 6 - made
    first, *others = put_off(reported)
    assert "the disk is full; free space or choose another output folder" in first.why
    assert {event.why for event in others} <= {""}
    left = [event.left for event in reported if isinstance(event, NothingLeft)]
    # Counted by the minute of their start, and a minute may end between two of them.
    assert {kind.state for kind in left[0]} == {"waiting"}
    assert sum(kind.count for kind in left[0]) == 6 - made

    assert f"Waiting: {first.job} {first.study}: {first.why}" in world.did("jobs")
    assert f"waiting: {first.study}: {first.why}" in world.did("jobs", batch)
    [row] = [row for row in world.jobs(batch) if row["job"] == first.job]
    assert (row["reason"], row["tries"]) == (first.why, 0)

    assert put_off(world.work()) == [], "it is not time yet"
    world.pass_time(DEFER_SECONDS + 1)
    assert put_off(world.work()), "it is full still"
    assert world.states(batch).count("waiting") == 6 - made
    remount(small_disk, "size=64m")
    world.pass_time(DEFER_SECONDS + 1)
    assert put_off(world.work()) == []
    assert world.states(batch) == ["done"] * 6
    assert "aiting" not in world.did("jobs", batch)


@pytest.mark.slow
def test_a_study_that_never_fits_keeps_no_other_waiting(
    world: QueueWorld, small_disk: Path
) -> None:
    world.output = small_disk / "out"
    scan(world.inputs / "000-large.nii", shape=(64, 64, 64))
    world.scans(8)
    batch = world.submit()
    world.work()
    world.pass_time(DEFER_SECONDS + 1)
    world.work()
    assert world.states(batch) == ["waiting"] + ["done"] * 8
    assert "the disk is full; free space" in world.jobs(batch)[0]["reason"]
    assert not [path for path in world.output.rglob("*") if path.name.endswith(".part")]


def test_a_disk_with_no_space_at_all_is_awaited_too(world: QueueWorld, small_disk: Path) -> None:
    world.output = small_disk / "out"
    world.scans(2)
    batch = world.submit()
    remount(small_disk, "nr_inodes=1")
    reported = put_off(world.work())
    assert "No space left on device" in reported[0].why
    assert reported[0].why.endswith("choose another output folder or make room.")
    assert world.states(batch) == ["waiting"] * 2
    remount(small_disk, "nr_inodes=100")
    world.pass_time(DEFER_SECONDS + 1)
    world.work()
    assert world.states(batch) == ["done"] * 2


def test_jobs_wait_for_a_run_that_has_their_folder(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit()
    with Manifest(world.output):
        reported = put_off(world.work())
    assert [f"Another run is writing to {world.output}" in event.why for event in reported] == [
        True
    ]
    assert world.states(batch) == ["waiting"] * 2
    world.pass_time(DEFER_SECONDS + 1)
    world.work()
    assert world.states(batch) == ["done"] * 2


def test_jobs_that_were_deferred_go_on_at_once_after_a_retry(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit()
    with Manifest(world.output):
        world.work()
    assert world.did("jobs", "retry", batch) == "2 jobs queued again\n"
    world.work()
    assert world.states(batch) == ["done"] * 2


def test_other_batches_go_on_while_one_waits(world: QueueWorld) -> None:
    world.scans(2)
    waiting = world.submit()
    with Manifest(world.output):
        world.output = world.folder / "other"
        other = world.submit()
        world.work()
    assert world.states(waiting) == ["waiting"] * 2
    assert world.states(other) == ["done"] * 2


def test_a_worker_that_starts_when_a_jobs_time_has_come_does_it(world: QueueWorld) -> None:
    world.scans(1)
    batch = world.submit("--at", "2100-01-01T00:00")
    world.work()
    assert world.states(batch) == ["waiting"]
    world.pass_time(datetime(2100, 1, 2).timestamp() - time.time())
    world.work()
    assert world.states(batch) == ["done"]
