"""All that one worker process needs, opened and closed in order."""

from collections.abc import Callable

from ..queue.claims import Claims
from ..queue.liveness import life
from ..queue.location import QueuePlace
from ..queue.tables import QueueTables
from .client import Desk
from .messages import End, Tell, WorkerSettings
from .watch import Watch
from .worker import Worker, stopped_by_signals
from .workshop import Workshop


def work(
    place: QueuePlace,
    device: str,
    settings: WorkerSettings,
    tell: Tell,
) -> End:
    """Do the jobs of a queue on one device, in this process's main thread.

    Raises QueueError or DeviceUnavailableError.
    """
    with (
        QueueTables(place, create=True) as tables,
        life(place, device) as alive,
        Workshop(device, settings, tell) as workshop,
    ):
        claims = Claims(tables, alive.name)
        desk = Desk(claims, settings, tell, _hindrance(device, settings))
        worker = Worker(desk, workshop, settings, tell)
        with stopped_by_signals(worker), Watch(claims, alive, worker):
            # The name is ours now, so whoever held jobs under it is dead.
            claims.take_over(claims.held().get(alive.name, ()))
            return worker.run()


def _hindrance(device: str, settings: WorkerSettings) -> Callable[[], str | None]:
    if settings.manners is None or device == "cpu":
        return lambda: None
    from .gpu_sharing import Neighbours

    return Neighbours(device, settings.manners).hindrance
