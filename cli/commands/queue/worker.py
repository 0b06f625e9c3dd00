"""`cuda-cyclegan worker`: one process per device that runs the jobs of the queue."""

import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ....pipelines.errors import QueueLostError
from ....pipelines.host.failure_hook import FailureHook
from ....pipelines.host.service_manager import service_of_manager
from ....pipelines.option import Effect
from ....pipelines.retries import TRIES
from ...errors import Exit, complain, errors_reported, sentence, status
from ...options.groups import LimitOptions
from ...options.queue import (
    LogFileOption,
    LogFormatOption,
    OnFailureOption,
    QueueOption,
    checked_batch,
)
from ...options.translate import DEVICES
from ...options.values import checked_device, checked_file, wrong_value
from ...render.service_log import Level, log
from ...render.text import counted, flagged, seconds
from ...signals import handling_stop_signals
from .metrics import MetricsOption, metrics_at

if TYPE_CHECKING:
    from ....pipelines.jobs.events import WorkerEvent
    from ....pipelines.jobs.metrics import JobMetrics
    from ....pipelines.jobs.queue.location import QueuePlace

EXAMPLE = """\b
Examples:
  cuda-cyclegan worker
  cuda-cyclegan worker --device cuda:0,1 --until-empty
  cuda-cyclegan worker --queue postgresql://worker@dbhost/jobs
"""


def worker(
    queue: QueueOption = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="auto|cpu|gpu|cuda:N[,M]",
            autocompletion=lambda: list(DEVICES),
            help="Device; several GPUs get one process each; also onnxruntime:PROVIDER.",
        ),
        Effect.HARMLESS,
    ] = "auto",
    until_empty: Annotated[
        bool,
        typer.Option(
            "--until-empty",
            help="Stop when no job may start now, even if jobs wait for later.",
        ),
        Effect.HARMLESS,
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="With --until-empty: also wait for jobs scheduled for later."),
        Effect.HARMLESS,
    ] = False,
    only: Annotated[
        str,
        typer.Option(metavar="BATCH", help="Run only jobs of this batch."),
        Effect.HARMLESS,
    ] = "",
    fail_on_error: Annotated[
        bool,
        typer.Option("--fail-on-error", help="Exit with status 1 if a job failed on this worker."),
        Effect.HARMLESS,
    ] = False,
    tries: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Stop retrying a job after it has crashed this many workers."
        ),
        Effect.HARMLESS,
    ] = TRIES,
    *,
    use: LimitOptions,
    yield_to_others: Annotated[
        bool,
        typer.Option(
            "--yield-to-others", help="Start no job while other programs use the GPU heavily."
        ),
        Effect.HARMLESS,
    ] = False,
    yield_memory: Annotated[
        int,
        typer.Option(
            metavar="MIB",
            min=0,
            help="With --yield-to-others: GPU memory that other programs may use.",
        ),
        Effect.HARMLESS,
    ] = 1024,
    yield_load: Annotated[
        int,
        typer.Option(
            metavar="PERCENT",
            min=0,
            help="With --yield-to-others: GPU utilisation that other programs may cause.",
        ),
        Effect.HARMLESS,
    ] = 20,
    log_to: LogFileOption = None,
    log_format: LogFormatOption = "text",
    on_failure: OnFailureOption = "",
    metrics: MetricsOption = "",
) -> None:
    """Run jobs of the queue until stopped.

    One process per device keeps the model loaded between jobs. A worker reclaims the jobs of one
    that was killed.

    SIGTERM or Ctrl-C: finish the running jobs, then stop; a second time: return them to the queue
    and stop immediately.

    \b
    Exit status:
      0  stopped, or with --until-empty no job is left that may start;
         'jobs' shows failed jobs
      1  with --fail-on-error: a job failed on this worker
      2  wrong usage, the queue cannot be used, or the GPU already has a worker
      4  the device or a library is missing
    """
    if wait and not until_empty:
        raise wrong_value("--wait", "it needs --until-empty.")
    asked = checked_device(device)
    limits = use.limits()
    with errors_reported(verbose=False):
        from ....pipelines.jobs.events import WorkerSettings, YieldLimits
        from ....pipelines.jobs.queue.location import queue_place
        from ....pipelines.jobs.supervision import QueueTask, QueueWorkers
        from ...render.log_file import log_file  # late: it loads logging

        place = queue_place(queue)
        if checked_batch(only):
            _check_known(place, only)
        yields_at = YieldLimits(yield_memory << 20, yield_load) if yield_to_others else None
        devices = devices_of(asked)
        settings = WorkerSettings(
            until_empty, wait, only, tries, yields_at, limits, sharing=len(devices)
        )
        task, log = (
            QueueTask(place, settings, _ending),
            JobLog(_failure_hook(on_failure)),
        )
        workers = QueueWorkers(task, devices, _FINAL, log.handle, log.died, _log_stop)
        with (
            log_file(checked_file("--log-file", log_to), log_format),
            closing(log.hook),
            metrics_at(metrics, place) as log.metrics,
            service_of_manager(workers.post),
            handling_stop_signals(lambda asked, _: workers.stop(asked)),
        ):
            ended = workers.run()
        failed = fail_on_error and log.has_failures
        raise typer.Exit(ended or (Exit.SOME_FAILED if failed else Exit.DONE))


def _check_known(place: "QueuePlace", batch: str) -> None:
    from ....pipelines.jobs.queue.queue import open_queue

    with open_queue(place) as jobs:
        if all(found.batch != batch for found in jobs.batches()):
            complain(f"The queue has no batch {batch}; 'jobs' lists all batches.")
            raise typer.Exit(Exit.USAGE)


class JobLog:
    """Log of one line per finished job, also for a job whose worker died before reporting it.

    hook: runs a user's command after failures. metrics: of ended jobs, if they are
    served. has_failures: whether a job failed.
    """

    def __init__(self, hook: FailureHook) -> None:
        self.hook = hook
        self.metrics: JobMetrics | None = None
        self.has_failures = False
        self._in_flight: dict[str, dict[str, str]] = {}
        self._searches: dict[str, list[float]] = {}

    def handle(self, device: str, news: "WorkerEvent") -> None:
        """Handle and log an event of a device's worker."""
        from ....pipelines.events import Tuning
        from ....pipelines.jobs.events import (
            JobDeferred,
            JobEnded,
            JobStarted,
            NothingLeft,
            Waiting,
        )

        in_flight = self._in_flight.setdefault(device, {})
        match news:
            case JobStarted(job, study):
                in_flight[job] = study
            case JobEnded(job, _, row):
                in_flight.pop(job, None)
                self.has_failures = self.has_failures or row is None or row.status == "failed"
                self.hook.count("given_up" if row is None else row.status.replace(" ", "_"))
                if self.metrics:
                    self.metrics.add(row)
            case JobDeferred(job, _, _):
                in_flight.pop(job, None)
            case Tuning(_, share):
                self._log_tuning(device, share)
            case Waiting() | NothingLeft() if not any(self._in_flight.values()):
                self.hook.run_now()
            case _:
                pass
        log_news(device, news)

    def died(self, device: str, why: str) -> None:
        """Log that a worker ended and is replaced, with the jobs that others will reclaim."""
        self._searches.pop(device, None)
        left = self._in_flight.pop(device, {})
        jobs = ", ".join(f"{job} ({study})" for job, study in left.items())
        over = f" while running {jobs}" if jobs else ""
        _log(device, f"the worker ended{over} ({why}); starting a new one", "error")

    def _log_tuning(self, device: str, share: float) -> None:
        """Log the start and the end of a search for tactics; keep the time of each in between."""
        if share < 1:
            starts = self._searches.setdefault(device, [])
            if not starts:
                _log(device, "tuning: measuring tactics of the convolutions on this GPU")
            starts.append(time.monotonic())
        elif starts := self._searches.pop(device, None):
            plans, spent = counted(len(starts), "tactic"), seconds(time.monotonic() - starts[0])
            _log(device, f"tuning done: {plans} stored, {spent} s")


def _failure_hook(command: str) -> FailureHook:
    names = ("translated", "up_to_date", "failed", "given_up")
    return FailureHook(command, names, ("failed", "given_up"), GATHER_SECONDS, _log_trouble)


def _log_trouble(text: str) -> None:
    log(flagged(text), "error")


GATHER_SECONDS = 3600.0
"""Longest time for which failures are gathered for one run of the failure hook."""

_FINAL = (Exit.DONE, Exit.USAGE)


def _ending(error: Exception) -> tuple[int, str]:
    """Return the status and message of an error that ends a worker; a lost queue is retried."""
    lost = isinstance(error, QueueLostError)
    return Exit.SOME_FAILED if lost else status(error), sentence(error)


_UNTIL_THEN = "Its batch is retried every minute until then."


def log_news(device: str, news: "WorkerEvent") -> None:
    """Log one line per event, except for the start of a job, which `jobs` shows."""
    from ....pipelines.events import Remark
    from ....pipelines.jobs.events import (
        JobDeferred,
        JobEnded,
        NothingLeft,
        Waiting,
    )
    from ....pipelines.run.messages import Ended
    from ...render.pending_jobs import remaining
    from ...render.progress_lines import failure_text

    match news:
        case JobEnded(job, study, None):
            _log(device, f"{job} failed permanently: {study}: it crashed too many workers", "error")
        case JobEnded(job, study, row) if row is not None:
            spent = f", {seconds(row.seconds)} s" if row.seconds else ""
            why = f": {failure_text(row.failure)}" if row.failure else ""
            level: Level = "warning" if row.failure else "info"
            facts = {"job": job, "study": study, "status": row.status, "seconds": row.seconds}
            _log(device, f"{job} {row.status}: {study}{spent}{why}", level, **facts)
        case JobDeferred(job, study, why) if why:
            _log(device, f"{job} waits: {study}: {flagged(why)} {_UNTIL_THEN}")
        case Waiting(None, left, is_paused):
            after = remaining(left, is_paused=is_paused)
            _log(device, "; ".join(["waiting for jobs that may start", *after]))
        case Waiting(reason) if reason is not None:
            _log(device, flagged(reason))
        case Remark(text):
            _log(device, text)
        case NothingLeft(left, is_paused):
            waits = any(not kind.is_held for kind in left)
            after = [
                *remaining(left, is_paused=is_paused),
                *(["add --wait to wait for them"] if waits else []),
            ]
            _log(device, "; ".join(["no job is left that may start now", *after]))
        case Ended(why) if why is not None:
            complain(f"worker for {device}: {why}")
        case _:
            pass


def _log_stop(number: int) -> None:
    log(
        f"{signal.Signals(number).name}: stopping after the running jobs; signal again to stop "
        "immediately"
    )


def devices_of(asked: str) -> list[str]:
    """Return the devices, one per process; without numbers, every usable GPU.

    Raises BadParameter for a GPU that is named twice.
    """
    from ....engine.devices import choose_devices

    chosen = choose_devices(asked)
    if asked == "auto" and chosen[0].kind == "cuda":
        chosen = choose_devices("cuda")
    names = [device.name for device in chosen]
    if len({*names}) < len(names):
        raise wrong_value(
            "--device", f"{asked} names a GPU twice; a worker has one process on each."
        )
    return names


def _log(device: str, text: str, level: Level = "info", **facts: object) -> None:
    log(f"{device}: {text}", level, device=device, **facts)
