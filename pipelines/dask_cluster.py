"""Batches on a Dask cluster: shards of one command, each a task of a worker.

The client searches, plans, shows events and reports. A worker runs the batch of a shard as always
(dask_worker.py), with the device in a process of its own; Dask repeats the shard of a worker that
is lost.
"""

import logging
import os
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..engine.errors import DeviceUnavailableError, EngineError
from ..engine.model.model_file import load_model
from .cycle import load_reverse_model
from .errors import PipelineError, check_installed
from .events import DeviceOpened, Event, Listen, Remark, StudyDone, StudyStarted
from .program import program_version
from .report.comparison import joined, of_shards
from .report.report import BatchReport, Failure, StudyReport
from .request import Request
from .results.kept_report import earlier_report, replace_report
from .results.manifest import Manifest
from .results.resume import PlannedStudy
from .retries import TRIES
from .run.outcomes import Outcomes
from .shard import Shard
from .translate import Job, announced, empty_report

LOCAL = "local"
"""Address of a cluster on this machine, which is started for the batch."""

_STUDIES = 25
"""Studies of a shard: few enough that a lost one costs little, more than it takes to start one."""
_PER_WORKER = 4
_CONNECT_SECONDS = 10
_POLL_SECONDS = 1.0
_QUIET: Mapping[str, object] = {
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "1s",
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
}
"""Settings of a cluster on this machine: no pages; less monitoring, which took 4 % of a core."""
_LOOPBACK = "127.0.0.1:0"


@contextmanager
def connected(scheduler: str) -> Generator["DaskCluster"]:
    """Connect to a Dask scheduler during the block.

    scheduler: its address, such as tcp://host:8786, or LOCAL. Raises MissingLibraryError, and
    PipelineError if none answers there.
    """
    check_installed("distributed", "Setting scheduler needs", "dask")
    import distributed

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with ExitStack() as opened:
        address: Any = scheduler
        if scheduler == LOCAL:
            address = opened.enter_context(_local_cluster())
        try:
            made = distributed.Client(
                address, timeout=f"{_CONNECT_SECONDS}s", set_as_default=False, name="cuda-cyclegan"
            )
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise PipelineError(
                f"No Dask scheduler answers at {scheduler} ({_first_line(error)}); start one with "
                "'dask scheduler', or check address and certificates."
            ) from error
        client: Any = opened.enter_context(made)
        yield DaskCluster(client, scheduler)


@contextmanager
def _local_cluster() -> Generator[Any]:
    """Start a cluster of one worker, whose batch uses all of this machine.

    Scheduler and worker are threads of this process, which take no work from outside. Dask starts
    their web servers in any case.
    """
    import dask.config
    from distributed import LocalCluster

    made: Any = LocalCluster  # its types are incomplete
    with (
        dask.config.set(_QUIET),
        made(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            memory_limit=0,
            dashboard_address=_LOOPBACK,
            worker_dashboard_address=_LOOPBACK,
            silence_logs=logging.CRITICAL,
            resources={"GPU": 1},
        ) as cluster,
    ):
        yield cluster


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")


class DaskCluster:
    """Connection of a client to the scheduler of a cluster, for one run.

    address: the scheduler's.
    """

    def __init__(self, client: Any, address: str) -> None:
        self.client, self.address = client, address
        self.name = uuid.uuid4().hex

    @property
    def workers(self) -> "Mapping[str, Any]":
        """Workers that are there now, by address."""
        return self.client.scheduler_info(n_workers=-1)["workers"]

    def open_job(self, request: Request, remark: Callable[[str], None]) -> Job:
        """Open a job as `open_job` does, with the devices and options of one of the workers.

        remark: called with a sentence if that has to wait. Raises what `open_job` does, and
        PipelineError if the worker has another program, model or file system.
        """
        from . import dask_worker

        absolute = (Path(os.path.abspath(path)) for path in request.inputs)  # noqa: PTH100
        request = replace(
            request,
            inputs=tuple(absolute),
            model=Path(os.path.abspath(request.model)),  # noqa: PTH100
            output=Path(os.path.abspath(request.output)),  # noqa: PTH100
        )
        model = load_model(request.model)
        back = load_reverse_model(model, request.options)
        if not self.workers:
            remark(f"no worker has joined {self.address} yet; the batch waits for one")
        order = dask_worker.Order(request, self.name, program_version(), model.sha256)
        future = self.submit(request.device, dask_worker.decided, order)
        found = request.search(model)  # while the worker decides
        devices, options = self.result(future)
        # Only the precision depends on the device; it must be equal on all workers.
        asked = replace(request.options, precision=options.precision)
        request = replace(request, options=asked)
        return Job(request, model, devices, options, found, back)

    def submit(self, device: str, work: Callable[..., object], *arguments: object) -> Any:
        """Return the future of work on a worker that has the resource GPU, if any has it.

        Raises DeviceUnavailableError if the device is a GPU and no worker declares one.
        """
        workers = self.workers.values()
        declared = any("GPU" in worker["resources"] for worker in workers)
        is_gpu = device not in ("auto", "cpu") and not device.startswith("onnxruntime:")
        if is_gpu and workers and not declared:
            raise DeviceUnavailableError(
                f"No worker of {self.address} has the resource GPU; start workers with "
                "'--resources GPU=1', or use setting device=cpu."
            )
        needed = {"GPU": 1} if is_gpu or (declared and device == "auto") else None
        key = f"cuda-cyclegan-{uuid.uuid4().hex}"  # without names
        return self.client.submit(work, *arguments, key=key, resources=needed, pure=False)

    def result(self, future: Any) -> Any:
        """Wait for a future's result.

        Raises this program's own errors, and PipelineError for every other one.
        """
        try:
            return future.result()
        except (EngineError, PipelineError):
            raise
        except Exception as error:
            raise PipelineError(
                f"The cluster of {self.address} could not do the work ({_first_line(error)}); "
                f"check that scheduler and workers run and have cuda-cyclegan {program_version()} "
                "with the extra dask."
            ) from error

    def run_job(
        self, job: Job, listen: Listen, confirm: Callable[[], None] = lambda: None
    ) -> BatchReport:
        """Translate pending studies as `run_job` does, in shards on the workers.

        Raises what `run_job` does, and PipelineError if a worker cannot do its part; then studies
        in flight are stored first.
        """
        from . import dask_worker

        started = datetime.now().astimezone()
        studies = len(job.discovery.studies)
        wanted = max(-(-studies // _STUDIES), _PER_WORKER * len(self.workers))
        count = max(1, min(studies, wanted))
        sharers = replace(job, request=replace(job.request, shard=Shard(1, count))).sharers
        with (
            Manifest(job.request.output, shared=sharers) as manifest,
            manifest.sole("dask.lock", "A batch on Dask"),
            dask_worker.marked(manifest.record, self.name),
        ):
            planned = announced(job, manifest, listen, confirm)
            nothing = empty_report(job, started)
            earlier = earlier_report(nothing)
            batch = _ShardedBatch(self, job, count, planned)
            rows, parts = batch.run(listen)
            report = of_shards([nothing, *parts], len(planned))
            report = replace(
                report,
                seconds=(datetime.now().astimezone() - started).total_seconds(),
                skipped=nothing.skipped,
                ignored=nothing.ignored,
                studies=rows,
                not_reached=len(planned) - len(rows),
                runs=1,
            )
            names = [str(each.study.name) for each in planned]
            replace_report(joined(earlier, report, names) if earlier else report)
        return report


class _ShardedBatch:
    """Shards of a batch on a cluster, and what the client learns of them.

    count: number of shards. planned: the studies. Dask gives up a shard after four lost workers,
    also if it only waited there. It is submitted again, and fails after three such ends without a
    study that ended in between.
    """

    def __init__(
        self,
        cluster: DaskCluster,
        job: Job,
        count: int,
        planned: Sequence[PlannedStudy],
    ) -> None:
        self._cluster, self._job, self._run = cluster, job, cluster.name
        self._planned = {str(each.study.name): each for each in planned}
        shards = (Shard(number + 1, count) for number in range(count))
        self._shares = {one: one.of(job.discovery) for one in shards}
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._open: dict[Any, Shard] = {}
        self._in_vain = Counter[int]()
        self._is_waiting = False
        self._outcomes = Outcomes()
        self._parts: list[BatchReport] = []
        self._shown = set[Event]()
        self._error: Exception | None = None

    def run(self, listen: Listen) -> tuple[tuple[StudyReport, ...], list[BatchReport]]:
        """Return the rows of the studies, and the reports of the shards that ended.

        A KeyboardInterrupt ends the batch early: studies in flight finish or are rolled back; a
        second one does not wait for them. Raises the error of a worker that cannot do its part.
        """
        import distributed

        from .dask_worker import TOPIC

        client = self._cluster.client
        flag: Any = distributed.Event(self._run, client)
        client.subscribe_topic(TOPIC, self._receive)
        try:
            for shard, found in self._shares.items():
                if found.studies:
                    self._submit(shard)
            self._follow(listen, flag.set)
            flag.clear()
        except KeyboardInterrupt:
            flag.set()
            with suppress(KeyboardInterrupt):
                self._follow(listen, flag.set)
        finally:
            if client.status == "running":  # else this error would hide that of the batch
                client.unsubscribe_topic(TOPIC)
        if self._error:
            raise self._error
        return self._rows(), self._parts

    def _receive(self, stamped: tuple[float, Any]) -> None:
        self._inbox.put(tuple(stamped[1]))

    def _submit(self, shard: Shard) -> None:
        from . import dask_worker

        job, found = self._job, self._shares[shard]
        request = replace(job.request, shard=shard)
        order = dask_worker.Order(request, self._run, program_version(), job.model.sha256)
        future = self._cluster.submit(request.device, dask_worker.translated, order, found)
        self._open[future] = shard
        future.add_done_callback(self._inbox.put)

    def _follow(self, listen: Listen, stop: Callable[[], None]) -> None:
        """Handle what comes from the workers until no shard is open."""
        while self._open or not self._inbox.empty():
            try:
                news = self._inbox.get(timeout=_POLL_SECONDS)
            except Empty:
                self._check_scheduler()
                self._note_absence(listen)
                continue
            if news in self._open:
                self._end(news, listen, stop)
                continue
            run, number, pickled = news
            if run == self._run:  # not of the batch of another client
                self._handle(number, pickle.loads(pickled), listen)

    def _check_scheduler(self) -> None:
        """Raise PipelineError if the scheduler was lost."""
        if self._cluster.client.status != "running":
            raise PipelineError(
                f"The scheduler {self._cluster.address} was lost; results so far are kept, and the "
                "same command continues."
            ) from None

    def _note_absence(self, listen: Listen) -> None:
        """Report once that the last worker has left."""
        is_waiting = self._is_waiting
        with suppress(OSError):  # the scheduler does not answer for a moment
            is_waiting = not self._cluster.workers
        if is_waiting and not self._is_waiting:
            address = self._cluster.address
            listen(Remark(f"no worker is left at {address}; the batch waits for one"))
        self._is_waiting = is_waiting

    def _handle(self, number: int, news: Event | str, listen: Listen) -> None:
        event = StudyStarted(self._planned[news]) if isinstance(news, str) else news
        if isinstance(event, DeviceOpened | Remark):
            if event in self._shown:
                return
            self._shown.add(event)
        if isinstance(event, StudyDone):
            self._in_vain.pop(number, None)
            if self._is_known(event.row):
                return
        self._outcomes.handle(event)
        listen(event)

    def _is_known(self, row: StudyReport) -> bool:
        """Return whether a study was reported before: a repeated shard finds it up to date."""
        planned = self._planned.get(row.name)
        before = self._outcomes.of(planned) if planned else None
        return before is not None and before.is_done and row.status == "up to date"

    def _end(self, future: Any, listen: Listen, stop: Callable[[], None]) -> None:
        import distributed

        if future.status != "finished":
            self._check_scheduler()
        shard = self._open.pop(future)
        error = future.exception() if future.status == "error" else None
        if isinstance(error, distributed.KilledWorker) and not self._error:
            self._in_vain[shard.number] += 1
            if self._in_vain[shard.number] < TRIES:
                self._submit(shard)
            else:
                self._fail(shard, listen)
            return
        try:
            if part := self._cluster.result(future):
                self._parts.append(part)
        except (EngineError, PipelineError) as failed:
            self._error = self._error or failed
            stop()

    def _fail(self, shard: Shard, listen: Listen) -> None:
        """Fail the studies of a shard that have not ended."""
        reason = f"Shard {shard} was lost with many workers in turn; see the logs of the workers."
        for planned in self._planned.values():
            of_shard = shard.takes(str((planned.study.mirrored or planned.study.results)[0]))
            row = self._outcomes.of(planned)
            if of_shard and (row is None or row.status == "interrupted"):
                failure = Failure("engine", reason, None)
                row = replace(planned.opening_row, status="failed", failure=failure)
                self._outcomes.handle(StudyDone(row))
                listen(StudyDone(row))

    def _rows(self) -> tuple[StudyReport, ...]:
        """Return the rows of the shards' reports, and of the events where these say more."""
        reported = {row.name: row for part in self._parts for row in part.studies}
        rows: list[StudyReport] = []
        for name, planned in self._planned.items():
            row, seen = reported.get(name), self._outcomes.of(planned)
            is_older = row is None or (row.status == "up to date" and seen and seen.is_done)
            if best := seen if is_older else row:
                rows.append(best)
        return tuple(rows)
