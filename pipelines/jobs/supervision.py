"""Worker processes of a queue, one per device; each claims its jobs from the database itself."""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...engine.startup import isolate_device
from ..run.messages import Begin, Ended, FinishJobs, QueueOrder, StopWork
from ..run.process import Channel, WorkerProcess, ending, launch
from ..run.supervisor import Restart, Supervisor
from .events import WorkerEvent, WorkerSettings

if TYPE_CHECKING:
    from ..run.worker import Worker
    from .queue.location import QueuePlace

_RESTART = 75
"""Exit status of a worker that only needs a restart."""

HEALTHY_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 60.0
"""Shortest and longest delay in seconds before the second and later successors of a worker that
ended early; the delay doubles each time.
"""


@dataclass(frozen=True, slots=True)
class QueueTask:
    """Target of each worker process.

    verdict: returns the exit status for an error that ends a worker, and a sentence; picklable.
    place: address of the queue. settings: settings of the worker.
    """

    place: "QueuePlace"
    settings: WorkerSettings
    verdict: Callable[[Exception], tuple[int, str]]

    def __call__(self, channel: Channel[WorkerEvent, QueueOrder]) -> int:
        """Run the jobs of the queue on the device that the supervisor names; see no other."""
        from .worker import work  # here, so that a prewarmed process has imported it

        try:
            first = channel.receive()
        except EOFError:
            return 0
        assert isinstance(first, Begin)
        control = _Control(channel)
        try:
            alone = isolate_device(first.device)
            end = work(self.place, alone, self.settings, channel.send, control.serve)
        except Exception as error:
            status, sentence = self.verdict(error)
            channel.send(Ended(sentence))
            return status
        return _RESTART if end == "restart" else 0


class _Control:
    """Control of a worker by the supervisor's orders; it ends when the supervisor is gone."""

    def __init__(self, channel: Channel[WorkerEvent, QueueOrder]) -> None:
        self._channel = channel
        self._worker: Worker | None = None
        threading.Thread(target=self._obey, name="control", daemon=True).start()

    def serve(self, worker: "Worker") -> None:
        """Control this worker from now on; until there is one, the process may exit immediately."""
        self._worker = worker

    def _obey(self) -> None:
        while True:
            try:
                order = self._channel.receive()
            except EOFError:
                return self._end(FinishJobs())
            self._end(order)

    def _end(self, order: QueueOrder) -> None:
        if self._worker is None:
            os._exit(0)
        if isinstance(order, StopWork):
            self._worker.stop_at_once()
        else:
            self._worker.finish()


class QueueWorkers:
    """Workers of a queue, one for each device, replaced until they end for good.

    final: exit statuses after which a worker is not replaced. on_event: callback for events of a
    device's worker. on_death: callback for the end of a worker that is replaced. on_stop: callback
    for the signal that stops all.
    """

    def __init__(
        self,
        task: QueueTask,
        devices: Sequence[str],
        final: Collection[int],
        on_event: Callable[[str, WorkerEvent], None],
        on_death: Callable[[str, str], None],
        on_stop: Callable[[int], None],
    ) -> None:
        self._task = task
        self._spare: WorkerProcess[QueueOrder, WorkerEvent] | None = None
        self._final = final
        self._on_event, self._on_death, self._on_stop = on_event, on_death, on_stop
        self._status = 0
        self._is_stopping = False
        launches = {device: partial(self._start, device) for device in devices}
        self._supervisor: Supervisor[QueueOrder, WorkerEvent]
        self._supervisor = Supervisor(
            launches, self._handle, self._on_end, first=FIRST_PAUSE, longest=LONGEST_PAUSE
        )

    def run(self) -> int:
        """Run until all workers ended for good; return the worst exit status."""
        try:
            self._supervisor.run()
        finally:
            if self._spare:
                self._spare.kill()
                self._spare.reap()
        return self._status

    def stop(self, number: int) -> None:
        """End all workers after their jobs; on a second call, immediately. For signal handlers."""
        self._supervisor.post(lambda: self._pass_on(number))

    def post(self, action: Callable[[], None]) -> None:
        """Run an action in the thread of `run`, soon."""
        self._supervisor.post(action)

    def _start(self, device: str) -> WorkerProcess[QueueOrder, WorkerEvent]:
        process, self._spare = self._spare or launch(self._task), None
        process.channel.send(Begin(device))
        return process

    def _handle(self, device: str, news: WorkerEvent) -> None:
        """Handle a worker's event; once a worker runs, start a spare process that imports ahead."""
        if not (self._spare or self._is_stopping):
            with suppress(OSError):  # the spare process is optional
                self._spare = launch(self._task)
        self._on_event(device, news)

    def _on_end(self, device: str, status: int, seconds: float) -> Restart:
        if status in self._final:
            self._status = max(self._status, status)
            return "none"
        if self._is_stopping:
            return "none"
        self._on_death(device, ending(status))
        return "at once" if status == _RESTART or seconds > HEALTHY_SECONDS else "in vain"

    def _pass_on(self, number: int) -> None:
        self._on_stop(number)
        self._supervisor.stop(StopWork() if self._is_stopping else FinishJobs())
        self._is_stopping = True
