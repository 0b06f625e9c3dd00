"""Seconds a stage of one study."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

Stage: TypeAlias = Literal["read", "prepare", "infer", "blend", "finish", "write"]
STAGES: tuple[Stage, ...] = get_args(Stage)


class Stopwatch:
    """Adds up the seconds of stages, also of the one that fails.

    stage: where the study is, or where it stopped; None before the first stage.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self.stage: Stage | None = None
        self.seconds: dict[Stage, float] = {}

    @contextmanager
    def time(self, stage: Stage) -> Generator[None]:
        """Count the time inside the block for a stage."""
        self.stage = stage
        start = self._clock()
        try:
            yield
        finally:
            self.add(stage, self._clock() - start)

    def add(self, stage: Stage, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def total(self) -> float:
        """Seconds since the stopwatch was made."""
        return self._clock() - self._started
