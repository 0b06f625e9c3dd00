"""Worker that runs the jobs of a source on one device."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import TIMEOUT_MAX

from ..events import Event, StudyDone
from ..results.storing import DiskSpace
from .networks import Networks
from .outcomes import Outcomes
from .pipeline import Concurrency, StudyPipeline
from .source import JobSource

PATIENCE = 3.0
"""Seconds that a stopped worker waits for results to be stored; a hung disk must not block it."""

LAST_MOMENT = 1.0
"""Seconds that results already in place then have to be recorded."""

TICK_SECONDS = 0.2


class Worker:
    """Worker that runs jobs in the calling thread and in those that it starts.

    Jobs of one kind share one pipeline, which takes the next job when it has room to read it, and
    ends when there are no more of that kind. networks: networks of the device. source: source of
    the jobs. concurrency: called before each pipeline. outcomes: outcomes of the jobs, if the
    caller keeps them.
    """

    def __init__(
        self,
        networks: Networks,
        source: JobSource,
        concurrency: Callable[[], Concurrency],
        outcomes: Outcomes | None = None,
    ) -> None:
        self._networks = networks
        self._source = source
        self._concurrency = concurrency
        self._outcomes = outcomes
        self._pipeline: StudyPipeline | None = None
        self._disk_spaces: dict[Path, DiskSpace] = {}
        self._is_stopped = self._stops_at_once = False

    def run(self) -> Iterator[Event]:
        """Yield all events until the source has no more jobs.

        Raises DeviceLostError and any other error that ended a thread; the caller then stops the
        worker.
        """
        while not self._is_stopped and (kind := self._source.next_kind()) is not None:
            output = self._source.record.place.output
            self._pipeline = pipeline = StudyPipeline(
                kind,
                self._source,
                self._networks,
                self._concurrency(),
                self._disk_spaces.setdefault(output, DiskSpace(output)),
                self._outcomes or Outcomes(),
            )
            pipeline.start()
            if self._is_stopped:
                pipeline.stop()
            while not (pipeline.is_over or self._stops_at_once):
                yield from self.rest(TICK_SECONDS)
            if self._stops_at_once:
                pipeline.stop()
                yield from self.rest(PATIENCE)
                pipeline.abort()
                yield from self.rest(LAST_MOMENT)
            else:
                pipeline.join()
            self._pipeline = None

    def stop(self) -> None:
        """Start no more studies; those that the network has finished are still stored."""
        self._is_stopped = True
        if pipeline := self._pipeline:
            pipeline.stop()

    def finish(self) -> None:
        """Take no further job from the source, and end after the claimed ones; for any thread."""
        self._source.close()

    def stop_at_once(self) -> None:
        """Stop, store what is almost done, and abort; for other threads than the one that runs."""
        self._is_stopped = self._stops_at_once = True
        self._source.close()

    def cancel(self, study: str) -> None:
        """Cancel a study, which ends as interrupted at its next patch or stage; others continue."""
        if pipeline := self._pipeline:
            pipeline.cancel(study)

    def rest(self, seconds: float = TIMEOUT_MAX) -> Iterator[Event]:
        """Yield the remaining events for at most `seconds`; raise the error that ended a thread."""
        if pipeline := self._pipeline:
            for event in pipeline.rest(seconds):
                if isinstance(event, StudyDone):
                    self._source.finish(event.row)
                yield event

    def abort(self) -> None:
        """Store nothing more, and remove partly written results."""
        if pipeline := self._pipeline:
            pipeline.abort()
