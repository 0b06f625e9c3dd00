"""Resources of a worker process, opened and closed in order, and its watch thread."""

import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Self

from ....engine.devices import Device, choose_device
from ....engine.generator import AnyGenerator
from ....engine.network.graph import Network
from ....engine.network.layers import Triple
from ....engine.options import Precision, Progress
from ....engine.startup import name_on_machine
from ...errors import QueueError, QueueLostError
from ...host.thread_limits import is_out_of_threads
from ...run.in_flight import DeviceLostError
from ...run.networks import Networks, OpenNetwork, open_network
from ...run.pipeline import concurrency_of
from ...run.worker import Worker
from ..queue.claims import Claims
from ..queue.liveness import Membership, membership
from ..queue.location import QueuePlace
from ..queue.store import open_tables
from .client import JobClient, Outage, TakenJob
from .messages import Tell, WorkerEnd, WorkerSettings
from .planner import JobPlanner
from .source import QueueSource
from .tuning import tuning_reported

WATCH_SECONDS = 1.0
STRAY_SECONDS = 5.0
"""Seconds for which a claimed job may be missing in the client, as while a claim is in progress."""


def work(
    place: QueuePlace,
    device: str,
    settings: WorkerSettings,
    tell: Tell,
    ready: Callable[["QueueWorker"], None] = lambda _: None,
) -> WorkerEnd:
    """Run the jobs of a queue on one device; ready: called with the worker, to be able to stop it.

    Waits for a queue that does not answer. Raises QueueError or DeviceUnavailableError.
    """
    with ExitStack() as stack:
        name = name_on_machine(device)
        claims, member = _joined(stack, place, name, settings.only, Outage(tell))
        chosen = choose_device(device, settings.limits)
        networks = Networks(chosen, keeps=True, open_network=_reported(tell))
        stack.enter_context(networks)
        planner = stack.enter_context(JobPlanner(device, chosen, networks, tell))
        jobs = JobClient(claims, settings, tell, _hindrance(device, settings))
        source = QueueSource(jobs, planner, settings, tell)
        concurrency = partial(concurrency_of, chosen, settings.sharing)
        worker = QueueWorker(source, Worker(networks, source, concurrency))
        ready(worker)
        with Watch(claims, member, worker):
            return worker.run()


class QueueWorker:
    """Worker whose jobs come from the queue; other threads may stop it."""

    def __init__(self, source: QueueSource, worker: Worker) -> None:
        self.jobs = source.jobs
        self._source = source
        self._worker = worker

    def stop(self) -> None:
        """Start no further job."""
        self._source.close()

    def stop_at_once(self) -> None:
        """Put jobs back that are not almost done, and end."""
        self._worker.stop_at_once()
        self.stop()

    def restart(self) -> None:
        """Stop immediately, to be replaced."""
        self._source.needs_restart = True
        self.stop_at_once()

    def leave(self, taken: TakenJob) -> None:
        """Cancel one job whose claim was lost; called repeatedly until it is gone."""
        if self._source.has_at_work(taken):
            self._worker.leave(taken.job.study)

    def run(self) -> WorkerEnd:
        """Work until stopped. Raises QueueError or DeviceUnavailableError."""
        try:
            for _ in self._worker.run():
                pass
        except DeviceLostError as error:
            self._abort()
            self._source.put_back(str(error))
        except RuntimeError as error:
            self._abort()
            if is_out_of_threads(error):  # another process may be able to start them
                self._source.hand_back()
            raise
        if self._source.is_empty:
            return "empty"
        self._source.hand_back()
        return "restart" if self._source.needs_restart else "stopped"

    def _abort(self) -> None:
        self._worker.stop()
        self._worker.abort()


def _reported(tell: Tell) -> OpenNetwork:
    """Return a function that opens networks and reports the search for tactics."""

    @contextmanager
    def opened(
        network: Network,
        device: Device,
        patch: Triple | None,
        precision: Precision,
        _progress: Progress,
    ) -> Generator[AnyGenerator]:
        with ExitStack() as stack:
            with tuning_reported(tell) as progress:
                opening = open_network(network, device, patch, precision, progress)
                generator = stack.enter_context(opening)
            yield generator

    return opened


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
    """Open a queue's claims for one worker, under a name of its own."""
    with open_tables(place, create=True) as tables, membership(place, device) as member:
        claims = Claims(tables, member.name, only)
        # This process holds the name now, so a worker that claimed jobs under it is dead.
        claims.reclaim(claims.in_flight().get(member.name, ()))
        claims.wake()  # before it is asked whether anything is left
        yield claims, member


def _hindrance(device: str, settings: WorkerSettings) -> Callable[[], str | None]:
    if settings.yield_limits is None or not device.startswith("cuda"):
        return lambda: None
    from .gpu_sharing import OtherPrograms

    return OtherPrograms(device, settings.yield_limits).hindrance


class Watch:
    """Watch thread of a worker; a context manager that owns the thread.

    It renews the worker's membership, reclaims jobs of dead workers, wakes jobs that are due, makes
    the worker cancel jobs that were cancelled or reclaimed, puts back jobs whose claim was recorded
    but never received, and stops the worker when another worker has its name.
    """

    def __init__(self, claims: Claims, membership: Membership, worker: QueueWorker) -> None:
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
        """Put back claimed jobs that the client has not received for STRAY_SECONDS.

        held: tokens of all jobs that this worker has claimed according to the queue.
        """
        in_hand = {taken.claim.token for taken in self._worker.jobs.in_hand()}
        now = time.monotonic()
        self._strays = {token: self._strays.get(token, now) for token in set(held) - in_hand}
        lost = [token for token, since in self._strays.items() if now - since >= STRAY_SECONDS]
        if lost:
            self._claims.put_back(lost)
