"""Rows of a queue: what they hold, and what becomes of damaged ones."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queue_jobs import NORMAL, jobs, states, study_job

from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.database import ConflictError, Database
from cuda_cyclegan.pipelines.jobs.queue.job import Retried, StudyJob
from cuda_cyclegan.pipelines.jobs.queue.liveness import membership
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue, open_queue
from cuda_cyclegan.pipelines.jobs.queue.store import VERSION, open_tables, set_meta

DAMAGED_PAYLOADS = {
    "empty": "",
    "no JSON": "not JSON",
    "no object": "[1]",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGED_PAYLOADS)
def test_a_damaged_job_is_taken_shown_and_cancelled_like_others(
    queue: Queue, tables: Database, tmp_path: Path, damage: str
) -> None:
    batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    with tables.writing() as transaction:
        damaged = "UPDATE {payloads} SET payload = :payload WHERE number = 1"
        transaction.change(damaged, payload=DAMAGED_PAYLOADS[damage])
        transaction.change("DELETE FROM {payloads} WHERE number = 2")
    assert states(queue, batch) == ["queued"] * 3
    claims = Claims(tables, "one")
    for _ in range(2):
        claim = claims.claim(NORMAL)
        assert claim
        with pytest.raises(QueueError, match="cannot be read"):
            StudyJob.from_json(claim.payload)
        claims.acknowledge(claim, {}, well=False)
    [first, _, last] = queue.jobs(batch)
    assert first.reason
    assert "cannot be read" in first.reason
    assert StudyJob.from_json(last.payload).study == "002.nii"
    assert queue.retry(batch) == Retried(again=2, known=0)
    assert queue.cancel(batch) == 3


DAMAGED_FIELDS = ("5", "[]", "", '{"name": 4, "route": []}')


@pytest.mark.parametrize("damage", DAMAGED_FIELDS)
def test_a_job_of_which_something_else_is_damaged_is_done(
    queue: Queue, tables: Database, tmp_path: Path, damage: str
) -> None:
    batch = queue.submit(jobs(tmp_path, 1), NORMAL, name="afternoon").batch
    with tables.writing() as transaction:
        transaction.change("UPDATE {batches} SET about = :damage", damage=damage)
        fields = "transfers = :damage, deferred = :damage"
        transaction.change(f"UPDATE {{jobs}} SET {fields}", damage=damage)
    assert [count.jobs for count in queue.batches()] == [{"queued": 1}]
    claims = Claims(tables, "one")
    claim = claims.claim(NORMAL)
    assert claim
    assert claims.acknowledge(claim, {}, well=True)
    assert states(queue, batch) == ["done"]


def test_a_job_cannot_be_in_an_unknown_state_or_run_for_nobody(
    queue: Queue, tables: Database, tmp_path: Path
) -> None:
    batch = queue.submit(jobs(tmp_path, 1), NORMAL).batch
    for change in ("state = 'mislaid'", "state = 'running'", "state = 'done'"):
        with pytest.raises(ConflictError), tables.writing() as transaction:
            transaction.change(f"UPDATE {{jobs}} SET {change}")
    assert states(queue, batch) == ["queued"]


def test_a_worker_without_a_lock_or_counter_stops_nobody(
    place: QueuePlace, queue: Queue, tables: Database, tmp_path: Path
) -> None:
    queue.submit(jobs(tmp_path, 3), NORMAL)
    names = ("a/b", "\x01", "x" * 1000)
    for name in names:
        assert Claims(tables, name).claim(NORMAL)
    with membership(tables, "cpu") as alive:
        held = Claims(tables, alive.name).in_flight()
        assert held.keys() == {*names}
        assert {*alive.dead(held)} == ({*names} if place.file else set())


def test_text_that_is_no_utf_8_stops_nobody(tmp_path: Path) -> None:
    place = queue_place(str(tmp_path / "private" / "queue.db"))
    with open_queue(place, create=True) as queue:
        batch = queue.submit(jobs(tmp_path, 3), NORMAL).batch
    with closing(sqlite3.connect(f"{place.file}")) as file, file:
        for number, value in ((1, "x'ff80'"), (2, "CAST(x'ff80' AS TEXT)")):
            file.execute(f"UPDATE payloads SET payload = {value} WHERE number = {number}")
            file.execute(f"UPDATE batches SET about = {value}")
    with open_tables(place, create=False) as tables:
        claims = Claims(tables, "one")
        taken = [claims.claim(NORMAL) for _ in range(3)]
        assert [claim and bool(claim.study) for claim in taken] == [False, False, True]
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


def test_rows_hold_undecodable_names(queue: Queue, tables: Database, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xf0\x9f\x98\x80.nii")
    (tmp_path / name).touch()
    batch = queue.submit([study_job(tmp_path / name)], NORMAL, name=name, route=name).batch
    claims = Claims(tables, "one")
    claim = claims.claim(NORMAL)
    assert claim
    claims.defer(claim, name)
    [row] = queue.jobs(batch)
    assert StudyJob.from_json(row.payload).study == name
    assert (row.name, row.route, row.deferred) == (name, name, name)
    assert [count.name for count in queue.batches()] == [name]


def test_a_queue_of_a_newer_version_is_refused_by_the_program_s_name_and_version(
    place: QueuePlace,
) -> None:
    with open_tables(place, create=True) as tables, tables.writing() as transaction:
        set_meta(transaction, "version", f"{VERSION + 1}")
        set_meta(transaction, "program", "99.1")
    for create in (False, True):
        with (
            pytest.raises(QueueError, match=r"cuda-cyclegan 99\.1, which is newer than this one"),
            open_queue(place, create=create),
        ):
            pass


def test_an_old_sqlite_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with (
        pytest.raises(QueueError, match=r"needs 3\.35"),
        open_queue(queue_place(str(tmp_path / "private" / "queue.db")), create=True),
    ):
        pass
