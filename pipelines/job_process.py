"""All that one worker process needs, opened and closed in order."""

from collections.abc import Callable

from .job_desk import Desk
from .job_talk import End, Tell, WorkerSettings
from .job_watch import Watch
from .job_worker import Worker, stopped_by_signals
from .queue_claims import Claims
from .queue_life import life
from .queue_place import QueuePlace
from .queue_tables import QueueTables
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
    from .neighbours import Neighbours

    return Neighbours(device, settings.manners).hindrance
