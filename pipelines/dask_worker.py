"""Work of a batch on a Dask worker: shards of its studies, one task each.

Imports Dask. Client, scheduler and workers need the same version of this program, and reach the
same files.
"""

import os
import pickle
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed
from distributed.utils import sync

from ..engine.devices import Device
from ..engine.errors import DeviceUnavailableError, EngineError
from ..engine.model.model_file import load_model
from ..io.discovery import Discovery
from ..io.errors import ScanError
from ..io.files.own_files import open_own
from .errors import OutputFolderAwaitedError, OutputFolderError, PipelineError
from .events import (
    BatchStarted,
    DeviceOpened,
    Event,
    Remark,
    StudyStarted,
    Thinning,
    Worked,
)
from .program import program_version
from .report.report import BatchReport
from .request import Request
from .results.record_folder import found_record
from .run.kept_workers import KeptWorkers
from .run.process import process_names
from .settings import ResolvedOptions
from .translate import Job, checked_job, run_job

TOPIC = "cuda-cyclegan"
"""Name of this program's events, tasks and plugin in a cluster."""

POLL_SECONDS = 1.0
"""Pause between looks at the client's wish to stop, and between reports of a study's patches."""
_AWAITED_SECONDS = 120.0
"""Longest wait for the lock of a shard whose worker was lost: NFS keeps it for up to 90 s."""
_SEEN_SECONDS = 10.0
"""Longest wait for a new file of the client to appear on a worker."""


class Order:
    """Work for a worker. Without a text form, as Dask logs what fails with its arguments.

    request: request with absolute paths. run: name of the client's run. program, model: the
    client's version of this program and hash of the model.
    """

    def __init__(self, request: Request, run: str, program: str, model: str) -> None:
        self.request, self.run, self.program, self.model = request, run, program, model


def decided(order: Order) -> tuple[tuple[Device, ...], ResolvedOptions]:
    """Return a worker's devices, and the options as resolved for them; start their processes."""
    run = _run_here(order)
    for name in process_names(device.name for device in run.job.devices):
        run.workers.prepare(name)
    return run.job.devices, run.job.options


def translated(order: Order, found: Discovery) -> BatchReport | None:
    """Translate a shard on a worker; None if the client stops the batch first.

    found: its studies, as the client found them.
    """
    wish = _ClientWish(order.run)
    run = _run_here(order)
    with _errors_named():
        _check_paths(order.request)
        _check_folder(order)
        job = replace(run.job, request=order.request, discovery=found, spares=run.workers)
        until = time.monotonic() + _AWAITED_SECONDS
        while not wish.is_to_stop():
            try:
                return run_job(job, _Reporter(order, wish), isolated=True)
            except OutputFolderAwaitedError:
                if time.monotonic() > until:
                    raise
            except KeyboardInterrupt:
                return None
            time.sleep(POLL_SECONDS)
    return None


class _RunHere(distributed.WorkerPlugin):
    """State of a client's run on a worker, kept between its shards.

    job: without studies; its devices were chosen before a process used their memory. workers: the
    devices' processes. It is replaced by that of the next run, and ends with the Dask worker.
    Raises EngineError, ScanError or PipelineError if the run is impossible here.
    """

    def __init__(self, order: Order) -> None:
        with _errors_named():
            self.run, self.job = order.run, _job_there(order)
        self.workers = KeptWorkers(order.request.model)

    def teardown(self, worker: object) -> None:  # noqa: ARG002
        """End the processes."""
        self.workers.close()


def _run_here(order: Order) -> _RunHere:
    """Return the state of the order's run on this worker."""
    worker: Any = distributed.get_worker()
    run = worker.plugins.get(TOPIC)
    if not (isinstance(run, _RunHere) and run.run == order.run):
        run = _RunHere(order)
        sync(worker.loop, worker.plugin_add, run, name=TOPIC)
    return run


@contextmanager
def _errors_named() -> Generator[None]:
    """Raise errors with the name of this host, as ones that can be pickled."""
    try:
        yield
    except (EngineError, ScanError, PipelineError) as error:
        is_missing = isinstance(error, DeviceUnavailableError)
        kind = DeviceUnavailableError if is_missing else PipelineError
        raise kind(f"On {socket.gethostname()}: {error}") from None
    except OSError as error:
        what, reason = error.filename or "a file", error.strerror or type(error).__name__
        raise PipelineError(
            f"On {socket.gethostname()}: {what} is not accessible ({reason}); the worker's user "
            "needs to read inputs and model, and to write the output folder."
        ) from None


def _job_there(order: Order) -> Job:
    """Return the job of an order, without studies. Raises PipelineError for another program."""
    if (own := program_version()) != order.program:
        raise PipelineError(
            f"cuda-cyclegan {own} is installed, but the client has {order.program}; install the "
            "same version on client, scheduler and workers."
        )
    _check_paths(order.request)
    job = checked_job(order.request, load_model(order.request.model))
    if job.model.sha256 != order.model:
        raise PipelineError(f"{order.request.model} is another file than the client's model.")
    return job


def _check_paths(request: Request) -> None:
    """Raise PipelineError unless inputs and model are at the client's paths."""
    for path in (*request.inputs, request.model):
        if not path.exists():
            raise PipelineError(
                f"{path} does not exist; client and workers need the same paths to inputs, model "
                "and output folder."
            )


def _check_folder(order: Order) -> None:
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
        time.sleep(POLL_SECONDS)


def _mark(run: str) -> str:
    return f"dask-{run}"


@contextmanager
def marked(record: Path, run: str) -> Generator[None]:
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


class _ClientWish:
    """Wish of the client to stop its run, which a worker asks for now and then."""

    def __init__(self, run: str) -> None:
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
            self._next = now + POLL_SECONDS
            if self.is_to_stop():
                self._next = float("inf")
                raise KeyboardInterrupt


class _Reporter:
    """Listener of a shard on its worker, which sends to the client what that shows."""

    def __init__(self, order: Order, wish: _ClientWish) -> None:
        self._order, self._wish = order, wish
        self._worker: Any = distributed.get_worker()
        self._has_begun = False
        self._thinning = Thinning(POLL_SECONDS)

    def __call__(self, event: Event) -> None:
        match event:
            case BatchStarted():
                self._has_begun = True
            case Worked():
                pass
            case Remark() if not self._has_begun:
                pass  # the client has made it for all shards
            case StudyStarted(planned):
                self._send(str(planned.study.name))
            case DeviceOpened(device, note):
                self._send(DeviceOpened(f"{device} on {socket.gethostname()}", note))
            case _ if self._thinning.takes(event):
                self._send(event)
            case _:
                pass
        self._wish.check()

    def _send(self, news: Event | str) -> None:
        shard = self._order.request.shard
        number = shard.number if shard else 0
        self._worker.log_event(TOPIC, [self._order.run, number, pickle.dumps(news)])
