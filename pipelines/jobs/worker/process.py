"""All that one worker process needs, opened and closed in order."""

from collections.abc import Callable

from ..queue.claims import Claims
from ..queue.liveness import life
from ..queue.location import QueuePlace
from ..queue.tables import QueueTables
from .client import JobClient
from .messages import End, Tell, WorkerSettings
from .warm_device import WarmDevice
from .watch import Watch
from .worker import JobWorker


def work(
    place: QueuePlace,
    device: str,
    settings: WorkerSettings,
    tell: Tell,
    ready: Callable[[JobWorker], None] = lambda _: None,
) -> End:
    """Do the jobs of a queue on one device; ready: called with what can be stopped from then on.

    Raises QueueError or DeviceUnavailableError.
    """
    with (
        QueueTables(place, create=True) as tables,
        life(place, device) as alive,
        WarmDevice(device, settings, tell) as warm,
    ):
        claims = Claims(tables, alive.name, settings.only)
        jobs = JobClient(claims, settings, tell, _hindrance(device, settings))
        worker = JobWorker(jobs, warm, settings, tell)
        ready(worker)
        with Watch(claims, alive, worker):
            # The name is ours now, so whoever held jobs under it is dead.
            claims.take_over(claims.held().get(alive.name, ()))
            return worker.run()


def _hindrance(device: str, settings: WorkerSettings) -> Callable[[], str | None]:
    if settings.yield_limits is None or not device.startswith("cuda"):
        return lambda: None
    from .gpu_sharing import OtherPrograms

    return OtherPrograms(device, settings.yield_limits).hindrance
