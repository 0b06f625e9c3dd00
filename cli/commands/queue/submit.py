"""`cuda-cyclegan submit`: queues one job per study."""

import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ....pipelines.option import Effect
from ...errors import Exit, complain, complain_of_nothing, errors_reported
from ...options.groups import InputOptions
from ...options.help_panels import QUEUE
from ...options.queue import (
    BatchName,
    PriorityOption,
    QueueOption,
    WindowOption,
    scheduling_of,
    typed_queue,
)
from ...options.study import StudyOptions
from ...options.translate import note_unused
from ...render.skipped import search_notes, skip_counts, skipped_scans, unread_places
from ...render.terminal import SEARCHING, print_line, print_sentences, spinner
from ...render.text import counted, flagged
from ...signals import stop_signals

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.job import JobRow, Submitted
    from ....pipelines.jobs.queue.queue import Queue

EXAMPLE = """\b
Examples:
  cuda-cyclegan submit scans --model t1-to-t2.safetensors \\
      --output results --window night
  cuda-cyclegan submit /share/scans --model /share/t1-to-t2.safetensors \\
      --output /share/results --queue postgresql://worker@dbhost/jobs
"""


def submit(
    context: typer.Context,
    study: StudyOptions,
    input_options: InputOptions,
    queue: QueueOption = None,
    priority: PriorityOption = "normal",
    window: WindowOption = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Start no job before this time (HH:MM) or ISO date.",
            rich_help_panel=QUEUE,
        ),
        Effect.HARMLESS,
    ] = None,
    name: BatchName = "",
) -> None:
    """Queue scans for translation, one job per study.

    Returns immediately and prints the batch name for 'jobs'; a 'worker' runs the jobs. Studies that
    are already queued for the same work are skipped. Workers must see the scans, the model and the
    output folder under the same paths.

    \b
    Exit status:
      0  all studies are queued, or were queued before
      1  a study cannot be translated with these settings and is not queued,
         an input could not be read, or a link was not followed
      2  wrong usage, or the queue cannot be used
      3  no study was found
    """
    with stop_signals(), errors_reported(verbose=False):
        request = study.request(input_options.paths(), links=input_options.links)
        from ....pipelines.jobs.queue.location import queue_place
        from ....pipelines.jobs.queue.queue import open_queue
        from ....pipelines.jobs.queue.schedule import parse_time
        from ....pipelines.jobs.submission import jobs_of  # late: a request loads nibabel alone

        scheduling = scheduling_of(priority, window)
        not_before = parse_time(at, datetime.now().astimezone()) if at else None
        with spinner(SEARCHING):
            found = jobs_of(request)
        note_unused(context, holds_files_only=found.holds_files_only)
        print_sentences(search_notes(found.notes), sys.stderr)
        if not found.jobs and not found.refused:
            raise typer.Exit(complain_of_nothing(request.inputs, found.skipped))
        with open_queue(queue_place(queue), create=True) as jobs:
            submitted = jobs.submit(
                found.jobs,
                scheduling,
                name=name,
                not_before=not_before,
                established=found.established,
                reference=found.reference,
            )
            workers = jobs.workers()
            known = _rows_of(jobs, submitted.open_already)
    if submitted.added:
        print_line(submitted.batch, sys.stdout)
    print_sentences(_outcome(submitted, known, scheduling.window, not_before), sys.stderr)
    print_sentences(skipped_scans(found.skipped), sys.stderr)
    print_sentences(skip_counts(found.skipped, "discover"), sys.stderr)
    for refused, reason in found.refused.items():
        complain(f"{refused} is not queued: {flagged(reason)}.")
    print_sentences(unread_places(found.skipped), sys.stderr)
    if submitted.added:
        for line in _next_steps(submitted.batch, workers, typed_queue(context, queue)):
            print_line(line, sys.stderr)  # whole, to be copied
    failed = found.refused or any(skip.missed for skip in found.skipped)
    raise typer.Exit(Exit.SOME_FAILED if failed else Exit.DONE)


def _next_steps(batch: str, workers: int, queue: list[str]) -> Iterator[str]:
    if workers:
        yield f"{counted(workers, 'worker is', 'workers are')} running."
    else:
        yield "No worker is running."
        yield f"To begin:     {shlex.join(['cuda-cyclegan', 'worker', *queue])}"
    yield f"To see them:  {shlex.join(['cuda-cyclegan', 'jobs', batch, *queue])}"


def _outcome(
    submitted: "Submitted", known: "Sequence[JobRow]", window: str, not_before: datetime | None
) -> Iterator[str]:
    """Return what was queued, and which open jobs do the rest of the work already."""
    from ...render.pending_jobs import moment, state_text

    start = f", to start at {window}" if window and submitted.added else ""
    if not_before and submitted.added:
        start += f", not before {moment(not_before.timestamp())}"
    yield f"{counted(submitted.added, 'study', 'studies')} queued{start}"
    if submitted.known:
        skipped = counted(submitted.known, "study", "studies")
        yield f"{skipped} skipped: already submitted for the same work"
    states = Counter((row.job.partition("/")[0], state_text(row)) for row in known)
    for (batch, state), count in states.items():
        yield f"{batch}: {count} {state}"
    if first := next(iter(states), None):
        yield (
            f"'jobs move {first[0]}' changes their window, time or priority; 'jobs run-now' starts "
            "them."
        )


def _rows_of(jobs: "Queue", names: Collection[str]) -> "list[JobRow]":
    batches = dict.fromkeys(name.partition("/")[0] for name in names)
    return [row for batch in batches for row in jobs.jobs(batch) if row.job in names]
