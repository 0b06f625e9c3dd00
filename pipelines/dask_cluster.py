"""Batches on a Dask cluster: shards of one command, each a task of a worker.

The client searches, plans, shows events and reports. A worker runs the batch of a shard as always,
with the device in a process of its own; Dask repeats the shard of a worker that is lost. Client,
scheduler and workers need the same version of this program, and reach the same files.
"""

import logging
import os
import pickle
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..engine.devices import Device
from ..engine.errors import DeviceUnavailableError, EngineError
from ..engine.model.model_file import load_model
from ..io.discovery import Discovery
from ..io.errors import ScanError
from ..io.files.own_files import open_own
from .cycle import load_reverse_model
from .errors import OutputFolderAwaitedError, OutputFolderError, PipelineError, check_installed
from .events import (
    BatchStarted,
    DeviceOpened,
    Event,
    Listen,
    Remark,
    StudyDone,
    StudyStarted,
    TilesDone,
    Worked,
)
from .program import program_version
from .report.comparison import joined, of_shards
from .report.report import BatchReport, Failure, StudyReport
from .request import Request
from .results.kept_report import earlier_report, replace_report
from .results.manifest import Manifest
from .results.record_folder import found_record
from .results.resume import PlannedStudy
from .retries import TRIES
from .run.outcomes import Outcomes
from .settings import ResolvedOptions
from .shard import Shard
from .translate import Job, announced, checked_job, empty_report, run_job

LOCAL = "local"
"""Address of a cluster on this machine, which is started for the batch."""

_TOPIC = "cuda-cyclegan"
_STUDIES = 25
"""Studies of a shard: few enough that a lost one costs little, more than it takes to start one."""
_PER_WORKER = 4
_CONNECT_SECONDS = 10
_POLL_SECONDS = 1.0
"""Pause between looks at the client's wish to stop, and between reports of a study's patches."""
_AWAITED_SECONDS = 120.0
"""Longest wait for the lock of a shard whose worker was lost: NFS keeps it for up to 90 s."""
_SEEN_SECONDS = 10.0
"""Longest wait for a new file of the client to appear on a worker."""


class _Order:
    """Work for a worker. Without a text form, as Dask logs what fails with its arguments.

    request: request with absolute paths. run: name of the client's run. program, model: the
    client's version of this program and hash of the model.
    """

    def __init__(self, request: Request, run: str, program: str, model: str) -> None:
        self.request, self.run, self.program, self.model = request, run, program, model


def _decided_there(order: _Order) -> tuple[tuple[Device, ...], ResolvedOptions]:
    """Return a worker's devices, and the options as resolved for them."""
    with _errors_named():
        job = _job_there(order)
        return job.devices, job.options


def _translated_there(order: _Order, found: Discovery) -> BatchReport | None:
    """Translate a shard on a worker; None if the client stops the batch first.

    found: its studies, as the client found them.
    """
    wish = _ClientWish(order.run)
    with _errors_named():
        job = replace(_job_there(order), discovery=found)
        _check_folder(order)
        until = time.monotonic() + _AWAITED_SECONDS
        while not wish.is_to_stop():
            try:
                return run_job(job, _Reporter(order, wish), isolated=True)
            except OutputFolderAwaitedError:
                if time.monotonic() > until:
                    raise
            except KeyboardInterrupt:
                return None
            time.sleep(_POLL_SECONDS)
    return None


@contextmanager
def _errors_named() -> Generator[None]:
    """Raise errors with the name of this host, as ones that can be pickled."""
    try:
        yield
    except (EngineError, ScanError, PipelineError) as error:
        is_missing = isinstance(error, DeviceUnavailableError)
        kind = DeviceUnavailableError if is_missing else PipelineError
        raise kind(f"On {socket.gethostname()}: {error}") from None


def _job_there(order: _Order) -> Job:
    """Return the job of an order, without studies. Raises PipelineError for another program."""
    if (own := program_version()) != order.program:
        raise PipelineError(
            f"cuda-cyclegan {own} is installed, but the client has {order.program}; install the "
            "same version on client, scheduler and workers."
        )
    for path in (*order.request.inputs, order.request.model):
        if not path.exists():
            raise PipelineError(
                f"{path} does not exist; client and workers need the same paths to inputs, model "
                "and output folder."
            )
    job = checked_job(order.request, load_model(order.request.model))
    if job.model.sha256 != order.model:
        raise PipelineError(f"{order.request.model} is another file than the client's model.")
    return job


def _check_folder(order: _Order) -> None:
    """Raise OutputFolderError unless the client's mark is in the record of the output folder."""
    output, until = order.request.output, time.monotonic() + _SEEN_SECONDS
    while True:
        record = found_record(output)
        if record and (record / _mark(order.run)).is_file():
            return
        if time.monotonic() > until:
            raise OutputFolderError(
                f"{output} is not the client's folder of that path; choose an output folder on a "
                "file system that client and workers share."
            )
        time.sleep(_POLL_SECONDS)


def _mark(run: str) -> str:
    return f"dask-{run}"


class _ClientWish:
    """Wish of the client to stop its run, which a worker asks for now and then."""

    def __init__(self, run: str) -> None:
        import distributed

        self._flag: Any = distributed.Event(run)
        self._next = 0.0

    def is_to_stop(self) -> bool:
        """Return whether the client wishes to stop, or cannot be asked any more."""
        try:
            return self._flag.is_set()
        except (OSError, RuntimeError):
            return True

    def check(self) -> None:
        """Raise KeyboardInterrupt once if the client wishes to stop."""
        if (now := time.monotonic()) > self._next:
            self._next = now + _POLL_SECONDS
            if self.is_to_stop():
                self._next = float("inf")
                raise KeyboardInterrupt


class _Reporter:
    """Listener of a shard on its worker, which sends to the client what that shows."""

    def __init__(self, order: _Order, wish: _ClientWish) -> None:
        import distributed

        self._order, self._wish = order, wish
        self._worker: Any = distributed.get_worker()
        self._has_begun = False
        self._next = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case BatchStarted():
                self._has_begun = True
            case Worked():
                pass
            case Remark() if not self._has_begun:
                pass  # the client has made it for all shards
            case TilesDone(_, done, total):
                if done in (0, total) or time.monotonic() > self._next:
                    self._next = time.monotonic() + _POLL_SECONDS
                    self._send(event)
            case StudyStarted(planned):
                self._send(str(planned.study.name))
            case DeviceOpened(device, note):
                self._send(DeviceOpened(f"{device} on {socket.gethostname()}", note))
            case _:
                self._send(event)
        self._wish.check()

    def _send(self, news: Event | str) -> None:
        shard = self._order.request.shard
        number = shard.number if shard else 0
        self._worker.log_event(_TOPIC, [self._order.run, number, pickle.dumps(news)])


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
                address, timeout=f"{_CONNECT_SECONDS}s", set_as_default=False, name=_TOPIC
            )
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise PipelineError(
                f"No Dask scheduler answers at {scheduler} ({_first_line(error)}); start one with "
                "'dask scheduler', or check address and certificates."
            ) from error
        client: Any = opened.enter_context(made)
        yield DaskCluster(client, scheduler)


def _local_cluster() -> Any:
    """Return a cluster of one worker, whose batch uses all of this machine.

    Its connections are encrypted: another user of this machine could run code otherwise.
    """
    from distributed import LocalCluster

    made: Any = LocalCluster  # its types are incomplete
    return made(
        n_workers=1,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
        security=True,
        resources={"GPU": 1},
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")


class DaskCluster:
    """Connection of a client to the scheduler of a cluster. address: the scheduler's."""

    def __init__(self, client: Any, address: str) -> None:
        self.client, self.address = client, address

    @property
    def workers(self) -> "Mapping[str, Any]":
        """Workers that are there now, by address."""
        return self.client.scheduler_info(n_workers=-1)["workers"]

    def open_job(self, request: Request, remark: Callable[[str], None]) -> Job:
        """Open a job as `open_job` does, with the devices and options of one of the workers.

        remark: called with a sentence if that has to wait. Raises what `open_job` does, and
        PipelineError if the worker has another program, model or file system.
        """
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
        order = _Order(request, "", program_version(), model.sha256)
        future = self.submit(f"{_TOPIC}-{uuid.uuid4().hex}", request.device, _decided_there, order)
        devices, options = self.result(future)
        # Only the precision depends on the device; it must be equal on all workers.
        asked = replace(request.options, precision=options.precision)
        request = replace(request, options=asked)
        return Job(request, model, devices, options, request.search(model), back)

    def submit(self, key: str, device: str, work: Callable[..., object], *arguments: object) -> Any:
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
        started = datetime.now().astimezone()
        studies = len(job.discovery.studies)
        wanted = max(-(-studies // _STUDIES), _PER_WORKER * len(self.workers))
        count = max(1, min(studies, wanted))
        sharers = replace(job, request=replace(job.request, shard=Shard(1, count))).sharers
        run = uuid.uuid4().hex
        with (
            Manifest(job.request.output, shared=sharers) as manifest,
            manifest.sole("dask.lock", "A batch on Dask"),
            _marked(manifest.record, run),
        ):
            planned = announced(job, manifest, listen, confirm)
            nothing = empty_report(job, started)
            earlier = earlier_report(nothing)
            batch = _ShardedBatch(self, job, run, count, planned)
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


@contextmanager
def _marked(record: Path, run: str) -> Generator[None]:
    """Keep a mark in the record by which workers recognise the client's output folder."""
    for left in record.glob(_mark("*")):
        with suppress(OSError):
            left.unlink()
    mark = record / _mark(run)
    os.close(open_own(mark, os.O_RDWR | os.O_CREAT, mode=0o666))
    try:
        yield
    finally:
        with suppress(OSError):
            mark.unlink()


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
        run: str,
        count: int,
        planned: Sequence[PlannedStudy],
    ) -> None:
        self._cluster, self._job, self._run = cluster, job, run
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

        client = self._cluster.client
        flag: Any = distributed.Event(self._run, client)
        client.subscribe_topic(_TOPIC, self._receive)
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
            client.unsubscribe_topic(_TOPIC)
        if self._error:
            raise self._error
        return self._rows(), self._parts

    def _receive(self, stamped: tuple[float, Any]) -> None:
        self._inbox.put(tuple(stamped[1]))

    def _submit(self, shard: Shard) -> None:
        job = self._job
        request = replace(job.request, shard=shard)
        order = _Order(request, self._run, program_version(), job.model.sha256)
        key = f"{_TOPIC}-{self._run}-{shard}-{uuid.uuid4().hex}"
        found = self._shares[shard]
        future = self._cluster.submit(key, request.device, _translated_there, order, found)
        self._open[future] = shard
        future.add_done_callback(self._inbox.put)

    def _follow(self, listen: Listen, stop: Callable[[], None]) -> None:
        """Handle what comes from the workers until no shard is open."""
        while self._open or not self._inbox.empty():
            try:
                news = self._inbox.get(timeout=_POLL_SECONDS)
            except Empty:
                if self._cluster.client.status != "running":
                    raise PipelineError(
                        f"The scheduler {self._cluster.address} was lost; results so far are kept, "
                        "and the same command continues."
                    ) from None
                self._note_absence(listen)
                continue
            if news in self._open:
                self._end(news, listen, stop)
                continue
            run, number, pickled = news
            if run == self._run:  # not of the batch of another client
                self._handle(number, pickle.loads(pickled), listen)

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
