"""Run of a batch: by a worker in this process as long as its only device works, else by worker
processes.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ...engine.devices import Device
from ..events import Event, Listen
from ..report.report import StudyReport
from ..results.manifest import Manifest
from ..results.resume import PlannedStudy
from .in_flight import DeviceLostError
from .networks import Networks
from .pipeline import concurrency_of
from .source import BatchStudies, JobKind, ListSource
from .worker import LAST_MOMENT, PATIENCE, Worker

if TYPE_CHECKING:
    from .shared_batch import SharedBatch, StartedWorkers


class Batch:
    """A batch, and who works on it: a worker in this process, or an owner of worker processes.

    studies: its studies. at_work: receives a stop, and yields the events that follow. take_over:
    called with a sentence once the worker's device is lost; returns the owner of the processes that
    run what is left.
    """

    def __init__(
        self,
        studies: BatchStudies,
        at_work: "Worker | SharedBatch",
        take_over: "Callable[[str], SharedBatch] | None" = None,
    ) -> None:
        self.outcomes = studies.outcomes
        self.at_work = at_work
        self._take_over = take_over

    def run(self) -> Iterator[Event]:
        """Yield all events until the last study is over."""
        try:
            yield from self.at_work.run()
            return
        except DeviceLostError as error:
            if self._take_over is None:
                raise
            self.at_work.stop()
            why = str(error)
        yield from self.at_work.rest()
        self.at_work = self._take_over(why)
        yield from self.at_work.run()


def run_batch(
    planned: Sequence[PlannedStudy], batch: Batch, listen: Listen
) -> tuple[StudyReport, ...]:
    """Return the rows of all studies in their order, or the available ones after a
    KeyboardInterrupt.

    After a KeyboardInterrupt, studies that the network has finished are still stored if that
    takes little time; a second interrupt ends that too.
    """
    try:
        for event in batch.run():
            listen(event)
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            batch.at_work.stop()
            for event in batch.at_work.rest(PATIENCE):
                listen(event)
        with suppress(KeyboardInterrupt):
            batch.at_work.abort()
            for event in batch.at_work.rest(LAST_MOMENT):
                listen(event)
    finally:
        batch.at_work.stop()
    return tuple(row for study in planned if (row := batch.outcomes.of(study)))


def batch_on(
    devices: Sequence[Device],
    kind: JobKind,
    planned: Sequence[PlannedStudy],
    manifest: Manifest,
    networks: Networks,
    spares: "StartedWorkers | None" = None,
    *,
    isolated: bool = False,
) -> Batch:
    """Return the run on one device in this process as long as it works, or a process per device.

    No device is opened if nothing needs translation. networks: networks of the first device.
    spares: workers of the devices that were already started. isolated: whether a single device has
    a process, too.
    """
    studies = BatchStudies(planned)

    def in_processes(*on: Device, opened: Collection[str] = ()) -> "SharedBatch":
        from .shared_batch import SharedBatch, pipe_workers  # late: most batches need no processes

        processes = pipe_workers(on, kind, manifest.place)
        return SharedBatch(studies, processes, manifest, spares, opened)

    if kind.opens and (isolated or len(devices) > 1):
        return Batch(studies, in_processes(*devices))
    first, *_ = devices
    source = ListSource(kind, studies, manifest)
    concurrency = concurrency_of(first, sharing=len(devices))
    worker = Worker(networks, source, lambda: concurrency, studies.outcomes)

    def take_over(why: str) -> "SharedBatch":
        source.reclaim(why)
        return in_processes(first, opened=[first.name])

    return Batch(studies, worker, take_over)
