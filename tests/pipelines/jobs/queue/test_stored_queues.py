"""Queues of the first released tables (tests/fixtures/queue) stay readable and workable."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from support import queue_postgres
from support.queue_jobs import NORMAL

from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.job import JobRow, Retried, StudyJob
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.queue.store import QueueTables, open_tables
from cuda_cyclegan.pipelines.jobs.summary import report_of

STORED = Path(__file__).parents[3] / "fixtures" / "queue"
URGENT, LOW = SchedulingClass("urgent"), SchedulingClass("low")
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
def tables(place: QueuePlace) -> Generator[QueueTables]:
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
        "in a window": ["queued"],
    }
    assert {count.name: dict(count.jobs) for count in queue.batches()} == {
        name: {found[0].state: len(found)} for name, found in rows.items()
    }
    assert queue.is_paused()


def test_what_is_known_of_jobs_is_shown(queue: Queue) -> None:
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


def test_work_goes_on(queue: Queue, tables: QueueTables) -> None:
    batches, claims = named(queue), Claims(tables, "one")
    assert claims.scheduling_classes() == []
    queue.resume()
    assert claims.scheduling_classes() == [AT_NIGHT, URGENT, NORMAL, LOW]
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
    assert claims.claim(LOW) is None  # it waits for the year 2999


def test_jobs_are_queued_again_started_cancelled_and_forgotten(
    queue: Queue, tables: QueueTables
) -> None:
    batches, claims = named(queue), Claims(tables, "one")
    for name in ("failed", "given up", "cancelled"):
        assert queue.retry(batches[name]) == Retried(again=1, known=0)
        assert [row.state for row in queue.jobs(batches[name])] == ["queued"]
    assert queue.run_now(batches["waiting"]) == 1
    assert queue.run_now(batches["in a window"]) == 1
    assert claims.claim(LOW)
    assert claims.claim(URGENT)
    assert queue.cancel(batches["queued"]) == 2
    queue.record_sent(f"{batches['done']}/00001", (5.0, 6.0))
    assert queue.jobs(batches["done"])[0].transfers == {"send": (5.0, 6.0)}
    before = datetime.now().astimezone() + timedelta(days=1)
    assert queue.prune(before) == len(["done", "sent", "queued", "queued"])
    assert {"done", "sent", "queued"}.isdisjoint(named(queue))
