"""Short versions of the benchmark that ends node, workers, a PACS and a database on the way."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks.node_chaos import Trial, run
from support import queue_postgres


def check(found: dict[str, Any], trial: Trial) -> None:
    assert found["derived series"] == trial.series
    assert sum(found["kills"].values()) == trial.kills + trial.outages
    for nothing in (
        "studies without one",
        "studies with several",
        "derived series of another length",
        "with errors",
        "unfinished files",
    ):
        assert found[nothing] == 0, (nothing, found)
    assert found["judged by dciodvfy"] == trial.judged


@pytest.mark.slow
def test_kills_and_a_restart_of_the_pacs_lose_and_double_nothing(tmp_path: Path) -> None:
    trial = Trial(series=8, kills=3, restarts=1, judged=2)
    check(run(tmp_path, trial), trial)


@pytest.mark.slow
def test_kills_of_the_database_lose_and_double_nothing(tmp_path: Path) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    trial = Trial(series=24, kills=1, restarts=0, outages=2, outage_seconds=1.0, judged=2)
    with queue_postgres.server() as server:
        found = run(tmp_path, trial, server)
    check(found, trial)
    assert found["kills of the database"] == 2
