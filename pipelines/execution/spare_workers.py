"""Worker processes that load libraries and make their card's context while the job is still looked
into. Imports little, as whoever starts them has not loaded much yet.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from ...engine.devices import context_beforehand
from .channel import Channel
from .launch import WorkerProcess, launch

SpareWorkers: TypeAlias = dict[str, WorkerProcess[Any, Any]]
"""By device; who takes one out tells it its `Setup` and answers for it from then on."""


@contextmanager
def spare_workers(devices: Sequence[str]) -> Generator[SpareWorkers]:
    """A process for each of these devices; those that nobody has taken by the end are ended."""
    spares: SpareWorkers = {device: launch(partial(_work, device)) for device in devices}
    try:
        yield spares
    finally:
        for worker in spares.values():
            worker.kill()
            worker.reap()


def _work(device: str, channel: Channel[Any, Any]) -> None:
    with context_beforehand(device):
        from .batch_worker import work

        try:
            setup = channel.receive()
        except EOFError:  # nobody is left who could want it
            return
        work(setup, channel)
