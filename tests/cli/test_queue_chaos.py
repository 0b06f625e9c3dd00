"""Short versions of the benchmarks that kill workers at work, and that give them equal names."""

from pathlib import Path

import pytest
from benchmarks import queue_equal_names
from benchmarks.queue_chaos import Trial, run
from support import queue_postgres
from support.queue_world import QueueWorld

SMALL = (32, 28, 24)
"""Extents of scans: a job of which takes a worker about as long as what the queue asks of it."""


def check(world: QueueWorld, trial: Trial) -> None:
    try:
        found = run(world, trial)
    finally:
        world.close()
    assert found["kills"] == trial.kills
    assert found["results"] == found["studies"] >= trial.studies
    for nothing in (
        "missing",
        "other than those of translate",
        "parts left",
        "kills with nothing in hand",
        "written twice without a kill",
        "recorded twice",
    ):
        assert found[nothing] == 0, (nothing, found)


@pytest.mark.slow
def test_kills_at_work_lose_and_double_nothing(tmp_path: Path) -> None:
    check(QueueWorld(tmp_path), Trial(studies=16, kills=2, workers=2, extents=SMALL))


@pytest.mark.slow
def test_a_restart_of_the_server_and_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        world = QueueWorld(tmp_path, server.url)
        trial = Trial(16, 1, 2, server, outage_seconds=2.0, extents=SMALL)
        check(world, trial)


@pytest.mark.slow
def test_workers_of_equal_names_take_no_jobs_from_each_other(tmp_path: Path) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        world = QueueWorld(tmp_path, server.url)
        try:
            trial = queue_equal_names.Trial(seconds=4.0, extents=SMALL, outage_seconds=1.0)
            found = queue_equal_names.run(world, server, trial)
        finally:
            world.close()
    assert len(found["workers"]) == 2
    assert all(found["jobs done by each"])
    for nothing in (
        "jobs begun more than once",
        "jobs of a second try",
        "jobs that failed",
        "workers that died",
    ):
        assert found[nothing] == 0, (nothing, found)
