"""All that one worker process needs, opened and closed in order."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from ...errors import QueueLostError
from ..queue.claims import Claims
from ..queue.liveness import Life, life
from ..queue.location import QueuePlace
from ..queue.tables import open_tables
from .client import JobClient, Outage
from .messages import Tell, WorkerEnd, WorkerSettings
from .warm_device import WarmDevice
from .watch import Watch
from .worker import JobWorker


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
        claims, alive = _joined(stack, place, device, settings.only, Outage(tell))
        warm = stack.enter_context(WarmDevice(device, settings, tell))
        jobs = JobClient(claims, settings, tell, _hindrance(device, settings))
        worker = JobWorker(jobs, warm, settings, tell)
        ready(worker)
        with Watch(claims, alive, worker):
            return worker.run()


def _joined(
    stack: ExitStack, place: QueuePlace, device: str, only: str, outage: Outage
) -> tuple[Claims, Life]:
    while True:
        try:
            return stack.enter_context(_member(place, device, only))
        except QueueLostError as error:
            outage.wait(error)


@contextmanager
def _member(place: QueuePlace, device: str, only: str) -> Generator[tuple[Claims, Life]]:
    """A queue's jobs for one worker, under a name of its own."""
    with open_tables(place, create=True) as tables, life(place, device) as alive:
        claims = Claims(tables, alive.name, only)
        # The name is ours now, so whoever held jobs under it is dead.
        claims.take_over(claims.held().get(alive.name, ()))
        yield claims, alive


def _hindrance(device: str, settings: WorkerSettings) -> Callable[[], str | None]:
    if settings.yield_limits is None or not device.startswith("cuda"):
        return lambda: None
    from .gpu_sharing import OtherPrograms

    return OtherPrograms(device, settings.yield_limits).hindrance
