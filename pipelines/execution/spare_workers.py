"""Worker processes that load libraries and make their card's context while the job is still looked
into. Imports little, as whoever starts them has not loaded much yet.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from ...engine.devices import driver_beforehand
from .launch import Channel, WorkerProcess, launch

SpareWorkers: TypeAlias = dict[str, WorkerProcess[Any, Any]]
"""By device; who takes one out tells it its `Setup` and answers for it from then on."""


@contextmanager
def spare_workers(devices: Sequence[str]) -> Generator[SpareWorkers]:
    """A process for each of these devices; those that nobody has taken by the end are ended.

    This process starts the driver meanwhile, which it waits for when it looks at the cards.
    """
    spares: SpareWorkers = {device: launch(_work, device=device) for device in devices}
    driver_beforehand()
    try:
        yield spares
    finally:
        for worker in spares.values():
            worker.kill()
            worker.reap()


def _work(channel: Channel[Any, Any]) -> None:
    from .batch_worker import work

    try:
        setup = channel.receive()
    except EOFError:  # nobody is left who could want it
        return
    work(setup, channel)
