"""Figures of a batch."""

import pytest

from cuda_cyclegan.pipelines.report.report import Use


@pytest.mark.parametrize(
    ("use", "share", "overlap"),
    [
        (Use(wall=10.0, busy=15.0, computing=8.0, devices=1), 0.8, 1.5),
        (Use(wall=10.0, busy=40.0, computing=16.0, devices=2), 0.8, 4.0),
        (Use(wall=10.0, busy=40.0, computing=16.0, devices=1), 1.0, 4.0),  # two processes on it
        (Use(wall=0.0, busy=0.0, computing=0.0, devices=1), 0.0, 0.0),
        (Use(wall=1.0, busy=1.0, computing=0.0, devices=0), 0.0, 1.0),
    ],
)
def test_the_share_in_the_network_is_that_of_all_devices(
    use: Use, share: float, overlap: float
) -> None:
    assert use.computing_share == pytest.approx(share)
    assert use.overlap == pytest.approx(overlap)
