"""The clock of trial convolutions, against a card that only counts."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Self

import pytest

from cuda_cyclegan.engine.cuda import plan_bench
from cuda_cyclegan.engine.cuda.plan_bench import Places, PlanBench

HOST, WORK, LONG = 30.0, 5.0, 400.0
"""Microseconds: what a launch takes the host, and what short and long work takes the card."""


class CountingStream:
    """Launches work that takes the card so long, but one by one never less than the host."""

    def __init__(self, work: float) -> None:
        self.work, self.now, self.launched = work, 0.0, 0
        self.captured: list[float] | None = None

    def queue(self) -> None:
        if self.captured is not None:
            self.captured.append(self.work)
            return
        self.now += max(HOST, self.work)
        self.launched += 1

    def wait(self) -> None:
        pass

    @contextmanager
    def timed(self) -> Generator[list[float]]:
        elapsed: list[float] = []
        begin = self.now
        yield elapsed
        elapsed.append((self.now - begin) / 1000)


class CountingGraph:
    def __init__(self, stream: CountingStream, queue_work: Callable[[], None]) -> None:
        self._stream = stream
        stream.captured = []
        queue_work()
        self._work, stream.captured = sum(stream.captured), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def launch(self) -> None:
        self._stream.now += self._work


@pytest.mark.parametrize(
    ("work", "best", "launched"),
    [(WORK, float("inf"), 2), (WORK, WORK, 2), (LONG, LONG, 11), (LONG, WORK, 2)],
)
def test_short_plans_are_told_apart_and_long_ones_given_up_soon(monkeypatch, work, best, launched):
    """launched: runs one by one, the first of which is not timed."""
    monkeypatch.setattr(plan_bench, "CapturedGraph", CountingGraph)
    stream = CountingStream(work)
    bench = PlanBench(stream, Places(*[0] * 9))  # type: ignore[arg-type]
    assert bench.time(stream.queue, best) == pytest.approx(work)
    assert stream.launched == launched
