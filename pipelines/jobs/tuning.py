"""Reports of a worker on the search for tactics: its start and its outcome."""

import time
from collections.abc import Generator
from contextlib import contextmanager

from ...engine.options import Progress
from ..events import Remark
from .events import OnEvent, TuningBegan, TuningEnded


@contextmanager
def tuning_reported(on_event: OnEvent) -> Generator[Progress]:
    """Yield a progress callback for opening one generator; a failed search raises its error."""
    began = ended = 0.0
    plans = 0

    def hear(what: str, share: float | None) -> None:
        nonlocal began, ended, plans
        if share is None:
            on_event(Remark(what))
            return
        if not began:
            began = time.monotonic()
            on_event(TuningBegan())
        ended = time.monotonic()
        plans += share < 1

    yield hear
    if began:
        on_event(TuningEnded(ended - began, plans))
