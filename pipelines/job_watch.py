"""What a worker keeps an eye on besides its job, in a thread of its own."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from .errors import QueueLostError
from .queue_claims import Claims
from .queue_life import Life
from .queue_state import Claim

WATCH_SECONDS = 1.0


class Watch:
    """A context manager that owns the thread.

    It renews the worker's life, takes over from dead workers, wakes jobs whose time has come,
    interrupts the job at hand (SIGUSR1) if it was cancelled or taken over, and stops the worker
    (SIGTERM) when its parent is gone.
    """

    def __init__(self, claims: Claims, life: Life) -> None:
        self._claims = claims
        self._life = life
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._orphaned = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=WATCH_SECONDS)

    @contextmanager
    def over(self, claim: Claim) -> Generator[None]:
        """Interrupt the block as soon as the job is not ours any more."""
        self._claim = claim
        try:
            yield
        finally:
            with self._lock:
                self._claim = None

    def _run(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            self._mind_parent()
            with suppress(QueueLostError):
                self._life.renew()
                self._claims.wake()
                self._mind_claim()
                self._take_over()

    def _mind_claim(self) -> None:
        claim = self._claim
        if claim is None or self._claims.is_ours(claim):
            return
        with self._lock:
            if self._claim is claim:
                os.kill(os.getpid(), signal.SIGUSR1)

    def _mind_parent(self) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive() and not self._orphaned:
            self._orphaned = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _take_over(self) -> None:
        for worker in self._claims.workers():
            if self._life.is_dead(worker):
                self._claims.take_over(worker)
