"""The queue on both databases, with several workers' claims in one process."""

import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from unittest.mock import ANY

import psycopg
import pytest
from support import queue_postgres
from support.queue_jobs import NORMAL, jobs, pass_time, states, study_job
from support.waiting import eventually

from cuda_cyclegan.pipelines.errors import QueueError, QueueLostError
from cuda_cyclegan.pipelines.jobs.queue.claims import DEFER_SECONDS, SLACK_SECONDS, Claims
from cuda_cyclegan.pipelines.jobs.queue.database import SCHEMA, Database
from cuda_cyclegan.pipelines.jobs.queue.job import JobPaths, Retried, StudyJob, Submitted
from cuda_cyclegan.pipelines.jobs.queue.liveness import membership
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue, open_queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables

YEAR = 365 * 86400.0


def test_jobs_go_through_the_queue(queue: Queue, tables: Database, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 3)
    batch = queue.submit(asked, NORMAL, name="afternoon").batch
    assert states(queue, batch) == ["queued"] * 3
    claims = Claims(tables, "one")
    first, second, third = (claims.claim(NORMAL) for _ in range(3))
    assert first
    assert second
    assert third
    assert claims.claim(NORMAL) is None
    assert {StudyJob.from_json(c.payload) for c in (first, second, third)} == set(asked)
    assert claims.acknowledge(first, {"row": {"status": "translated", "seconds": 2.5}}, well=True)
    failure = {"kind": "unreadable", "reason": "It is empty.", "stage": "read"}
    assert claims.acknowledge(second, {"row": {"status": "failed", "failure": failure}}, well=False)
    rows = {row.job: row for row in queue.jobs(batch)}
    assert rows[first.job].state == "done"
    assert rows[first.job].seconds == 2.5
    assert rows[second.job].state == "failed"
    assert rows[second.job].reason == "unreadable: It is empty."
    assert (rows[third.job].state, rows[third.job].worker) == ("running", "one")
    [count] = queue.batches()
    assert (count.batch, count.name) == (batch, "afternoon")
    assert count.jobs == {"done": 1, "failed": 1, "running": 1}


def test_the_same_work_is_queued_once(queue: Queue, tables: Database, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 3)
    assert queue.submit(asked[:2], NORMAL).added == 2
    again = queue.submit(asked, NORMAL)
    assert (again.added, again.known) == (1, 2)
    assert queue.submit(jobs(tmp_path, 3, output="/elsewhere"), NORMAL).added == 3
    (tmp_path / "000.nii").write_bytes(b"another scan")
    assert queue.submit(asked, NORMAL).added == 1
    claims = Claims(tables, "one")
    while claim := claims.claim(NORMAL):
        claims.acknowledge(claim, {}, well=True)
    assert queue.submit(asked, NORMAL).added == 3


def test_submissions_at_once_do_not_double_work(place: QueuePlace, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 30)
    added: list[int] = []

    def submit() -> None:
        with open_queue(place, create=True) as queue:
            added.append(queue.submit(asked, NORMAL).added)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 30


def test_four_workers_claim_every_job_once(place: QueuePlace, tmp_path: Path) -> None:
    with open_queue(place, create=True) as queue:
        batch = queue.submit(jobs(tmp_path, 60), NORMAL).batch
        taken: list[str] = []

        def work(name: str) -> None:
            with open_tables(place, create=False) as tables:
                claims = Claims(tables, name)
                while claim := claims.claim(NORMAL):
                    taken.append(claim.job)
                    claims.acknowledge(claim, {}, well=True)

        threads = [threading.Thread(target=work, args=(f"worker {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == sorted({row.job for row in queue.jobs(batch)})
        assert states(queue, batch) == ["done"] * 60


def test_jobs_of_a_batch_go_in_order_although_one_was_changed(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    """PostgreSQL stores a changed row behind the others."""
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    queue.hold(f"{batch}/00001")
    queue.run_now(f"{batch}/00001")
    claims = [Claims(tables, "one").claim(NORMAL) for _ in range(3)]
    assert [claim and claim.job[-1] for claim in claims] == ["1", "2", "3"]


def test_urgent_jobs_go_first_and_a_window_before_any_time(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    classes = [
        SchedulingClass("low"),
        NORMAL,
        SchedulingClass("normal", "19:00-07:00"),
        SchedulingClass("urgent"),
    ]
    for scheduling, job in zip(classes, jobs(tmp_path, 4), strict=True):
        queue.submit([job], scheduling)
    expected = [classes[3], classes[2], classes[1], classes[0]]
    assert Claims(tables, "one").scheduling_classes() == expected


def test_no_class_is_open_while_paused(queue: Queue, tables: Database, tmp_path: Path) -> None:
    queue.submit(jobs(tmp_path, 1), NORMAL)
    queue.pause()
    queue.submit([study_job(tmp_path / "000.nii", output="/b")], SchedulingClass("urgent"))
    assert queue.is_paused()
    assert Claims(tables, "one").scheduling_classes() == []
    queue.resume()
    assert Claims(tables, "one").scheduling_classes() == [SchedulingClass("urgent"), NORMAL]


def test_a_job_waits_for_its_time(queue: Queue, tables: Database, tmp_path: Path) -> None:
    later = datetime.now().astimezone() + timedelta(hours=1)
    batch = queue.submit(jobs(tmp_path, 1), NORMAL, not_before=later).batch
    claims = Claims(tables, "one")
    claims.wake()
    assert claims.claim(NORMAL) is None
    [row] = queue.jobs(batch)
    assert row.state == "waiting"
    assert row.not_before == pytest.approx(later.timestamp(), abs=2)
    pass_time(tables, 3590)
    claims.wake()
    assert claims.claim(NORMAL) is None
    pass_time(tables, 15)
    claims.wake()
    assert claims.claim(NORMAL)


@pytest.fixture
def wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clock of this host, but not the database's, is a year ahead."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + YEAR)


@pytest.mark.usefixtures("wrong_clock")
def test_a_worker_with_a_wrong_clock_puts_jobs_off_and_wakes_them_by_the_databases(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    now = datetime.now().astimezone()
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    claims = Claims(tables, "one")
    claim = claims.claim(NORMAL)
    assert claim
    claims.defer(claim, "The disk is full.")
    rows = queue.jobs(batch)
    assert [row.state for row in rows] == ["waiting"] * 2
    for row in rows:
        assert row.not_before == pytest.approx(now.timestamp() + DEFER_SECONDS, abs=20)
    claims.wake()
    assert claims.claim(NORMAL) is None
    pass_time(tables, DEFER_SECONDS + 1)
    claims.wake()
    assert claims.claim(NORMAL)


@pytest.mark.usefixtures("wrong_clock")
def test_a_time_that_was_given_by_a_wrong_clock_comes_after_the_same_delay(
    queue: Queue, tmp_path: Path
) -> None:
    right, wrong = datetime.now().timestamp(), time.time()
    later = datetime.fromtimestamp(wrong + 3600).astimezone()
    batch = queue.submit(jobs(tmp_path, 1), NORMAL, not_before=later).batch
    [row] = queue.jobs(batch)
    assert row.state == "waiting"
    assert row.not_before == pytest.approx(right + 3600, abs=20)
    assert row.submitted == pytest.approx(right, abs=20)
    queue.cancel(batch)
    assert queue.prune(datetime.fromtimestamp(wrong - 3600).astimezone()) == 0
    assert queue.prune(datetime.fromtimestamp(wrong + 3600).astimezone()) == 1


@pytest.mark.parametrize(("ahead", "is_due"), [(SLACK_SECONDS / 2, False), (YEAR, True)])
def test_a_job_is_due_if_its_time_is_further_off_than_when_it_began_to_wait(
    queue: Queue, tables: Database, tmp_path: Path, ahead: float, is_due: bool
) -> None:
    """The database's clock may have been ahead until now."""
    later = datetime.now().astimezone() + timedelta(hours=1)
    batch = queue.submit(jobs(tmp_path, 1), NORMAL, not_before=later).batch
    claims = Claims(tables, "one")
    pass_time(tables, -ahead)
    claims.wake()
    assert states(queue, batch) == ["queued" if is_due else "waiting"]
    claim = claims.claim(NORMAL)
    if claim:
        claims.defer(claim, "The disk is full.")
        claims.wake()
        assert states(queue, batch) == ["waiting"]
        pass_time(tables, -ahead)
        claims.wake()
        assert states(queue, batch) == ["queued"]


def test_deferred_job_is_tried_immediately_by_a_retry(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    later = datetime.now().astimezone() + timedelta(hours=1)
    other = queue.submit(jobs(tmp_path, 2, output="/b"), NORMAL, not_before=later).batch
    queue.cancel(f"{other}/00001")
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    claims = Claims(tables, "one")
    failed, put_off = claims.claim(NORMAL), claims.claim(NORMAL)
    assert failed
    assert put_off
    claims.acknowledge(failed, {"row": {}}, well=False)
    claims.defer(put_off, "The disk is full.")
    assert states(queue, batch) == ["failed", "waiting", "waiting"]
    assert queue.retry(f"{batch}/00003") == Retried(again=1, known=0)
    assert states(queue, batch) == ["failed", "waiting", "queued"]
    assert queue.retry(batch) == Retried(again=2, known=0)
    assert states(queue, batch) == ["queued"] * 3
    assert queue.retry(other) == Retried(again=1, known=0)
    assert states(queue, other) == ["queued", "waiting"], "it was not put off"


@pytest.mark.parametrize(
    "name", ["{}/1", "{}/000001", "{}/0", "{}/", "{}/x", "{}/00002", "{} ", "a b"]
)
def test_a_job_has_one_name(queue: Queue, tmp_path: Path, name: str) -> None:
    batch = queue.submit(jobs(tmp_path, 1), NORMAL).batch
    assert queue.counts(name.format(batch)) == {}
    assert queue.hold(name.format(batch)) == 0
    assert queue.hold(f"{batch}/00001") == 1


def test_work_is_known_while_it_is_open_and_after_it_ended_badly(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    asked = jobs(tmp_path, 4)
    batch = queue.submit(asked, NORMAL).batch
    claims = Claims(tables, "one")
    for well in (True, False):
        claim = claims.claim(NORMAL)
        assert claim
        claims.acknowledge(claim, {"row": {}}, well=well)
    queue.cancel(f"{batch}/00003")
    assert queue.known_keys() == {job.key() for job in asked[1:]}
    assert queue.submit(asked, NORMAL).added == 3, "who submits again means it"


def test_jobs_that_wait_for_whatever_may_be_started_now(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    night = SchedulingClass("low", "19:00-07:00")
    later = datetime.now().astimezone() + timedelta(hours=1)
    claims = Claims(tables, "one")
    batches = [
        queue.submit(jobs(tmp_path, 2), night).batch,
        queue.submit(jobs(tmp_path, 2, output="/b"), night, not_before=later).batch,
        queue.submit(jobs(tmp_path, 2, output="/c"), NORMAL, not_before=later).batch,
        queue.submit(jobs(tmp_path, 2, output="/d"), NORMAL).batch,
    ]
    claim = claims.claim(NORMAL)
    assert claim
    claims.defer(claim, "The disk is full.")
    assert [queue.run_now(f"{batch}/00001") for batch in batches] == [1] * 4
    assert [queue.run_now(batch) for batch in batches] == [1] * 4
    assert [queue.run_now(batch) for batch in batches] == [0] * 4
    assert not any(row.scheduling.window for batch in batches for row in queue.jobs(batch))
    assert set(claims.scheduling_classes()) == {SchedulingClass("low"), NORMAL}
    low = [claims.claim(SchedulingClass("low")) for _ in range(4)]
    normal = [claims.claim(NORMAL) for _ in range(4)]
    assert all((*low, *normal))


def test_a_job_whose_payload_cannot_be_read_now_is_not_claimed(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    batch, claims = queue.submit(jobs(tmp_path, 1), NORMAL).batch, Claims(tables, "one")
    with tables.writing() as transaction:
        transaction.change("ALTER TABLE {payloads} RENAME TO elsewhere")
    with pytest.raises(QueueError):
        claims.claim(NORMAL)
    with tables.writing() as transaction:
        away = "elsewhere" if tables.place.file else f"{SCHEMA}.elsewhere"
        transaction.change(f"ALTER TABLE {away} RENAME TO payloads")
    assert claims.in_flight() == {}
    assert states(queue, batch) == ["queued"]
    claim = claims.claim(NORMAL)
    assert claim
    assert claim.tries == 1


def test_cancelled_jobs_never_run_and_a_running_one_is_lost(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    claims = Claims(tables, "one")
    claim = claims.claim(NORMAL)
    assert claim
    assert claims.owned([claim]) == {claim.token}
    assert queue.cancel(batch) == 3
    assert claims.owned([claim]) == set()
    assert not claims.acknowledge(claim, {"row": {}}, well=True)
    claims.release([claim.token])
    assert claims.claim(NORMAL) is None
    assert states(queue, batch) == ["cancelled"] * 3


def test_failed_job_is_done_again_in_its_class(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    night = SchedulingClass("low", "19:00-07:00")
    batch = queue.submit(jobs(tmp_path, 4), night).batch
    claims = Claims(tables, "one")
    done, failed, lost = (claims.claim(night) for _ in range(3))
    assert done
    assert failed
    assert lost
    claims.acknowledge(done, {}, well=True)
    claims.acknowledge(failed, {"row": {}}, well=False)
    claims.dead_letter(lost)
    queue.cancel(batch)
    rows = queue.jobs(batch)
    assert sorted(row.state for row in rows) == ["cancelled", "done", "failed", "given up"]
    assert queue.retry(batch) == Retried(again=3, known=0)
    again = [claims.claim(night) for _ in range(3)]
    assert all(claim and claim.tries == 1 for claim in again)
    assert queue.retry(batch) == Retried(again=0, known=0)


def test_requeued_job_is_the_same_work(queue: Queue, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 3)
    batch = queue.submit(asked, NORMAL).batch
    queue.cancel(batch)
    assert queue.retry(batch) == Retried(again=3, known=0)
    assert queue.submit(asked, NORMAL) == Submitted(ANY, added=0, known=3)


def test_resubmitted_study_is_not_queued_again(queue: Queue, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 3)
    old = queue.submit(asked, NORMAL).batch
    queue.cancel(old)
    new = queue.submit(asked[:2], SchedulingClass("urgent")).batch
    assert queue.retry(old) == Retried(again=1, known=2)
    assert states(queue, old) == ["cancelled", "cancelled", "queued"]
    queue.cancel(new)
    assert queue.retry(f"{old}/00001") == Retried(again=1, known=0)
    assert queue.retry(new) == Retried(again=1, known=1)


def test_a_retry_and_submissions_at_once_do_not_double_work(
    place: QueuePlace, tmp_path: Path
) -> None:
    asked = jobs(tmp_path, 30)
    with open_queue(place, create=True) as queue:
        batch = queue.submit(asked, NORMAL).batch
        queue.cancel(batch)
    added: list[int] = []

    def submit() -> None:
        with open_queue(place) as queue:
            added.append(queue.submit(asked, NORMAL).added)

    def retry() -> None:
        with open_queue(place) as queue:
            added.append(queue.retry(batch).again)

    threads = [threading.Thread(target=act) for act in (submit, retry, submit, retry)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 30


def test_submissions_of_equal_work_in_opposite_orders_are_both_answered(
    place: QueuePlace, tmp_path: Path
) -> None:
    """Each waits for work of the other on a server, which ends one of them; it tries again."""
    asked = jobs(tmp_path, 300)
    with open_queue(place, create=True):
        pass
    added: list[int] = []
    together = threading.Barrier(2)

    def submit(asked: list[StudyJob]) -> None:
        with open_queue(place) as queue:
            together.wait()
            added.append(queue.submit(asked, NORMAL).added)

    threads = [threading.Thread(target=submit, args=(each,)) for each in (asked, asked[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == [0, 300]


def test_requeued_job_without_its_scan_fails_by_itself(queue: Queue, tmp_path: Path) -> None:
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    queue.cancel(batch)
    (tmp_path / "000.nii").unlink()
    assert queue.retry(batch) == Retried(again=2, known=0)


def test_the_job_of_a_dead_worker_is_done_by_another_and_counted(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    queue.submit(jobs(tmp_path, 1), NORMAL)
    dead, other = Claims(tables, "dead"), Claims(tables, "other")
    lost = dead.claim(NORMAL)
    assert lost
    assert other.in_flight() == {"dead": [lost.token]}
    assert other.reclaim([]) == 0
    assert other.reclaim([lost.token]) == 1
    assert other.reclaim([lost.token]) == 0
    taken = other.claim(NORMAL)
    assert taken
    assert (taken.job, taken.tries) == (lost.job, 2)
    assert dead.owned([lost]) == set()
    assert not dead.acknowledge(lost, {"row": {"status": "translated"}}, well=True)
    assert other.acknowledge(taken, {}, well=True)


def test_several_jobs_of_a_dead_worker_are_not_blamed_and_each_goes_alone_first(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    queue.submit(jobs(tmp_path, 4), NORMAL)
    dead, other = Claims(tables, "dead"), Claims(tables, "other")
    lost = [dead.claim(NORMAL) for _ in range(2)]
    assert [claim and (claim.tries, claim.alone) for claim in lost] == [(1, False)] * 2
    assert other.claim(NORMAL)  # 00003
    assert other.reclaim(other.in_flight()["dead"]) == 2
    taken = [other.claim(NORMAL) for _ in range(3)]
    found = [claim and (claim.job[-1], claim.tries, claim.alone) for claim in taken]
    assert found == [("1", 1, True), ("2", 1, True), ("4", 1, False)]


def test_a_job_that_is_handed_back_was_never_taken(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 1), NORMAL).batch
    claims = Claims(tables, "one")
    for _ in range(5):
        claim = claims.claim(NORMAL)
        assert claim
        assert (claim.tries, claim.alone) == (1, False)
        claims.release([claim.token])
        claims.release([claim.token])
    [row] = queue.jobs(batch)
    assert (row.state, row.tries) == ("queued", 0)


def test_pruning_forgets_what_ended_and_nothing_else(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    other = queue.submit(jobs(tmp_path, 1, output="/b"), SchedulingClass("urgent")).batch
    claims = Claims(tables, "one")
    for scheduling in (NORMAL, SchedulingClass("urgent")):
        claim = claims.claim(scheduling)
        assert claim
        claims.acknowledge(claim, {}, well=True)
    now = datetime.now().astimezone()
    assert queue.prune(now - timedelta(days=1)) == 0
    assert queue.prune(now + timedelta(minutes=1)) == 1
    assert states(queue, other) == []
    assert states(queue, batch) == ["done", "queued"]


def test_held_jobs_wait_for_a_user_whatever_the_clock_shows(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    assert queue.hold(f"{batch}/00002") == 1
    claims = Claims(tables, "one")
    pass_time(tables, -YEAR)
    claims.wake()
    pass_time(tables, 2 * YEAR)
    claims.wake()
    assert states(queue, batch) == ["queued", "waiting"]
    assert {(one.count, one.state, one.is_held) for one in queue.open_jobs()} == {
        (1, "queued", False),
        (1, "waiting", True),
    }
    assert queue.run_now(batch) == 1
    assert states(queue, batch) == ["queued", "queued"]


def test_jobs_move_to_another_window_time_and_priority(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    claims = Claims(tables, "one")
    assert claims.claim(NORMAL)
    assert queue.move(batch, window="19:00-07:00") == 2
    assert queue.move(f"{batch}/00003", priority="urgent") == 1
    assert [str(row.scheduling) for row in queue.jobs(batch)] == [
        "normal",
        "normal 19:00-07:00",
        "urgent 19:00-07:00",
    ]
    later = datetime.now().astimezone() + timedelta(hours=1)
    assert queue.hold(batch) == 2
    assert queue.move(batch, not_before=later) == 2
    assert states(queue, batch) == ["running", "waiting", "waiting"]
    pass_time(tables, 3700)
    claims.wake()
    assert states(queue, batch) == ["running", "queued", "queued"]
    assert claims.claim(SchedulingClass("urgent", "19:00-07:00"))


def test_deferred_job_is_started_now(queue: Queue, tables: Database, tmp_path: Path) -> None:
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    claims = Claims(tables, "one")
    claim = claims.claim(NORMAL)
    assert claim
    claims.defer(claim, "write: The disk is full.")
    assert states(queue, batch) == ["waiting"] * 2
    assert queue.run_now(batch) == 2
    assert states(queue, batch) == ["queued"] * 2


def clock(tables: Database) -> float:
    """Seconds since 1970 by the database's clock, which counts milliseconds."""
    with tables.writing() as writing:
        return writing.now() / 1000


def test_batches_of_one_second_stay_in_order(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    for count in range(1, 9):
        queue.submit(jobs(tmp_path, 1, output=f"/out{count}"), NORMAL, name=f"{count}")
        submitted = max(batch.submitted for batch in queue.batches())
        eventually(lambda submitted=submitted: clock(tables) > submitted)
    names = [f"{count}" for count in range(1, 9)]
    assert [batch.name for batch in queue.batches()] == names
    claims = Claims(tables, "one")
    claimed = [claim.job.partition("/")[0] for _ in names if (claim := claims.claim(NORMAL))]
    assert claimed == [batch.batch for batch in queue.batches()]


def test_submissions_of_one_night_join_one_batch(queue: Queue, tmp_path: Path) -> None:
    first = queue.submit(jobs(tmp_path, 2), NORMAL, joins="tonight")
    second = queue.submit(jobs(tmp_path, 4), NORMAL, joins="tonight")
    assert (second.batch, second.added, second.known) == (first.batch, 2, 2)
    assert second.open_already == (f"{first.batch}/00001", f"{first.batch}/00002")
    assert [row.number for row in queue.jobs(first.batch)] == ["00001", "00002", "00003", "00004"]
    elsewhere = jobs(tmp_path, 1, output="/b")
    assert queue.submit(elsewhere, NORMAL, joins="tomorrow").batch != first.batch
    other = [replace(job, model_sha256="1" * 64, output="/c") for job in elsewhere]
    assert queue.submit(other, NORMAL, joins="tonight").batch != first.batch


def test_submissions_at_once_join_one_batch_without_loss(place: QueuePlace, tmp_path: Path) -> None:
    with open_queue(place, create=True) as queue:
        batch = queue.submit(jobs(tmp_path, 1), NORMAL, joins="tonight").batch

        def submit(folder: str) -> None:
            with open_queue(place) as other:
                for job in jobs(tmp_path, 5, output=folder):
                    assert other.submit([job], NORMAL, joins="tonight").batch == batch

        threads = [threading.Thread(target=submit, args=(f"/{name}",)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [row.number for row in queue.jobs(batch)] == [f"{n:05}" for n in range(1, 22)]


def test_batches_show_their_model_and_folders(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "t1.nii").touch()
    queue.submit([study_job(tmp_path / "anna" / "t1.nii", study="anna/t1.nii")], NORMAL)
    [count] = queue.batches()
    assert count.work == JobPaths("/model.safetensors", str(tmp_path), "/results")


@pytest.mark.slow
def test_a_restart_of_the_server_is_reported_and_survived(tmp_path: Path) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        place = queue_place(server.url)
        with open_tables(place, create=True) as tables, membership(tables, "cpu") as alive:
            queue, claims = Queue(tables), Claims(tables, alive.name)
            batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
            claim = claims.claim(NORMAL)
            assert claim
            server.stop("immediate")
            with pytest.raises(QueueLostError, match="does not answer"):
                claims.acknowledge(claim, {}, well=True)
            with pytest.raises(QueueLostError):
                alive.dead([])
            server.start()
            assert alive.dead([]) == set()
            assert claims.acknowledge(claim, {}, well=True)
            assert states(queue, batch) == ["done", "queued"]
            assert queue.workers() == 1


@pytest.mark.slow
def test_a_server_that_only_reads_for_a_while_is_awaited(
    server: queue_postgres.Server, tmp_path: Path
) -> None:
    """A standby server about to be promoted is one."""
    place = queue_place(server.url.replace("/jobs", "/standby"))
    with open_tables(place, create=True) as tables:
        queue, claims = Queue(tables), Claims(tables, "one")
        batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
        claim = claims.claim(NORMAL)
        assert claim
        server.let_write("standby", may=False)
        acts = (
            claims.wake,
            partial(claims.claim, NORMAL),
            partial(claims.acknowledge, claim, {}, well=True),
            partial(claims.defer, claim, "The disk is full."),
            partial(queue.record_sent, claim.job, (1.0, 2.0)),
            partial(queue.submit, jobs(tmp_path, 1, output="/b"), NORMAL),
            partial(queue.cancel, batch),
            queue.pause,
        )
        for act in acts:
            with pytest.raises(QueueLostError, match="read-only"):
                act()
        assert states(queue, batch) == ["running", "queued"]
        server.let_write("standby", may=True)
        with pytest.raises(QueueLostError, match="read-only"):
            claims.wake()  # by a connection to the server of before
        assert claims.acknowledge(claim, {}, well=True)
        assert queue.cancel(batch) == 1


@pytest.mark.slow
def test_a_queue_that_is_to_be_made_waits_for_a_server_that_only_reads(
    server: queue_postgres.Server, tmp_path: Path
) -> None:
    place = queue_place(server.url.replace("/jobs", "/reading"))
    with closing(psycopg.connect(place.url.replace("/reading", "/postgres"))) as connection:
        connection.autocommit = True
        connection.execute("CREATE DATABASE reading")
    server.let_write("reading", may=False)
    with pytest.raises(QueueLostError), open_tables(place, create=True):
        pass
    server.let_write("reading", may=True)
    with open_tables(place, create=True) as tables:
        assert Queue(tables).submit(jobs(tmp_path, 1), NORMAL).added == 1


def test_an_older_or_empty_queue_is_named(tmp_path: Path) -> None:
    missing = queue_place(str(tmp_path / "private" / "queue.db"))
    with pytest.raises(QueueError, match="no queue at"), open_queue(missing):
        pass
    tmp_path.chmod(0o700)
    (tmp_path / "empty.db").touch(0o600)
    with pytest.raises(QueueError, match="empty"), open_queue(queue_place(f"{tmp_path}/empty.db")):
        pass


def test_a_queue_that_cannot_grow_reports_it_and_goes_on_later(tmp_path: Path) -> None:
    place = queue_place(str(tmp_path / "private" / "queue.db"))
    with open_tables(place, create=True) as tables:
        queue, claims = Queue(tables), Claims(tables, "one")
        batch = queue.submit(jobs(tmp_path, 1), NORMAL).batch
        claim = claims.claim(NORMAL)
        assert claim
        result = {"row": {"status": "translated", "notes": ["x" * 100_000]}}
        _limit(tables, 1)
        with pytest.raises(QueueLostError, match="free space"):
            claims.acknowledge(claim, result, well=True)
        _limit(tables, 1)
        with pytest.raises(QueueLostError, match="full"):
            queue.submit(jobs(tmp_path, 900, output="/b"), NORMAL)
        _limit(tables, 1_000_000)
        assert claims.acknowledge(claim, result, well=True)
        assert states(queue, batch) == ["done"]
        assert len(queue.batches()) == 1


def _limit(tables: Database, pages: int) -> None:
    """Limit how large the next transaction may make the file; it cannot get smaller than it is."""
    with tables.writing() as transaction:
        transaction.rows(f"PRAGMA max_page_count = {pages}")
