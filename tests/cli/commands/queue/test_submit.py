"""Jobs that submit and watch queue or do not queue, and their messages."""

import shlex
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from support import queue_postgres
from support.batch_world import scan
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld, closed_window
from support.waiting import wait_for

from cuda_cyclegan.pipelines.jobs.queue.batch_name import night_of
from cuda_cyclegan.pipelines.jobs.queue.liveness import membership
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables


def test_a_submission_ends_with_the_next_step(world: QueueWorld) -> None:
    world.scans(1)
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    done = world.run("submit", *paths)
    batch = done.stdout.strip()
    assert done.stderr.splitlines()[-3:] == [
        "No worker is running.",
        "To begin:     cuda-cyclegan worker",
        f"To see them:  cuda-cyclegan jobs {batch}",
    ]
    with open_tables(queue_place(world.queue), create=True) as tables, membership(tables, "cpu"):
        again = world.run("submit", *paths, "--overlap", "0.5", "--queue", world.queue)
    assert "1 worker is running.\nTo see them:  cuda-cyclegan jobs " in again.stderr
    assert again.stderr.splitlines()[-1].endswith(f"--queue {shlex.quote(world.queue)}")


def test_study_that_clashes_with_another_is_not_queued_and_reported(world: QueueWorld) -> None:
    world.inputs.mkdir()
    for name in ("a.mha", "a.nii.gz", "b.nii"):
        (world.inputs / name).touch()
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    submitted = world.run("submit", *paths, "--format", "nifti")
    assert submitted.exit_code == 1
    assert "1 study queued" in submitted.stderr
    assert "a.mha is not queued: its result would overwrite that of a.nii.gz" in submitted.stderr
    assert "a.nii.gz is not queued: its result would overwrite that of a.mha" in submitted.stderr
    assert [job["study"] for job in world.jobs(submitted.stdout.strip())] == ["b.nii"]


def test_study_without_the_format_is_not_queued_and_reported(world: QueueWorld) -> None:
    world.scans(1)
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    submitted = world.run("submit", *paths, "--format", "dicom")
    assert submitted.exit_code == 1
    assert "000.nii is not queued: it is not a DICOM series" in submitted.stderr
    Phantom("MR").write(world.inputs / "mr")
    submitted = world.run("submit", *paths, "--format", "dicom")
    assert submitted.exit_code == 1
    assert "1 study queued" in submitted.stderr


def test_queued_study_is_named_with_the_option_that_changes_it(world: QueueWorld) -> None:
    world.scans(2)
    window = closed_window()
    batch = world.submit("--window", window)
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    reported = world.run("submit", *paths, "--window", "04:00-04:01").stderr
    assert "0 studies queued\n" in reported
    scheduled = world.run("submit", *paths, "--overlap", "0.5", "--window", "night").stderr
    assert "2 studies queued, to start at 19:00-07:00\n" in scheduled
    timed = world.run("submit", *paths, "--overlap", "0.6", "--at", "2100-01-01").stderr
    assert "2 studies queued, not before 2100-01-01 00:00\n" in timed
    assert "2 studies skipped: already submitted for the same work" in reported
    assert f"{batch}: 2 waiting for the window {window}" in reported
    assert f"'jobs move {batch}' changes their window, time or priority" in reported


@pytest.mark.process
def test_watch_queues_no_scan_whose_result_another_would_overwrite(world: QueueWorld) -> None:
    world.inputs.mkdir()
    for name in ("a.mha", "a.nii.gz"):
        (world.inputs / name).touch()
    paths = ["--model", str(world.model), "--output", str(world.output), "--format", "nifti"]
    watch = world.start("watch", str(world.inputs), *paths, "--settle", "0.2")
    wait_for(watch, "a.mha is not queued: its result would overwrite that of a.nii.gz")
    wait_for(watch, "a.nii.gz is not queued: its result would overwrite that of a.mha")
    (world.inputs / "a.mha").unlink()
    wait_for(watch, "1 study queued")


@pytest.mark.process
def test_a_watched_folder_becomes_jobs(world: QueueWorld) -> None:
    world.inputs.mkdir()
    begun = datetime.now()
    paths = ["--model", str(world.model), "--output", str(world.output)]
    watch = world.start("watch", str(world.inputs), *paths, "--settle", "0.5")
    log = ""
    for name in ("a.nii", "b.nii"):
        scan(world.folder / name).rename(world.inputs / name)  # whole at once
        log += wait_for(watch, "1 study queued")
    nights = {night_of(begun), night_of(datetime.now())}  # two if it is noon
    assert 4 <= len(world.did("jobs").splitlines()) <= 3 + len(nights), "both are in one batch"
    watch.terminate()
    _, last = watch.communicate()
    assert "queued" not in last
    assert log.splitlines()[0].endswith(f" watching {world.inputs}")
    world.work()
    assert world.made() == {"a.nii", "b.nii"}


@pytest.mark.process
def test_a_study_that_failed_is_not_queued_again_by_a_watch_that_starts_again(
    world: QueueWorld,
) -> None:
    scan(world.inputs / "good.nii")
    (world.inputs / "empty.nii").touch()
    watch = world.watch()
    wait_for(watch, "2 studies queued")
    world.work()
    watch.terminate()
    watch.wait()
    again = world.watch()
    wait_for(again, "watching")
    scan(world.folder / "new.nii").rename(world.inputs / "new.nii")
    wait_for(again, "1 study queued")
    scan(world.folder / "empty.nii").rename(world.inputs / "empty.nii")
    wait_for(again, "1 study queued")
    world.work()
    assert Counter(row.study for row in world.rows("")) == {
        "good.nii": 1,
        "empty.nii": 2,
        "new.nii": 1,
    }


@pytest.mark.process
def test_watch_queues_what_arrives_while_the_queue_the_model_or_the_folder_is_away(
    world: QueueWorld,
) -> None:
    world.inputs.mkdir()
    watch = world.watch()
    wait_for(watch, "watching")
    with closing(sqlite3.connect(world.queue)) as database:
        database.execute("ALTER TABLE jobs RENAME TO away")
        for name in ("a.nii", "b.nii"):
            scan(world.folder / "both" / name)
        (world.folder / "both").rename(world.inputs / "both")  # no look finds one of them alone
        wait_for(watch, "does not answer")
        database.execute("ALTER TABLE away RENAME TO jobs")
    wait_for(watch, "2 studies queued")
    for place in (world.model, world.inputs):
        away = place.rename(world.folder / "away")
        *others, _ = wait_for(watch, "does not exist").splitlines()
        assert all("missing" in line or "cannot be opened" in line for line in others), others
        away.rename(place)
        scan(world.folder / "new.nii").rename(world.inputs / f"{place.name}.nii")
        wait_for(watch, "1 study queued")


@pytest.mark.process
def test_watch_ends_where_its_model_or_queue_is_wrong_from_the_start(world: QueueWorld) -> None:
    world.scans(1)
    world.queue = str(world.inputs)
    assert "is not a file" in world.command("watch").stderr
    world.queue = str(world.folder / "private" / "queue.db")
    world.model.unlink()
    refused = world.command("watch")
    assert (refused.exit_code, "does not exist" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_watch_waits_for_a_server_that_is_down_when_it_starts(tmp_path: Path) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        server.stop()
        world = QueueWorld(tmp_path, server.url)
        world.scans(1)
        watch = world.watch()
        try:
            log = wait_for(watch, "watching")
            assert "does not answer" in log
            server.start()
            assert wait_for(watch, "1 study queued").count("\n") == 1
        finally:
            world.close()


def test_results_of_a_watched_folder_have_no_file_of_their_own(world: QueueWorld) -> None:
    assert "DIR|FILE" in world.did("submit", "--help")
    assert "FILE" not in world.did("watch", "--help").partition("--output")[2].splitlines()[0]
    world.scans(1)
    paths = [str(world.inputs), "--model", str(world.model), "--output"]
    refused = world.run("watch", *paths, str(world.folder / "one.nii"))
    assert refused.exit_code == 2
    assert "more than one study may arrive; give a folder." in refused.stderr


def test_open_study_is_not_queued_again(world: QueueWorld) -> None:
    world.scans(2)
    old = world.submit()
    world.did("jobs", "cancel", old)
    new = world.submit()
    assert (
        "0 jobs queued again; 2 skipped because the same work is already queued or running"
    ) in world.did("jobs", "retry", old)
    world.did("jobs", "cancel", f"{new}/00001")
    assert (
        "1 job queued again; 1 skipped because the same work is already queued or running"
    ) in world.did("jobs", "retry", old)


def test_a_full_disk_of_the_queue_is_reported(world: QueueWorld, small_disk: Path) -> None:
    small_disk.chmod(0o700)
    world.queue = str(small_disk / "queue.db")
    (small_disk / "others").write_bytes(bytes(200 << 10))
    world.scans(1)
    refused = world.run(
        *("submit", str(world.inputs), "--model", str(world.model)),
        *("--output", str(world.output)),
    )
    assert refused.exit_code == 2
    assert "disk or server is available, has free space" in refused.stderr
    assert "Traceback" not in refused.stderr
