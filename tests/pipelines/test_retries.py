"""The pause between two tries, and crash attribution."""

import time

import pytest

from cuda_cyclegan.pipelines.errors import QueueLostError
from cuda_cyclegan.pipelines.retries import Backoff, Once, crash_counts, kind_of


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


def test_a_problem_is_reported_again_only_after_it_passed_or_changed() -> None:
    problem = Once()
    assert [problem.is_new(kind) for kind in ("full", "full", "gone", "full")] == [1, 0, 1, 1]
    problem.passed()
    assert problem.is_new("full")


def test_a_lost_server_is_one_problem_whatever_it_says() -> None:
    assert kind_of(QueueLostError("refused")) == kind_of(QueueLostError("timed out"))
    assert kind_of(OSError("refused")) != kind_of(OSError("timed out"))


def test_a_problem_that_actions_share_is_reported_once_until_it_passed_for_all() -> None:
    problem = Once()
    assert [problem.is_new("full", action) for action in ("send", "fetch")] == [True, False]
    problem.passed("send")
    assert not problem.is_new("full", "send")
    problem.passed("send")
    problem.passed("fetch")
    assert problem.is_new("full", "fetch")
