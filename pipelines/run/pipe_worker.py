"""Worker in a process of its own, which receives its jobs through a pipe from the batch process.

It requests a study when it has room to read one, sends its events, and has its results recorded by
the process that owns the manifest. When that process is gone, the worker ends.
"""

import os
import threading
import time
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from ...engine.devices import Device
from ...engine.errors import EngineError
from ...engine.generator import AnyGenerator
from ...engine.network.graph import Network
from ...engine.network.layers import Triple
from ...engine.options import Precision, Progress
from ..events import DeviceOpened, Event, Thinning, Worked
from ..host.processes import release_output
from ..report.report import StudyReport
from ..results.manifest import ManifestEntry
from ..results.record_folder import OutputPlace
from ..results.resume import PlannedStudy
from . import messages
from .in_flight import DeviceLostError
from .messages import BatchNews, BatchOrder
from .networks import Networks, OpenNetwork, open_network
from .pipeline import Concurrency
from .process import Channel
from .source import JobKind, JobSource
from .worker import Worker

_PATCHES_SECONDS = 0.1
"""Pause between reports of a study's patches: bars are not drawn more often."""


class PipeSource(JobSource):
    """Source of jobs from the process that owns studies and manifest, for all threads of a worker.

    place: output place of the manifest. following: the worker's next job, if it is kept for one.
    """

    def __init__(
        self, kind: JobKind, channel: Channel[BatchNews, BatchOrder], place: OutputPlace
    ) -> None:
        self.place = place
        self.following: SimpleQueue[messages.JobAssigned] = SimpleQueue()
        self._kinds = iter([kind])
        self._channel = channel
        self._recording = threading.Lock()
        self._assigned: SimpleQueue[PlannedStudy | None] = SimpleQueue()
        self._answers: SimpleQueue[OSError | None] = SimpleQueue()

    @property
    def record(self) -> "PipeSource":
        """Record of results: this source, which sends entries to the manifest's process."""
        return self

    def next_kind(self) -> JobKind | None:
        """Return the one kind of the batch, once."""
        return next(self._kinds, None)

    def take(self) -> PlannedStudy | None:
        """Request a study and wait for the answer."""
        self._channel.send(messages.StudyRequested())
        return self._assigned.get()

    def finish(self, _row: StudyReport) -> None:
        """Do nothing: the StudyDone event goes through the pipe."""

    def reclaim(self, why: str) -> None:
        """End with an error, after which the batch process requeues the claimed studies."""
        self._channel.send(messages.Ended(why))

    def append(self, entry: ManifestEntry) -> None:
        """Send an entry to be recorded; it is on disk before this returns. Raises OSError."""
        with self._recording:
            self._channel.send(messages.ResultMade(entry))
            error = self._answers.get()
        if error:
            raise error

    def obey(self, worker: Worker) -> None:
        """Follow the supervisor's orders up to the next job; exit the process immediately when
        the supervisor is gone.
        """
        while True:
            try:
                order = self._channel.receive()
            except EOFError:
                os._exit(1)
            match order:
                case messages.StudyAssigned(planned):
                    self._assigned.put(planned)
                case messages.ResultRecorded(error):
                    self._answers.put(error)
                case messages.StopWork():
                    worker.stop()
                case messages.StopStoring():
                    worker.abort()
                case messages.JobAssigned():
                    self.following.put(order)
                    return


@dataclass(frozen=True, slots=True)
class PipeWorker:
    """Target of a worker process of a batch; picklable.

    name: name of the process by `process_names`, from the device's number in the process that
    starts it. kind: kind of its jobs. device: the device, numbered as in the worker, with the
    memory limit of one of two networks if there are two. place: output place of the manifest.
    concurrency: this worker's share of the machine. open_network: function that opens its networks.
    """

    name: str
    kind: JobKind
    device: Device
    place: OutputPlace
    concurrency: Concurrency
    open_network: OpenNetwork = open_network

    def __call__(self, channel: Channel[BatchNews, BatchOrder]) -> None:
        """Translate the studies received until there are no more, and end."""
        if self.run(channel, self.networks(channel)):
            release_output()
            channel.send(messages.Ended())

    def networks(self, channel: Channel[BatchNews, BatchOrder], *, keeps: bool = False) -> Networks:
        """Return the networks of its device, which report each opening.

        keeps: whether they stay open between jobs.
        """

        @contextmanager
        def opened(
            network: Network,
            device: Device,
            patch: Triple | None,
            precision: Precision,
            progress: Progress,
        ) -> abc.Generator[AnyGenerator]:
            with self.open_network(network, device, patch, precision, progress) as generator:
                # Before a study can end the process.
                channel.send(messages.Happened((DeviceOpened(generator.device),)))
                yield generator

        return Networks(self.device, keeps=keeps, is_halved=True, open_network=opened)

    def run(self, channel: Channel[BatchNews, BatchOrder], networks: Networks) -> PipeSource | None:
        """Translate the studies received until there are no more, and return their source.

        Returns None after an error that ended this work and was reported.
        """
        source = PipeSource(self.kind, channel, self.place)
        worker = Worker(networks, source, lambda: self.concurrency)
        threading.Thread(target=source.obey, args=(worker,), daemon=True).start()
        try:
            for events in bundled(worker.run()):
                channel.send(messages.Happened(events))
        except (EngineError, DeviceLostError) as error:
            source.reclaim(str(error))
            return None
        return source


def bundled(
    events: abc.Iterable[Event], clock: abc.Callable[[], float] = time.monotonic
) -> abc.Iterator[tuple[Event, ...]]:
    """Yield the events that the supervisor needs, in bundles.

    A study has spans of work and a report for each of its patches, and a message takes 0.1 ms on
    either side. Spans go with the next event of another kind, as in `BatchEvents`.
    """
    thinning, bundle = Thinning(_PATCHES_SECONDS, clock), list[Event]()
    for event in filter(thinning.takes, events):
        bundle.append(event)
        if not isinstance(event, Worked):
            yield tuple(bundle)
            bundle.clear()
    if bundle:
        yield tuple(bundle)
