"""Rows of a queue: what they hold, and what becomes of damaged ones."""

import base64
import json
import os
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queue_jobs import NORMAL, jobs, states, study_job

from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.job import Retried, StudyJob
from cuda_cyclegan.pipelines.jobs.queue.liveness import membership
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue, open_queue
from cuda_cyclegan.pipelines.jobs.queue.store import QueueTables, open_tables

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
        claim = claims.claim(NORMAL)
        assert claim
        assert claim.payload == ""
        with pytest.raises(QueueError, match="cannot be read"):
            StudyJob.from_json(claim.payload)
        claims.acknowledge(claim, {}, well=False)
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
    claim = claims.claim(NORMAL)
    assert claim
    assert claim.tries in (0, 1)
    assert claims.acknowledge(claim, {}, well=True)
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
    with membership(place, "cpu") as alive:
        for worker in (*claims.in_flight(), "a/b", "\0", "x" * 1000):
            assert alive.is_dead(worker) == (place.file is not None)
    assert claims.claim(NORMAL)
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
    with open_tables(place, create=False) as tables:
        claims = Claims(tables, "one")
        taken = [claims.claim(NORMAL) for _ in range(3)]
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


def test_rows_hold_json_and_undecodable_names(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    name = os.fsdecode(b"caf\xe9 \xf0\x9f\x98\x80.nii")
    (tmp_path / name).touch()
    batch = queue.submit([study_job(tmp_path / name)], NORMAL).batch
    [(kind, stored)] = tables.read(
        sa.select(sa.column("serialization"), tables.inputs.c.inputs).select_from(
            tables.jobs.join(tables.inputs, sa.true())
        )
    )
    assert kind == "portable_json"
    assert json.loads(json.loads(stored)["positionalArgs"][0])["version"] == 1
    [row] = queue.jobs(batch)
    assert StudyJob.from_json(row.payload).study == name


class _Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(self._file),)


def test_a_row_marked_as_a_pickle_is_not_unpickled(
    queue: Queue, tables: QueueTables, tmp_path: Path
) -> None:
    batch, trap = queue.submit(jobs(tmp_path, 2), NORMAL).batch, tmp_path / "unpickled"
    claims = Claims(tables, "one")
    claim = claims.claim(NORMAL)
    assert claim
    assert claims.acknowledge(claim, {}, well=False)
    stored = base64.b64encode(pickle.dumps(_Touch(trap))).decode()
    table = "workflow_status" if tables.place.file else "dbos.workflow_status"
    with tables.begin() as connection:
        connection.execute(sa.text(f"UPDATE {table} SET serialization = 'py_pickle'"))
        connection.execute(sa.update(tables.inputs).values(inputs=stored))
        connection.execute(sa.update(tables.outputs).values(output=stored))
    assert states(queue, batch) == ["failed", "queued"]
    assert [row.payload for row in queue.jobs(batch)] == ["", ""]
    claim = claims.claim(NORMAL)
    assert claim
    claims.defer(claim, "The disk is full.")
    assert [row.job for row in queue.deferred()] == [claim.job]
    assert queue.retry(batch) == Retried(again=2, known=0)
    claim = claims.claim(NORMAL)
    assert claim
    assert claims.acknowledge(claim, {}, well=True)
    queue.record_sent(claim.job, (1.0, 2.0))
    assert queue.cancel(batch) == 1
    assert len(queue.batches()) == 1
    assert not trap.exists()
    tables.client.list_workflows()
    assert trap.exists(), "DBOS unpickles no such row any more"


def test_a_queue_of_a_newer_version_is_refused(place: QueuePlace) -> None:
    with open_tables(place, create=True) as tables, tables.begin() as connection:
        schema = "" if place.file else "dbos."
        connection.execute(sa.text(f"UPDATE {schema}dbos_migrations SET version = 99999"))
    with pytest.raises(QueueError, match="newer version"), open_queue(place):
        pass
