"""The pause between two tries, and crash attribution."""

import time

import pytest

from cuda_cyclegan.pipelines.retries import Backoff, crash_counts


def test_the_pause_doubles_up_to_a_limit_and_starts_anew_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    backoff = Backoff(0.25, 60.0)
    assert backoff.is_over
    pauses = list[float]()
    for _ in range(10_000):
        backoff.lengthen()
        pauses.append(backoff.until - 1000.0)
    assert pauses[:4] == [0.25, 0.5, 1.0, 2.0]
    assert pauses[-1] == 60.0
    assert not backoff.is_over
    backoff.reset()
    assert backoff.is_over
    backoff.lengthen()
    assert backoff.seconds == 0.25


def test_a_study_is_blamed_for_deaths_that_it_had_alone() -> None:
    assert crash_counts(1)
    assert not crash_counts(2)
