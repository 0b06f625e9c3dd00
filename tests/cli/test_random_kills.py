"""Ctrl-C, SIGTERM and kill -9 at random moments; benchmarks/random_kills.py does it 200 times."""

from pathlib import Path

import pytest
from helpers.fault_kills import Kills


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_the_runs_add_up(tmp_path: Path, workers: int) -> None:
    kills = Kills(tmp_path, studies=8, workers=workers, seed=workers)
    tally = kills.run(8)
    assert tally.kills == 8
