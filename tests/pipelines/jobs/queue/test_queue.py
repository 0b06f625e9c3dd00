"""The queue on both databases, with several workers' claims in one process."""

import json
import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import ANY

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from support import queue_postgres

from cuda_cyclegan.pipelines.errors import QueueError, QueueLostError
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.job import StudyJob
from cuda_cyclegan.pipelines.jobs.queue.liveness import CLASS, ServerLocks, life
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue, open_queue
from cuda_cyclegan.pipelines.jobs.queue.state import Retried, SchedulingClass, Submitted
from cuda_cyclegan.pipelines.jobs.queue.tables import QueueTables
from cuda_cyclegan.pipelines.settings import TranslateOptions

NORMAL = SchedulingClass("normal")


@pytest.fixture(scope="module")
def server() -> Generator[queue_postgres.Server]:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> QueuePlace:
    if request.param == "sqlite":
        return queue_place(str(tmp_path / "private" / "queue.db"))
    server: queue_postgres.Server = request.getfixturevalue("server")
    database = f"jobs_{os.urandom(4).hex()}"
    return queue_place(server.url.replace("/jobs", f"/{database}"))


@pytest.fixture
def tables(place: QueuePlace) -> Generator[QueueTables]:
    with QueueTables(place, create=True) as opened:
        yield opened


@pytest.fixture
def queue(tables: QueueTables) -> Queue:
    return Queue(tables)


def jobs(folder: Path, count: int, **choices: object) -> list[StudyJob]:
    made: list[StudyJob] = []
    for number in range(count):
        file = folder / f"{number:03}.nii"
        if not file.exists():
            file.touch()
        made.append(study_job(file, **choices))
    return made


def study_job(file: Path, **choices: object) -> StudyJob:
    fields = {"study": file.name, "files": (str(file),), "output": "/results", **choices}
    return StudyJob(
        **fields,  # pyright: ignore[reportArgumentType]
        model="/model.safetensors",
        model_sha256="0" * 64,
        options=TranslateOptions(patch=(16, 16, 16)),
    )


def states(queue: Queue, batch: str) -> list[str]:
    return [row.state for row in queue.jobs(batch)]


def test_jobs_go_through_the_queue(queue: Queue, tables: QueueTables, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 3)
    batch = queue.submit(asked, NORMAL, name="afternoon").batch
    assert states(queue, batch) == ["queued"] * 3
    claims = Claims(tables, "one")
    first, second, third = (claims.take(NORMAL) for _ in range(3))
    assert first
    assert second
    assert third
    assert claims.take(NORMAL) is None
    assert {StudyJob.from_json(c.payload) for c in (first, second, third)} == set(asked)
    assert claims.end(first, {"row": {"status": "translated", "seconds": 2.5}}, well=True)
    failure = {"kind": "unreadable", "reason": "It is empty.", "stage": "read"}
    assert claims.end(second, {"row": {"status": "failed", "failure": failure}}, well=False)
    rows = {row.job: row for row in queue.jobs(batch)}
    assert rows[first.job].state == "done"
    assert rows[first.job].seconds == 2.5
    assert rows[second.job].state == "failed"
    assert rows[second.job].reason == "unreadable: It is empty."
    assert (rows[third.job].state, rows[third.job].worker) == ("running", "one")
    [count] = queue.batches()
    assert (count.batch, count.name) == (batch, "afternoon")
    assert count.jobs == {"done": 1, "failed": 1, "running": 1}


def test_the_same_work_is_queued_once(queue: Queue, tables: QueueTables, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 3)
    assert queue.submit(asked[:2], NORMAL).added == 2
    again = queue.submit(asked, NORMAL)
    assert (again.added, again.known) == (1, 2)
    assert queue.submit(jobs(tmp_path, 3, output="/elsewhere"), NORMAL).added == 3
    (tmp_path / "000.nii").write_bytes(b"another scan")
    assert queue.submit(asked, NORMAL).added == 1
    claims = Claims(tables, "one")
    while claim := claims.take(NORMAL):
        claims.end(claim, {}, well=True)
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
            with QueueTables(place, create=False) as tables:
                claims = Claims(tables, name)
                while claim := claims.take(NORMAL):
                    taken.append(claim.job)
                    claims.end(claim, {}, well=True)

        threads = [threading.Thread(target=work, args=(f"worker {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == sorted({row.job for row in queue.jobs(batch)})
        assert states(queue, batch) == ["done"] * 60


def test_urgent_jobs_go_first_and_a_window_before_any_time(
    queue: Queue, tables: QueueTables, tmp_path: Path
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


def test_no_class_is_open_while_paused(queue: Queue, tables: QueueTables, tmp_path: Path) -> None:
    queue.submit(jobs(tmp_path, 1), NORMAL)
    queue.pause()
    queue.submit([study_job(tmp_path / "000.nii", output="/b")], SchedulingClass("urgent"))
    assert queue.is_paused()
    assert Claims(tables, "one").scheduling_classes() == []
    queue.resume()
    assert Claims(tables, "one").scheduling_classes() == [SchedulingClass("urgent"), NORMAL]


def test_a_job_waits_for_its_time(queue: Queue, tables: QueueTables, tmp_path: Path) -> None:
    later = datetime.now().astimezone() + timedelta(hours=1)
    batch = queue.submit(jobs(tmp_path, 1), NORMAL, not_before=later).batch
    claims = Claims(tables, "one")
    claims.wake()
    assert claims.take(NORMAL) is None
    [row] = queue.jobs(batch)
    assert row.state == "waiting"
    assert row.not_before == pytest.approx(later.timestamp(), abs=2)
    past = int(datetime.now().timestamp() * 1000) - 1
    tables.change([tables.jobs.c.workflow_uuid == row.job], {"delay_until_epoch_ms": past})
    claims.wake()
    assert claims.take(NORMAL)


def test_cancelled_jobs_never_run_and_a_running_one_is_lost(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    claims = Claims(tables, "one")
    claim = claims.take(NORMAL)
    assert claim
    assert claims.ours([claim]) == {claim.token}
    assert queue.cancel(batch) == 3
    assert claims.ours([claim]) == set()
    assert not claims.end(claim, {"row": {}}, well=True)
    claims.hand_back([claim.token])
    assert claims.take(NORMAL) is None
    assert states(queue, batch) == ["cancelled"] * 3


def test_what_ended_badly_is_done_again_in_its_class(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    night = SchedulingClass("low", "19:00-07:00")
    batch = queue.submit(jobs(tmp_path, 4), night).batch
    claims = Claims(tables, "one")
    done, failed, lost = (claims.take(night) for _ in range(3))
    assert done
    assert failed
    assert lost
    claims.end(done, {}, well=True)
    claims.end(failed, {"row": {}}, well=False)
    claims.give_up(lost)
    queue.cancel(batch)
    rows = queue.jobs(batch)
    assert sorted(row.state for row in rows) == ["cancelled", "done", "failed", "given up"]
    assert queue.retry(batch) == Retried(again=3, known=0)
    again = [claims.take(night) for _ in range(3)]
    assert all(claim and claim.tries == 1 for claim in again)
    assert queue.retry(batch) == Retried(again=0, known=0)


def test_what_was_queued_again_is_the_same_work_still(queue: Queue, tmp_path: Path) -> None:
    asked = jobs(tmp_path, 3)
    batch = queue.submit(asked, NORMAL).batch
    queue.cancel(batch)
    assert queue.retry(batch) == Retried(again=3, known=0)
    assert queue.submit(asked, NORMAL) == Submitted(ANY, added=0, known=3)


def test_what_was_submitted_again_is_not_queued_again(queue: Queue, tmp_path: Path) -> None:
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


def test_what_is_queued_again_without_its_scan_fails_by_itself(
    queue: Queue, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    queue.cancel(batch)
    (tmp_path / "000.nii").unlink()
    assert queue.retry(batch) == Retried(again=2, known=0)


DAMAGED_INPUTS = {
    "none": None,
    "empty": "",
    "no JSON": "not JSON",
    "no object": "[1]",
    "no job": '{"positionalArgs": []}',
    "no text": '{"positionalArgs": [7]}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGED_INPUTS)
def test_a_damaged_job_is_taken_shown_and_cancelled_like_others(
    queue: Queue, tables: QueueTables, tmp_path: Path, damage: str
) -> None:
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    inputs = tables.inputs
    with tables.begin() as connection:
        job, damaged = inputs.c.workflow_uuid, DAMAGED_INPUTS[damage]
        connection.execute(sa.update(inputs).where(job == f"{batch}/00001").values(inputs=damaged))
        connection.execute(sa.delete(inputs).where(job == f"{batch}/00002"))
    assert states(queue, batch) == ["queued"] * 3
    claims = Claims(tables, "one")
    for _ in range(2):
        claim = claims.take(NORMAL)
        assert claim
        assert claim.payload == ""
        with pytest.raises(QueueError, match="cannot be read"):
            StudyJob.from_json(claim.payload)
        claims.end(claim, {}, well=False)
    [first, _, last] = queue.jobs(batch)
    assert first.reason
    assert "cannot be read" in first.reason
    assert StudyJob.from_json(last.payload).study == "002.nii"
    assert queue.retry(batch) == Retried(again=2, known=0)
    assert queue.cancel(batch) == 3


DAMAGED_FIELDS = {
    "no attributes": {"attributes": sa.null()},
    "a number for attributes": {"attributes": sa.text("'5'")},
    "numbers in attributes": {"attributes": sa.text("""'{"lane": 3, "name": 4}'""")},
    "no tries": {"recovery_attempts": sa.null()},
}


@pytest.mark.parametrize("damage", DAMAGED_FIELDS)
def test_a_job_of_which_something_else_is_damaged_is_done(
    queue: Queue, tables: QueueTables, tmp_path: Path, damage: str
) -> None:
    batch = queue.submit(jobs(tmp_path, 1), NORMAL, name="afternoon").batch
    tables.change([tables.jobs.c.workflow_uuid == f"{batch}/00001"], DAMAGED_FIELDS[damage])
    assert [count.jobs for count in queue.batches()] == [{"queued": 1}]
    claims = Claims(tables, "one")
    claim = claims.take(NORMAL)
    assert claim
    assert claim.tries in (0, 1)
    assert claims.end(claim, {}, well=True)
    assert states(queue, batch) == ["done"]


def test_a_row_of_an_unknown_state_or_worker_stops_nobody(
    place: QueuePlace, queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    job = tables.jobs.c.workflow_uuid
    tables.change([job == f"{batch}/00001"], {"status": "MISLAID"})
    tables.change([job == f"{batch}/00002"], {"status": "PENDING", "executor_id": None})
    assert states(queue, batch) == ["failed", "running", "queued"]
    assert queue.batches()[0].jobs == {"failed": 1, "running": 1, "queued": 1}
    claims = Claims(tables, "one")
    with life(place, "cpu") as alive:
        for worker in (*claims.held(), "a/b", "\0", "x" * 1000):
            assert alive.is_dead(worker) == (place.file is not None)
    assert claims.take(NORMAL)
    assert queue.cancel(batch) == 2


def test_text_that_is_no_utf_8_stops_nobody(tmp_path: Path) -> None:
    place = queue_place(str(tmp_path / "private" / "queue.db"))
    with open_queue(place, create=True) as queue:
        batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    with closing(sqlite3.connect(f"{place.file}")) as file, file:
        for number, value in ((1, "x'ff80'"), (2, "CAST(x'ff80' AS TEXT)")):
            where = f"WHERE workflow_uuid = '{batch}/0000{number}'"
            file.execute(f"UPDATE workflow_input SET inputs = {value} {where}")
            file.execute(f"UPDATE workflow_status SET attributes = {value} {where}")
    with QueueTables(place, create=False) as tables:
        claims = Claims(tables, "one")
        taken = [claims.take(NORMAL) for _ in range(3)]
        assert [claim and bool(claim.payload) for claim in taken] == [False, False, True]
        assert states(Queue(tables), batch) == ["running"] * 3
        assert len(Queue(tables).batches()) == 1


@settings(deadline=None)
@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ).map(json.dumps)
)
def test_a_text_that_is_no_job_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(QueueError, match="cannot be read"):
        StudyJob.from_json(text)


OF_ANOTHER_KIND = {
    "study": st.integers() | st.none(),
    "files": st.lists(st.integers(), max_size=2) | st.none() | st.integers() | st.just([]),
    "output": st.lists(st.text()) | st.integers(),
    "patch": st.none() | st.integers() | st.just([16, 16]) | st.just([1.5, 2, 3]),
    "overlap": st.text() | st.none() | st.booleans(),
    "blend": st.text(min_size=20) | st.lists(st.text()),
    "precision": st.text(min_size=20) | st.integers(),
    "volume_index": st.text() | st.floats(),
    "overwrite": st.integers() | st.none(),
    "fewest_slices": st.text() | st.none() | st.booleans(),
}


@settings(deadline=None)
@given(st.sampled_from(sorted(OF_ANOTHER_KIND)), st.data())
def test_a_job_with_a_field_of_another_kind_is_refused_in_a_sentence(
    name: str, data: st.DataObject
) -> None:
    fields = json.loads(study_job(Path("/scan.nii")).to_json())
    text = json.dumps({**fields, name: data.draw(OF_ANOTHER_KIND[name])})
    with pytest.raises(QueueError, match="cannot be read"):
        StudyJob.from_json(text)


def test_the_job_of_a_dead_worker_is_done_by_another_and_counted(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    queue.submit(jobs(tmp_path, 1), NORMAL)
    dead, other = Claims(tables, "dead"), Claims(tables, "other")
    lost = dead.take(NORMAL)
    assert lost
    assert other.held() == {"dead": [lost.token]}
    assert other.take_over([]) == 0
    assert other.take_over([lost.token]) == 1
    assert other.take_over([lost.token]) == 0
    taken = other.take(NORMAL)
    assert taken
    assert (taken.job, taken.tries) == (lost.job, 2)
    assert dead.ours([lost]) == set()
    assert not dead.end(lost, {"row": {"status": "translated"}}, well=True)
    assert other.end(taken, {}, well=True)


def test_of_several_jobs_of_a_dead_worker_none_is_blamed_and_each_goes_alone_first(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    queue.submit(jobs(tmp_path, 4), NORMAL)
    dead, other = Claims(tables, "dead"), Claims(tables, "other")
    lost = [dead.take(NORMAL) for _ in range(2)]
    assert [claim and (claim.tries, claim.alone) for claim in lost] == [(1, False)] * 2
    assert other.take(NORMAL)  # 00003
    assert other.take_over(other.held()["dead"]) == 2
    taken = [other.take(NORMAL) for _ in range(3)]
    found = [claim and (claim.job[-1], claim.tries, claim.alone) for claim in taken]
    assert found == [("1", 1, True), ("2", 1, True), ("4", 1, False)]


def test_a_job_that_is_handed_back_was_never_taken(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 1), NORMAL).batch
    claims = Claims(tables, "one")
    for _ in range(5):
        claim = claims.take(NORMAL)
        assert claim
        assert (claim.tries, claim.alone) == (1, False)
        claims.hand_back([claim.token])
        claims.hand_back([claim.token])
    [row] = queue.jobs(batch)
    assert (row.state, row.tries) == ("queued", 0)


def test_pruning_forgets_what_ended_and_nothing_else(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    claims = Claims(tables, "one")
    claim = claims.take(NORMAL)
    assert claim
    claims.end(claim, {}, well=True)
    now = datetime.now().astimezone()
    assert queue.prune(now - timedelta(days=1)) == 0
    assert queue.prune(now + timedelta(minutes=1)) == 1
    assert states(queue, batch) == ["queued"]


def test_rows_hold_json_and_undecodable_names(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    name = os.fsdecode(b"caf\xe9 \xf0\x9f\x98\x80.nii")
    (tmp_path / name).touch()
    batch = queue.submit([study_job(tmp_path / name)], NORMAL).batch
    [(kind, stored)] = tables.read(
        sa.select(tables.jobs.c.serialization, tables.inputs.c.inputs).select_from(
            tables.jobs.join(tables.inputs, sa.true())
        )
    )
    assert kind == "portable_json"
    assert json.loads(json.loads(stored)["positionalArgs"][0])["version"] == 1
    [row] = queue.jobs(batch)
    assert StudyJob.from_json(row.payload).study == name


def test_a_row_marked_as_a_pickle_is_not_unpickled(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 1), NORMAL).batch
    tables.change([tables.jobs.c.workflow_uuid == f"{batch}/00001"], {"serialization": "py_pickle"})
    assert states(queue, batch) == ["queued"]
    assert Claims(tables, "one").take(NORMAL)


def test_a_queue_of_a_newer_version_is_refused(place: QueuePlace) -> None:
    with QueueTables(place, create=True) as tables, tables.begin() as connection:
        schema = "" if place.file else "dbos."
        connection.execute(sa.text(f"UPDATE {schema}dbos_migrations SET version = 99999"))
    with pytest.raises(QueueError, match="newer version"), open_queue(place):
        pass


def test_a_worker_lives_until_it_lets_go_of_its_name(place: QueuePlace) -> None:
    with QueueTables(place, create=True), life(place, "cpu") as first:
        with life(place, "cpu") as second, life(place, "cuda:0") as card:
            assert len({first.name, second.name, card.name}) == 3
            second.renew()
            assert not first.is_dead(second.name)
            assert not second.is_dead(first.name)
            with pytest.raises(QueueError, match="cuda:0 runs"), life(place, "cuda:0"):
                pass
        assert first.is_dead(card.name)


class Homes:
    """Homes of one user on machines, or containers, of one name: go to one to be there."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch

    def go_to(self, name: str) -> None:
        self._patch.setenv("HOME", f"{self._folder}/{name}")
        self._patch.setenv("XDG_STATE_HOME", f"{self._folder}/{name}/state")


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Homes:
    return Homes(tmp_path, monkeypatch)


@pytest.fixture
def shared(server: queue_postgres.Server) -> QueuePlace:
    place = queue_place(server.url)
    with QueueTables(place, create=True):
        return place


def test_a_worker_of_another_machine_is_dead_only_after_a_while(
    shared: QueuePlace, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.go_to("other")
    with life(shared, "cpu") as other:
        homes.go_to("this")
        with life(shared, "cpu") as this:
            assert not this.is_dead(other.name)
            monkeypatch.setattr("cuda_cyclegan.pipelines.jobs.queue.liveness.GRACE_SECONDS", 0.0)
            assert not this.is_dead(other.name)
            assert this.is_dead("other:me:cuda:3")
            monkeypatch.setattr("cuda_cyclegan.pipelines.jobs.queue.liveness.GRACE_SECONDS", 3600.0)
            assert not this.is_dead("other:me:cuda:3")


def test_workers_of_equal_host_and_user_names_have_names_of_their_own(
    shared: QueuePlace, homes: Homes
) -> None:
    """Each container may have a card, and the first of each is cuda:0."""
    homes.go_to("one")
    with life(shared, "cuda:0") as one:
        homes.go_to("other")
        with life(shared, "cuda:0") as other:
            assert one.name != other.name
            assert one.name.split(":")[:2] == other.name.split(":")[:2]
            assert not one.is_dead(other.name)
            assert not other.is_dead(one.name)
        assert not one.is_dead(other.name), "its file cannot be seen from here"


def test_a_worker_that_is_started_again_has_its_name_again(
    shared: QueuePlace, homes: Homes
) -> None:
    homes.go_to("one")
    with life(shared, "cuda:0") as before:
        pass
    with life(shared, "cuda:0") as after:
        assert after.name == before.name


def test_a_worker_is_not_dead_by_its_file_alone(shared: QueuePlace, homes: Homes) -> None:
    """A clone of this machine, as it runs, would have this machine's marks."""
    homes.go_to("one")
    with life(shared, "cpu") as this, ServerLocks(shared.url) as clone:
        name = f"{this.name}-9"
        assert clone.hold(name)
        assert not this.is_dead(name)
    with life(shared, "cpu") as this:
        assert this.is_dead(name), "now nobody holds it, and its file is here"


def test_a_card_whose_last_worker_the_server_has_not_forgotten_is_waited_for(
    shared: QueuePlace, homes: Homes
) -> None:
    homes.go_to("one")
    with life(shared, "cuda:0") as gone:
        pass
    with ServerLocks(shared.url) as lost:
        assert lost.hold(gone.name)
        with pytest.raises(QueueLostError, match="has not noticed yet"), life(shared, "cuda:0"):
            pass
        with life(shared, "cpu"):
            pass


def test_a_name_that_a_lost_connection_still_holds_is_taken_again_later(
    shared: QueuePlace, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.go_to("one")
    with life(shared, "cpu") as this:
        assert this.renew()
        with ServerLocks(shared.url) as ghost:
            with closing(psycopg.connect(shared.url, autocommit=True)) as admin:
                query = b"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE classid = %s"
                admin.execute(query, [CLASS])
            while not ghost.hold(this.name):
                pass
            assert not this.renew()
            assert not this.renew()
            assert not this.is_lost()
            monkeypatch.setattr("cuda_cyclegan.pipelines.jobs.queue.liveness.GRACE_SECONDS", 0.0)
            assert this.is_lost()
        while not this.renew():
            pass
        assert not this.is_lost()
        with ServerLocks(shared.url) as other:
            assert other.is_held(this.name)


def test_a_restart_of_the_server_is_told_and_survived(tmp_path: Path) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        place = queue_place(server.url)
        with QueueTables(place, create=True) as tables, life(place, "cpu") as alive:
            queue, claims = Queue(tables), Claims(tables, alive.name)
            batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
            claim = claims.take(NORMAL)
            assert claim
            server.stop("immediate")
            with pytest.raises(QueueLostError, match="does not answer"):
                claims.end(claim, {}, well=True)
            with pytest.raises(QueueLostError):
                alive.renew()
            server.start()
            alive.renew()
            assert claims.end(claim, {}, well=True)
            assert states(queue, batch) == ["done", "queued"]
            with closing(psycopg.connect(server.url)) as other:
                query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                assert other.execute(query).fetchone() == (1,)


def test_an_older_or_empty_queue_is_named(tmp_path: Path) -> None:
    missing = queue_place(str(tmp_path / "private" / "queue.db"))
    with pytest.raises(QueueError, match="no queue at"), open_queue(missing):
        pass
    tmp_path.chmod(0o700)
    (tmp_path / "empty.db").touch(0o600)
    with pytest.raises(QueueError, match="empty"), open_queue(queue_place(f"{tmp_path}/empty.db")):
        pass


def test_a_server_notices_that_a_worker_has_lost_its_power(server: queue_postgres.Server) -> None:
    place = queue_place(server.url)
    with QueueTables(place, create=True), ServerLocks(place.url) as locks:
        assert locks.hold("one")
        connection = locks._connection  # pyright: ignore[reportPrivateUsage]
        assert connection
        for setting, seconds in (("idle", "10"), ("interval", "5"), ("count", "3")):
            query = f"SHOW tcp_keepalives_{setting}"
            assert connection.execute(query.encode()).fetchone() == (seconds,)


def test_a_server_is_shown_without_its_password_and_options() -> None:
    place = queue_place("postgres://me:secret@host/jobs?sslmode=require&connect_timeout=9")
    assert str(place) == "postgresql://me:***@host/jobs"
    assert place.url.count("connect_timeout") == 1
    assert "sslmode=require" in place.url
    assert "keepalives_idle=10" in place.url


def test_a_queue_that_cannot_grow_says_so_and_goes_on_later(tmp_path: Path) -> None:
    place = queue_place(str(tmp_path / "private" / "queue.db"))
    with QueueTables(place, create=True) as tables:
        queue, claims = Queue(tables), Claims(tables, "one")
        batch = queue.submit(jobs(tmp_path, 1), NORMAL).batch
        claim = claims.take(NORMAL)
        assert claim
        result = {"row": {"status": "translated", "notes": ["x" * 100_000]}}
        _limit(tables, 1)
        with pytest.raises(QueueLostError, match="not full"):
            claims.end(claim, result, well=True)
        with pytest.raises(QueueLostError, match="full"):
            queue.submit(jobs(tmp_path, 900, output="/b"), NORMAL)
        _limit(tables, 1_000_000)
        assert claims.end(claim, result, well=True)
        assert states(queue, batch) == ["done"]
        assert len(queue.batches()) == 1


def _limit(tables: QueueTables, pages: int) -> None:
    """How large the file may get; it cannot get smaller than it is."""
    with tables.begin() as connection:
        connection.execute(sa.text(f"PRAGMA max_page_count = {pages}"))
