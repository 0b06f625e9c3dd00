"""Queues of version 0.2.0 (tests/fixtures/queue) are moved once, and stay readable and workable."""

import base64
import os
import pickle
import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

import psycopg
import pytest
from support import queue_postgres
from support.queue_jobs import NORMAL

from cuda_cyclegan.io.files.locks import lock
from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs.queue import dbos_queue
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.database import Database
from cuda_cyclegan.pipelines.jobs.queue.job import JobRow, Retried, StudyJob
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue, open_queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables
from cuda_cyclegan.pipelines.jobs.summary import report_of

STORED = Path(__file__).parents[3] / "fixtures" / "queue"
URGENT, LOW = SchedulingClass("urgent"), SchedulingClass("low")
JOBS = 15
AT_NIGHT = SchedulingClass("urgent", "19:00-07:00")


@pytest.fixture
def place(place: QueuePlace, request: pytest.FixtureRequest) -> QueuePlace:
    """The stored queue, in a database of the kind that is tested."""
    if place.file is None:
        server: queue_postgres.Server = request.getfixturevalue("server")
        database = place.url.partition("?")[0].rpartition("/")[2]
        login = {"host": server.address, "port": server.port, "user": "worker"}
        with psycopg.connect(dbname="postgres", autocommit=True, **login) as connection:
            connection.execute(f'CREATE DATABASE "{database}"'.encode())
        with psycopg.connect(dbname=database, **login) as connection:
            connection.execute((STORED / "postgresql.sql").read_bytes())
        return place
    place.file.parent.mkdir(mode=0o700)
    os.close(os.open(place.file, os.O_CREAT, 0o600))
    with closing(sqlite3.connect(place.file)) as database:
        database.executescript((STORED / "sqlite.sql").read_text())
    return place


@pytest.fixture
def tables(place: QueuePlace) -> Generator[Database]:
    with open_tables(place, create=False) as opened:
        yield opened


def named(queue: Queue) -> dict[str, str]:
    """Batches by the names that they were given."""
    return {count.name: count.batch for count in queue.batches()}


def by_name(queue: Queue) -> dict[str, list[JobRow]]:
    return {name: queue.jobs(batch) for name, batch in named(queue).items()}


def test_all_states_are_shown(queue: Queue) -> None:
    rows = by_name(queue)
    assert {name: [row.state for row in found] for name, found in rows.items()} == {
        "done": ["done"],
        "failed": ["failed"],
        "given up": ["given up"],
        "running": ["running"],
        "cancelled": ["cancelled"],
        "waiting": ["waiting"],
        "sent": ["done"],
        "put off": ["waiting", "waiting"],
        "queued": ["queued", "queued"],
        "held": ["waiting"],
        "joined": ["queued", "queued"],
        "in a window": ["queued"],
    }
    assert {count.name: dict(count.jobs) for count in queue.batches()} == {
        name: {found[0].state: len(found)} for name, found in rows.items()
    }
    assert queue.is_paused()


def test_known_facts_of_jobs_are_shown(queue: Queue) -> None:
    rows = by_name(queue)
    [done], [sent], [waiting] = rows["done"], rows["sent"], rows["waiting"]
    assert done.row["status"] == "translated"
    assert done.worker
    assert done.worker.startswith("@HOST@:")
    assert done.submitted <= (done.started or 0) <= (done.ended or 0)
    assert report_of(rows["done"]).studies[0].seconds == done.seconds > 0
    assert sent.transfers == {
        "receive": (1_790_000_000.25, 1_790_000_001.5),
        "send": (1_790_000_010.0, 1_790_000_012.0),
    }
    assert sent.established == "user's reference"
    assert StudyJob.from_json(sent.payload).incomplete == "lacks 2 of 20 images"
    assert waiting.scheduling == LOW
    assert waiting.not_before == datetime(2999, 1, 1, tzinfo=UTC).timestamp()
    assert rows["running"][0].tries == 1
    assert rows["in a window"][0].scheduling == AT_NIGHT
    assert [row.reason for row in rows["given up"]] == [
        "1 workers crashed while running it; see their logs, then run 'jobs retry'"
    ]
    [failed] = rows["failed"]
    assert failed.reason
    assert failed.reason.startswith("unreadable: @ROOT@/in/empty.nii ")
    assert [row.deferred for row in rows["put off"]] == ["output: The disk is full.", ""]
    assert [row.job for row in queue.deferred()] == [rows["put off"][0].job]


def test_submissions_join_batches_and_open_work_is_known_as_before(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first, second] = by_name(queue)["joined"]
    assert first.route == "T1TOT2"
    assert {first.job, second.job} < {*queue.open_keys().values()}
    assert queue.known_keys() > queue.open_keys().keys(), "those that ended badly too"
    monkeypatch.setattr(StudyJob, "key", lambda job: job.study)  # its files are gone
    added = queue.submit([StudyJob.from_json(first.payload)], LOW, joins="tonight")
    assert added.jobs == {"joined.nii": first.job[:-1] + "3"}


def test_a_queue_is_moved_once_and_whole(
    place: QueuePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move that ends in the middle leaves the queue of 0.2.0, which the next one moves."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dbos_queue, "leave_mark", die)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt), open_queue(place):
                pass
    with open_queue(place) as queue:
        before = queue.jobs("")
    with monkeypatch.context() as patch:
        patch.setattr(dbos_queue, "move_jobs", die)
        with open_queue(place, create=True) as queue:
            assert queue.jobs("") == before
    assert len(before) == JOBS


def test_version_0_2_0_finds_the_queue_of_a_newer_program(
    place: QueuePlace, tables: Database
) -> None:
    with tables.reading() as transaction:
        schema = "" if place.file else "dbos."
        version = transaction.value(f"SELECT version FROM {schema}dbos_migrations")
        assert version > 125, "the tables of DBOS 3.4"
        assert not tables.has_table(transaction, f"{schema}workflow_status")


def test_a_queue_is_not_moved_while_a_worker_of_version_0_2_0_lives(
    place: QueuePlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    reported = pytest.raises(
        QueueError, match=r"workers of that version run on it \(1\); stop them"
    )
    with ExitStack() as stack:
        if place.file:
            folder = Path(f"{place.file}.workers")
            folder.mkdir()
            lock(stack.enter_context((folder / "me:cpu.lock").open("w")).fileno())
        else:
            other = stack.enter_context(closing(psycopg.connect(place.url, autocommit=True)))
            number = crc32(b"cuda-cyclegan workers") & 0x7FFFFFFF
            other.execute("SELECT pg_advisory_lock(%s, 5)", [number])
        for create in (False, True):
            with reported, open_queue(place, create=create):
                pass
    with open_queue(place) as queue:
        assert len(queue.jobs("")) == JOBS


def test_tables_that_another_program_shares_are_left_alone(place: QueuePlace) -> None:
    if place.file:
        pytest.skip("a file is the queue's own")
    with closing(psycopg.connect(place.url, autocommit=True)) as server:
        server.execute(
            "INSERT INTO dbos.queues (name, application_name) VALUES ('other', 'another program')"
        )
    with pytest.raises(QueueError, match="shares its tables"), open_queue(place):
        pass
    with closing(psycopg.connect(place.url, autocommit=True)) as server:
        server.execute("DELETE FROM dbos.queues WHERE application_name = 'cuda-cyclegan'")
        server.execute("DELETE FROM dbos.workflow_status")
    with open_queue(place, create=True) as queue:
        assert queue.batches() == []
    with closing(psycopg.connect(place.url)) as server:
        assert server.execute("SELECT name FROM dbos.queues").fetchall() == [("other",)]


def test_no_row_is_unpickled(place: QueuePlace, tmp_path: Path) -> None:
    trap = tmp_path / "unpickled"
    stored = base64.b64encode(pickle.dumps(_Touch(trap))).decode()
    schema, mark = ("", "?") if place.file else ("dbos.", "%s")
    database = sqlite3.connect(place.file) if place.file else psycopg.connect(place.url)
    with closing(database) as opened:
        opened.execute(f"UPDATE {schema}workflow_status SET serialization = 'py_pickle'")
        opened.execute(f"UPDATE {schema}workflow_input SET inputs = {mark}", [stored])
        opened.execute(f"UPDATE {schema}workflow_output SET output = {mark}", [stored])
        opened.commit()
    with open_queue(place) as queue:
        rows = queue.jobs("")
    assert len(rows) == JOBS
    assert {row.payload for row in rows} == {""}
    assert not trap.exists()


class _Touch:
    """Object that makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(self._file),)


def test_work_goes_on(queue: Queue, tables: Database) -> None:
    batches, claims = named(queue), Claims(tables, "one")
    assert claims.scheduling_classes() == []
    queue.resume()
    assert claims.scheduling_classes() == [AT_NIGHT, NORMAL, LOW]
    [(dead, tokens)] = claims.in_flight().items()
    assert dead.startswith("@HOST@:")
    assert claims.reclaim(tokens) == 1
    claims.wake()
    urgent = [claims.claim(URGENT), claims.claim(URGENT)]
    assert [claim and claim.job for claim in urgent] == [
        f"{batches['put off']}/00002",  # the other one was put off and goes last
        f"{batches['put off']}/00001",
    ]
    alone = claims.claim(NORMAL)
    assert alone
    assert alone.alone
    assert alone.batch == batches["running"]
    assert alone.tries == 2
    for claim in (*urgent, alone):
        assert claim
        assert StudyJob.from_json(claim.payload).study == claim.study
        assert claims.acknowledge(claim, {"row": {"status": "translated"}}, well=True)
    assert {row.state for row in queue.jobs("") if row.job == alone.job} == {"done"}
    joined = [claims.claim(LOW), claims.claim(LOW)]
    assert [claim and claim.batch for claim in joined] == [batches["joined"]] * 2
    assert claims.claim(LOW) is None  # it waits for the year 2999, or is held


def test_jobs_are_queued_again_started_cancelled_and_forgotten(
    queue: Queue, tables: Database
) -> None:
    batches, claims = named(queue), Claims(tables, "one")
    for name in ("failed", "given up", "cancelled"):
        assert queue.retry(batches[name]) == Retried(again=1, known=0)
        assert [row.state for row in queue.jobs(batches[name])] == ["queued"]
    assert queue.run_now(batches["waiting"]) == 1
    assert queue.run_now(batches["in a window"]) == 1
    low = [claims.claim(LOW) for _ in range(3)]
    assert {claim and claim.batch for claim in low} == {batches["waiting"], batches["joined"]}
    assert claims.claim(URGENT)
    assert queue.cancel(batches["queued"]) == 2
    queue.record_sent(f"{batches['done']}/00001", (5.0, 6.0))
    assert queue.jobs(batches["done"])[0].transfers == {"send": (5.0, 6.0)}
    before = datetime.now().astimezone() + timedelta(days=1)
    assert queue.prune(before) == len(["done", "sent", "queued", "queued"])
    assert {"done", "sent", "queued"}.isdisjoint(named(queue))
