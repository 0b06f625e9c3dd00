"""A short version of the benchmark that kills workers at work."""

from pathlib import Path

import pytest
from benchmarks.queue_chaos import Trial, run
from support import queue_postgres
from support.queue_world import QueueWorld


def check(world: QueueWorld, trial: Trial) -> None:
    try:
        found = run(world, trial)
    finally:
        world.close()
    assert found["kills"] == trial.kills
    assert found["results"] == trial.studies
    for nothing in (
        "missing",
        "other than those of translate",
        "parts left",
        "kills with nothing in hand",
        "written twice without a kill",
        "recorded twice",
    ):
        assert found[nothing] == 0, nothing


def test_kills_at_work_lose_and_double_nothing(tmp_path: Path) -> None:
    check(QueueWorld(tmp_path), Trial(studies=16, kills=2, workers=2))


def test_a_restart_of_the_server_and_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        world = QueueWorld(tmp_path, server.url)
        trial = Trial(studies=16, kills=1, workers=2, server=server, outage_seconds=2.0)
        check(world, trial)
