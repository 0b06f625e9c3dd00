"""Ctrl-C, SIGTERM and kill -9 at random moments; benchmarks/random_kills.py does it 200 times."""

from pathlib import Path

import pytest
from support.fault_kills import Kills


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "number"), [(1, 12), (2, 8)])
def test_killed_at_random_moments_the_runs_add_up(
    tmp_path: Path, workers: int, number: int
) -> None:
    tally = Kills(tmp_path, studies=6, workers=workers, seed=workers).run(number)
    assert tally.kills == number
