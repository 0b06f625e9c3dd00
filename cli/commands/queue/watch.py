"""`cuda-cyclegan watch`: queues studies as they arrive in a folder."""

import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....io.errors import ScanError
from ....pipelines.errors import QueueLostError
from ....pipelines.host.service_manager import notify
from ....pipelines.option import Effect
from ....pipelines.retries import Once, kind_of
from ...errors import FOR_THE_USER, errors_reported
from ...options.help_panels import QUEUE
from ...options.queue import (
    LogFileOption,
    LogFormatOption,
    PriorityOption,
    QueueOption,
    WindowOption,
    scheduling_of,
)
from ...options.study import ArrivingStudyOptions
from ...options.values import DURATION_FORM, checked_file, duration_from, wrong_value
from ...render.service_log import log
from ...render.skipped import skipped_scans
from ...render.text import counted, flagged
from ...signals import stop_signals

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.job import Submitted
    from ....pipelines.jobs.submission import Complaints, Submission

EXAMPLE = """\b
Example:
  cuda-cyclegan watch /incoming --model t1-to-t2.safetensors --output results
"""

LOOK_SECONDS = 5.0


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", exists=True, file_okay=False, help="Folder where studies arrive."
        ),
    ],
    study: ArrivingStudyOptions,
    queue: QueueOption = None,
    settle: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=duration_from(0),
            help=f"Queue a study once it has not changed for this time, {DURATION_FORM}.",
            rich_help_panel=QUEUE,
        ),
        Effect.HARMLESS,
    ] = 30.0,
    priority: PriorityOption = "normal",
    window: WindowOption = None,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            "--batch-name",
            metavar="PATTERN",
            help="Name of the batch of a night in 'jobs', from noon to noon; with date fields such "
            "as %Y-%m-%d or %G-W%V, a new name begins a new batch. It must not identify a patient.",
            rich_help_panel=QUEUE,
        ),
        Effect.HARMLESS,
    ] = "",
    log_to: LogFileOption = None,
    log_format: LogFormatOption = "text",
) -> None:
    """Queue studies as they arrive in a folder, until stopped.

    A study is queued once none of its files has changed for --settle, and again if it changes
    later; 'jobs retry' repeats one that failed. Links in the folder are not followed. Stop with
    Ctrl-C or SIGTERM; queued jobs stay queued.

    If the queue does not answer, or the model or a folder is temporarily unavailable, the command
    waits.

    \b
    Exit status:
      2               wrong usage, or the queue cannot be used
      129, 130, 143   stopped by a closed terminal, Ctrl-C or SIGTERM
    """
    with stop_signals() as stop, errors_reported(verbose=False):
        request = study.request((folder,), links="none")
        from ....pipelines.jobs.queue.batch_name import BatchPattern
        from ....pipelines.jobs.queue.location import queue_place
        from ....pipelines.jobs.queue.queue import QueueLink
        from ....pipelines.jobs.submission import (
            Arrivals,
            Complaints,
            jobs_of,  # late: a request loads nibabel alone
        )
        from ...render.log_file import log_file  # late: it loads logging

        if request.result:
            raise wrong_value("--output", "more than one study may arrive; give a folder.")
        scheduling, pattern = scheduling_of(priority, window), BatchPattern.parse(name)
        arrivals, complaints, skips = Arrivals(settle), Complaints(settle), Complaints(settle)
        search = request.cached_search()
        with (
            log_file(checked_file("--log-file", log_to), log_format),
            closing(QueueLink(queue_place(queue))) as link,
        ):
            trouble, expected = Once(), (ScanError, QueueLostError, OSError)
            try:
                link.queue()
            except QueueLostError as error:
                _log_trouble(error, trouble)
            log(f"watching {folder}")
            notify("READY=1")
            while True:
                begun, took = time.monotonic(), 0.0
                try:
                    # Before the look at results: a job that ends meanwhile is known.
                    known = link.queue().known_keys()
                    found = jobs_of(request, search)
                    expected = (*FOR_THE_USER, OSError)  # the options are valid
                    _log_found(found, complaints, skips)
                    ready = arrivals.complete(found.jobs, found.identity, found.words)
                    took = time.monotonic() - begun
                    if new := [job for job in ready if job.key() not in known]:
                        now = datetime.now()
                        submitted = link.queue().submit(
                            new,
                            scheduling,
                            name=pattern.name(now),
                            joins=f"watch {request.output} {pattern.period(now)}",
                            established=found.established,
                            reference=found.reference,
                        )
                        _log_batch(submitted)
                    arrivals.handed_over(ready)
                except expected as error:
                    _log_trouble(error, trouble)
                else:
                    trouble.passed()
                # A large folder takes long to search: at most half of the time is spent on it.
                stop.check()
                time.sleep(max(took, min(LOOK_SECONDS, max(settle / 2, 0.2))))


def _log_trouble(error: Exception, trouble: Once) -> None:
    if trouble.is_new(kind_of(error)):
        log(flagged(str(error)), "warning")


def _log_found(found: "Submission", complaints: "Complaints", skips: "Complaints") -> None:
    """Log the studies that are refused or unread and the scans that are skipped, each once."""
    unread = {str(skip.path): skip.reason for skip in found.skipped if skip.missed}
    for name, reason in complaints.due(found.refused | unread).items():
        log(f"{name} is not queued: {flagged(reason)}", "warning")
    due = skips.due({str(skip.path): skip.reason for skip in found.skipped if skip.kind})
    for line in skipped_scans(skip for skip in found.skipped if str(skip.path) in due):
        log(line)


def _log_batch(submitted: "Submitted") -> None:
    if submitted.added:
        log(f"{submitted.batch}: {counted(submitted.added, 'study', 'studies')} queued")
