"""Supervisor that runs a worker process for each device and replaces each that dies."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Generic, Literal, TypeAlias, TypeVar

from ..retries import Backoff
from .process import WorkerProcess

Order = TypeVar("Order")
News = TypeVar("News")

Restart: TypeAlias = Literal["none", "at once", "in vain"]
"""Successor of an ended worker: none, one, or one unless too many ended in vain."""


@dataclass(slots=True)
class _Place(Generic[Order, News]):
    """Device and its current worker. due: start time of its next worker, None if there is none.

    in_vain: number of workers that ended in vain one after another.
    """

    device: str
    launch: Callable[[], WorkerProcess[Order, News]]
    backoff: Backoff
    worker: WorkerProcess[Order, News] | None = None
    began: float = 0.0
    due: float | None = 0.0
    in_vain: int = 0


class Supervisor(Generic[Order, News]):
    """Supervisor of worker processes; all methods but `run` and `post` are for `run`'s thread only.

    launches: function that starts a worker, for each device. handle: callback for messages of a
    device's worker. on_end: callback for the end of a worker, with its exit status or a negative
    signal number, and its run time in seconds; returns what follows. most: workers of a device that
    may end in vain one after another, None for any number. first, longest: delay in seconds before
    the second successor of such a worker, which doubles from `first` up to `longest`.
    """

    def __init__(
        self,
        launches: Mapping[str, Callable[[], WorkerProcess[Order, News]]],
        handle: Callable[[str, News], None],
        on_end: Callable[[str, int, float], Restart],
        most: int | None = None,
        first: float = 0.0,
        longest: float = 0.0,
    ) -> None:
        self._places = [
            _Place(device, start, Backoff(first, longest)) for device, start in launches.items()
        ]
        self._handle, self._on_end = handle, on_end
        self._most = most
        self._posted: deque[Callable[[], None]] = deque()
        self._woken, self._wake = Pipe(duplex=False)
        self._deadline: float | None = None
        self._is_stopping = False

    def run(self) -> None:
        """Run until no worker is left and none is due."""
        while any(place.worker or place.due is not None for place in self._places):
            for place in self._places:
                self._start_if_due(place)
            self._wait()
            while self._posted:
                self._posted.popleft()()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._kill()

    def post(self, action: Callable[[], None]) -> None:
        """Schedule an action in the thread of `run`; for other threads and signal handlers."""
        self._posted.append(action)
        self._wake.send_bytes(b"!")

    def send(self, device: str, order: Order) -> None:
        """Send an order to a device's worker."""
        for place in self._places:
            if place.device == device and place.worker:
                place.worker.channel.send(order)

    def let_go(self, device: str) -> None:
        """Stop waiting for a device's worker that has sent its last message.

        Its process still needs the time that the driver takes to close a GPU, 0.2 s or more.
        """
        for place in self._places:
            if place.device == device and place.worker:
                place.worker.let_go()
                self._replace(place, 0)

    def stop(self, order: Order) -> None:
        """Send an order to all workers, and start none from now on."""
        self._is_stopping = True
        for place in self._places:
            place.due = None
            if place.worker:
                place.worker.channel.send(order)

    def kill_in(self, seconds: float) -> None:
        """Kill the workers that are left after `seconds`."""
        self._deadline = time.monotonic() + seconds

    def _start_if_due(self, place: _Place[Order, News]) -> None:
        if place.due is not None and place.due <= time.monotonic():
            place.worker, place.due = place.launch(), None
            place.began = time.monotonic()

    def _wait(self) -> None:
        """Handle the messages that are ready; wait for one, or until something is due."""
        workers = {place.worker.channel.fileno(): place for place in self._places if place.worker}
        moments = [self._deadline, *(place.due for place in self._places)]
        soonest = min((moment for moment in moments if moment is not None), default=None)
        patience = None if soonest is None else max(soonest - time.monotonic(), 0)
        ready = wait([self._woken, *workers], patience)
        if self._woken in ready:
            self._woken.recv_bytes()
        for descriptor, place in workers.items():
            if descriptor in ready:
                self._attend(place)

    def _attend(self, place: _Place[Order, News]) -> None:
        assert place.worker
        try:
            news = place.worker.channel.receive()
        except EOFError:
            self._replace(place, place.worker.reap())
        else:
            self._handle(place.device, news)

    def _replace(self, place: _Place[Order, News], status: int) -> None:
        place.worker = None
        restart = self._on_end(place.device, status, time.monotonic() - place.began)
        place.in_vain = place.in_vain + 1 if restart == "in vain" else 0
        if place.in_vain > 1:
            place.backoff.lengthen()
        else:
            place.backoff.reset()
        is_last = self._most is not None and place.in_vain >= self._most
        if restart != "none" and not (is_last or self._is_stopping):
            place.due = max(place.backoff.until, time.monotonic())

    def _kill(self) -> None:
        self._deadline = None
        for place in self._places:
            if place.worker:
                place.worker.kill()
