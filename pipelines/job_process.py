"""All that one worker process needs, opened and closed in order."""

from collections.abc import Callable

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
        Workshop(device, settings.limits) as workshop,
    ):
        claims = Claims(tables, alive.name)
        worker = Worker(claims, workshop, settings, tell, _hindrance(device, settings))
        with stopped_by_signals(worker), Watch(claims, alive) as watch:
            claims.take_over(alive.name)  # the name is ours, so whoever held its jobs is dead
            return worker.run(watch)


def _hindrance(device: str, settings: WorkerSettings) -> Callable[[], str | None]:
    if settings.manners is None or device == "cpu":
        return lambda: None
    from .neighbours import Neighbours

    return Neighbours(device, settings.manners).hindrance
