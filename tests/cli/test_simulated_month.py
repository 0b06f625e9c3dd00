"""Short version of the benchmark that simulates a month of nights, on both databases."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support import queue_postgres
from support.driver_in_memory import needs_compiler
from support.wall_clock import environment

ZONE = "Europe/Berlin"
TESTS = Path(__file__).parents[1]
SCRIPT = """
import json, sys
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from benchmarks.simulated_month import Trial, run
from support import queue_postgres

trial = Trial(date(2026, 10, 23), 3, 10, 1, failovers=frozenset({2}), short=frozenset({0}))
with queue_postgres.server() if sys.argv[2] == "postgresql" else nullcontext() as server:
    print(json.dumps(run(Path(sys.argv[1]), trial, server)))
"""


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nights_with_a_change_of_the_clock_lose_and_double_nothing(
    tmp_path: Path, database: str
) -> None:
    if database == "postgresql" and not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    # Not below tmp_path: the server's account has the same clock, and may not look there.
    with tempfile.TemporaryDirectory() as clock:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path), database],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": str(TESTS), **environment(Path(clock), ZONE)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert (found["jobs done"], found["jobs failed"], found["results"]) == (24, 6, 24)
    assert found["written twice"] == 0
