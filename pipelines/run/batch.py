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
from .outcomes import Outcomes
from .pipeline import concurrency_of
from .source import BatchStudies, JobKind, ListSource
from .worker import LAST_MOMENT, PATIENCE, Worker

if TYPE_CHECKING:
    from .shared_batch import SharedBatch, StartedWorkers


def run_batch(
    planned: Sequence[PlannedStudy], batch: "LocalBatch | SharedBatch", listen: Listen
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
            batch.stop()
            for event in batch.rest(PATIENCE):
                listen(event)
        with suppress(KeyboardInterrupt):
            batch.abort()
            for event in batch.rest(LAST_MOMENT):
                listen(event)
    finally:
        batch.stop()
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
) -> "LocalBatch | SharedBatch":
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
        return in_processes(*devices)
    first, *_ = devices
    source = ListSource(kind, studies, manifest)
    concurrency = concurrency_of(first, sharing=len(devices))
    worker = Worker(networks, source, lambda: concurrency, studies.outcomes)
    return LocalBatch(
        worker, source, studies.outcomes, lambda: in_processes(first, opened=[first.name])
    )


class LocalBatch:
    """A batch whose worker is in this process; if it loses its device, processes take over.

    source: source of the worker. outcomes: outcomes of its studies. in_processes: returns the batch
    of the studies that are left then.
    """

    def __init__(
        self,
        worker: Worker,
        source: ListSource,
        outcomes: Outcomes,
        in_processes: "Callable[[], SharedBatch]",
    ) -> None:
        self.outcomes = outcomes
        self._worker, self._source = worker, source
        self._in_processes = in_processes
        self._at_work: Worker | SharedBatch = worker

    def run(self) -> Iterator[Event]:
        """Yield all events until the last study is over."""
        try:
            yield from self._worker.run()
            return
        except DeviceLostError as error:
            self._worker.stop()
            why = str(error)
        yield from self._worker.rest()
        self._source.reclaim(why)
        self._at_work = self._in_processes()
        yield from self._at_work.run()

    def stop(self) -> None:
        """Start no more studies; those that the network has finished are still stored."""
        self._at_work.stop()

    def rest(self, seconds: float) -> Iterator[Event]:
        """Yield the events that follow a stop, for at most `seconds`."""
        return self._at_work.rest(seconds)

    def abort(self) -> None:
        """Store nothing more, and remove partly written results."""
        self._at_work.abort()
