"""A queue on both databases."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from support import queue_postgres

from cuda_cyclegan.pipelines.jobs.queue.database import Database
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables


@pytest.fixture(scope="module")
def server() -> Generator[queue_postgres.Server]:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> QueuePlace:
    if request.param == "sqlite":
        return queue_place(str(tmp_path / "private" / "queue.db"))
    server: queue_postgres.Server = request.getfixturevalue("server")
    database = f"jobs_{os.urandom(4).hex()}"
    return queue_place(server.url.replace("/jobs", f"/{database}"))


@pytest.fixture
def tables(place: QueuePlace) -> Generator[Database]:
    with open_tables(place, create=True) as opened:
        yield opened


@pytest.fixture
def queue(tables: Database) -> Queue:
    return Queue(tables)
