"""Timer of the stages of one study, with the spans of their work."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Stage: TypeAlias = Literal[
    "receive", "read", "prepare", "copy", "infer", "blend", "finish", "write", "send"
]
STAGES: tuple[Stage, ...] = get_args(Stage)
NOT_ALWAYS: frozenset[Stage] = frozenset({"receive", "copy", "send"})
"""Stages that not every run has: only a GPU reports copies, and only a node receives and sends."""


@dataclass(frozen=True, slots=True)
class Span:
    """Span of work on a study; start and stop on the clock of `time.perf_counter`.

    track: the thread or device queue that did it. study: its name. stage: kind of work.
    """

    study: str
    stage: Stage
    track: str
    start: float
    stop: float

    @property
    def seconds(self) -> float:
        return self.stop - self.start


def forget(_: Span) -> None:
    """Ignore a span, for a stopwatch of which only the sums are needed."""


class Stopwatch:
    """Timer that sums the seconds of stages, including a failed one, without waits between stages.

    record: callback for each span of work. stage: the study's current or last stage; None before
    the first stage. One thread at a time may use it.
    """

    def __init__(
        self,
        study: str = "",
        record: Callable[[Span], None] = forget,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._study = study
        self._record = record
        self._clock = clock
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
            self.add(stage, threading.current_thread().name, start, self._clock())

    def now(self) -> float:
        """Return the time on this stopwatch's clock, in any thread."""
        return self._clock()

    def add(self, stage: Stage, track: str, start: float, stop: float) -> None:
        """Count a span that was measured elsewhere."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + stop - start
        self._record(Span(self._study, stage, track, start, stop))

    def total(self) -> float:
        """Return the seconds of all stages."""
        return sum(self.seconds.values())
