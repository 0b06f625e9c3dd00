"""Peak host memory."""

from pathlib import Path

import numpy as np

from cuda_cyclegan.pipelines.memory import PeakMeter

MIB = 2**20


def test_the_peak_of_one_study_is_not_the_next_ones() -> None:
    large = PeakMeter()
    np.ones(200 * MIB, np.uint8)
    first = large.read()
    small = PeakMeter()
    second = small.read()
    assert not first.of_run
    assert first.bytes - second.bytes > 150 * MIB


def test_without_a_mark_to_reset_the_peak_of_the_run_is_told_as_such(tmp_path: Path) -> None:
    peak = PeakMeter(tmp_path / "no-such-process").read()
    assert peak.of_run
    assert peak.bytes > 10 * MIB
