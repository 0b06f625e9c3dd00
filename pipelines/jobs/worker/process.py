"""All that one worker process needs, opened and closed in order, and what it watches meanwhile."""

import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from ....engine.startup import name_on_machine
from ...errors import QueueError, QueueLostError
from ..queue.claims import Claims
from ..queue.liveness import Membership, membership
from ..queue.location import QueuePlace
from ..queue.store import open_tables
from .client import JobClient, Outage
from .messages import Tell, WorkerEnd, WorkerSettings
from .warm_device import WarmDevice
from .worker import JobWorker

WATCH_SECONDS = 1.0
STRAY_SECONDS = 5.0
"""How long a job may be ours and not in hand, as it is for a moment while it is taken."""


def work(
    place: QueuePlace,
    device: str,
    settings: WorkerSettings,
    tell: Tell,
    ready: Callable[[JobWorker], None] = lambda _: None,
) -> WorkerEnd:
    """Do the jobs of a queue on one device; ready: called with what can be stopped from then on.

    Waits for a queue that does not answer. Raises QueueError or DeviceUnavailableError.
    """
    with ExitStack() as stack:
        name = name_on_machine(device)
        claims, member = _joined(stack, place, name, settings.only, Outage(tell))
        warm = stack.enter_context(WarmDevice(device, settings, tell))
        jobs = JobClient(claims, settings, tell, _hindrance(device, settings))
        worker = JobWorker(jobs, warm, settings, tell)
        ready(worker)
        with Watch(claims, member, worker):
            return worker.run()


def _joined(
    stack: ExitStack, place: QueuePlace, device: str, only: str, outage: Outage
) -> tuple[Claims, Membership]:
    while True:
        try:
            return stack.enter_context(_joined_once(place, device, only))
        except QueueLostError as error:
            outage.wait(error)


@contextmanager
def _joined_once(place: QueuePlace, device: str, only: str) -> Generator[tuple[Claims, Membership]]:
    """A queue's jobs for one worker, under a name of its own."""
    with open_tables(place, create=True) as tables, membership(place, device) as member:
        claims = Claims(tables, member.name, only)
        # The name is ours now, so whoever held jobs under it is dead.
        claims.reclaim(claims.in_flight().get(member.name, ()))
        claims.wake()  # before it is asked whether anything is left
        yield claims, member


def _hindrance(device: str, settings: WorkerSettings) -> Callable[[], str | None]:
    if settings.yield_limits is None or not device.startswith("cuda"):
        return lambda: None
    from .gpu_sharing import OtherPrograms

    return OtherPrograms(device, settings.yield_limits).hindrance


class Watch:
    """A context manager that owns the thread.

    It renews the worker's membership, takes over from dead workers, wakes jobs whose time has come,
    lets the worker leave jobs that were cancelled or taken over, puts back those that it was given
    in an answer which never came, and stops it when its name is another worker's.
    """

    def __init__(self, claims: Claims, membership: Membership, worker: JobWorker) -> None:
        self._claims = claims
        self._membership = membership
        self._worker = worker
        self._strays: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=WATCH_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            with suppress(QueueError):
                is_named = self._membership.renew()
                self._claims.wake()
                self._mind_jobs()
                if is_named:
                    self._take_over()
                elif self._membership.is_lost():
                    self._worker.restart()

    def _mind_jobs(self) -> None:
        in_hand = self._worker.jobs.in_hand()
        ours = self._claims.owned(taken.claim for taken in in_hand) if in_hand else set[str]()
        for taken in in_hand:
            if taken.claim.token not in ours:
                self._worker.leave(taken)

    def _take_over(self) -> None:
        held = self._claims.in_flight()
        self._put_back_strays(held.pop(self._membership.name, ()))
        for worker, tokens in held.items():
            if self._membership.is_dead(worker):
                self._claims.reclaim(tokens)

    def _put_back_strays(self, held: Collection[str]) -> None:
        """held: the tokens of all jobs that are ours by what the queue says."""
        in_hand = {taken.claim.token for taken in self._worker.jobs.in_hand()}
        now = time.monotonic()
        self._strays = {token: self._strays.get(token, now) for token in set(held) - in_hand}
        lost = [token for token, since in self._strays.items() if now - since >= STRAY_SECONDS]
        if lost:
            self._claims.put_back(lost)
