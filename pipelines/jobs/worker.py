"""Resources of a worker process, opened and closed in order, and its monitor thread."""

import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Self

from ...engine.devices import choose_device
from ...engine.startup import name_on_machine
from ..errors import QueueError
from ..events import Remark, Tuning
from ..host.thread_limits import is_out_of_threads
from ..run.in_flight import DeviceLostError
from ..run.networks import Networks
from ..run.pipeline import concurrency_of
from ..run.worker import Worker
from .events import OnEvent, WorkerEnd, WorkerSettings
from .planner import JobPlanner
from .queue.claims import Claims
from .queue.liveness import Membership, membership
from .queue.location import QueuePlace
from .queue.store import open_tables
from .source import Outage, QueueSource

MONITOR_SECONDS = 1.0
END_SECONDS = 30.0
"""Longest wait for the last requests of a monitor, to a queue that may not answer."""

STRAY_SECONDS = 5.0
"""Seconds for which a claimed job may be missing in the source, as while a claim is in progress."""


def work(
    place: QueuePlace,
    device: str,
    settings: WorkerSettings,
    on_event: OnEvent,
    ready: Callable[[Worker], None] = lambda _: None,
) -> WorkerEnd:
    """Run the jobs of a queue on one device; ready: called with the worker, to be able to stop it.

    Waits for a queue that does not answer. Raises QueueError or DeviceUnavailableError.
    """
    with ExitStack() as stack:
        name, outage = name_on_machine(device), Outage(on_event)
        claims, member = outage.retry(
            lambda: stack.enter_context(_joined(place, name, settings.only))
        )
        chosen = choose_device(device, settings.limits)
        networks = stack.enter_context(Networks(chosen, keeps=True))
        planner = stack.enter_context(JobPlanner(device, chosen, networks, on_event))
        hindrance = _hindrance(device, settings)
        source = QueueSource(claims, planner, settings, on_event, hindrance, outage)
        worker = Worker(networks, source, partial(concurrency_of, chosen, settings.sharing))
        ready(worker)
        with Monitor(claims, member, source, worker):
            return _ended(worker, source, on_event)


def _ended(worker: Worker, source: QueueSource, on_event: OnEvent) -> WorkerEnd:
    """Run a worker until it is stopped, and settle its claims. Raises as `work`."""

    def abort() -> None:
        worker.stop()
        worker.abort()

    try:
        for event in worker.run():
            if isinstance(event, Remark | Tuning):
                on_event(event)
    except DeviceLostError as error:
        abort()
        source.reclaim(str(error))
    except RuntimeError as error:
        abort()
        if is_out_of_threads(error):  # another process may be able to start them
            source.release_all()
        raise
    if source.is_empty:
        return "empty"
    source.release_all()
    return "restart" if source.needs_restart else "stopped"


@contextmanager
def _joined(place: QueuePlace, device: str, only: str) -> Generator[tuple[Claims, Membership]]:
    """Open a queue's claims for one worker, under a name of its own."""
    with open_tables(place, create=True) as tables, membership(tables, device) as member:
        claims = Claims(tables, member.name, only)
        # This process holds the name now, so a worker that claimed jobs under it is dead.
        claims.reclaim(claims.in_flight().get(member.name, ()))
        claims.wake()  # before the check for remaining jobs
        yield claims, member


def _hindrance(device: str, settings: WorkerSettings) -> Callable[[], str | None]:
    if settings.yield_limits is None or not device.startswith("cuda"):
        return lambda: None
    from .gpu_sharing import OtherPrograms

    return OtherPrograms(device, settings.yield_limits).hindrance


class Monitor:
    """Monitor thread of a worker; a context manager that owns the thread.

    It reclaims jobs of dead workers, wakes jobs that are due, makes the worker cancel jobs that
    were cancelled or reclaimed, and releases jobs whose claim was recorded but never received.
    """

    def __init__(
        self, claims: Claims, membership: Membership, source: QueueSource, worker: Worker
    ) -> None:
        self._claims = claims
        self._membership = membership
        self._source = source
        self._worker = worker
        self._strays: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=END_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(MONITOR_SECONDS):
            with suppress(QueueError):
                self._claims.wake()
                self._cancel_lost()
                self._reclaim()

    def _cancel_lost(self) -> None:
        claimed = self._source.claimed()
        ours = self._claims.owned(claimed) if claimed else set[str]()
        for claim in claimed:
            if claim.token not in ours and self._source.has_in_flight(claim):
                self._worker.cancel(claim.work.study)

    def _reclaim(self) -> None:
        held = self._claims.in_flight()
        self._release_strays(held.pop(self._membership.name, ()))
        for worker in self._membership.dead(held):
            self._claims.reclaim(held.get(worker, ()))
            self._membership.forget(worker)

    def _release_strays(self, held: Collection[str]) -> None:
        """Release claimed jobs that the source has not received for STRAY_SECONDS.

        held: tokens of all jobs that this worker has claimed according to the queue.
        """
        claimed = {claim.token for claim in self._source.claimed()}
        now = time.monotonic()
        self._strays = {token: self._strays.get(token, now) for token in set(held) - claimed}
        lost = [token for token, since in self._strays.items() if now - since >= STRAY_SECONDS]
        if lost:
            self._claims.release(lost)
