"""`cuda-cyclegan jobs`: show the jobs of the queue and act on them."""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ...command_line import command_line
from ...errors import Exit, complain, errors_reported
from ...options.printing import AsJson
from ...options.queue import QueueOption
from ...options.values import checked_file
from ...render.documents import STDOUT, save_page, screen, standard_named, write_report, written
from ...render.terminal import columns_of, print_line, print_sentences
from ...render.text import counted
from ...signals import stop_signals

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.job import JobRow
    from ....pipelines.jobs.queue.queue import Queue
    from ....pipelines.report.report import BatchReport


class _ShowsByDefault(TyperGroup):
    """`jobs` and `jobs BATCH` mean `jobs show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        completing: bool = ctx.resilient_parsing
        if not completing and args[:1] != ["--help"] and not (args and args[0] in self.commands):
            args = ["show", *args]
        return super().parse_args(ctx, args)


EXAMPLE = """\b
Examples:
  cuda-cyclegan jobs                       all batches
  cuda-cyclegan jobs 20261121-k7m2pq       the jobs of one
  cuda-cyclegan jobs cancel 20261121-k7m2pq
"""


def _example(words: str) -> str:
    return f"\b\nExample:\n  cuda-cyclegan jobs {words}"


app = typer.Typer(
    cls=_ShowsByDefault,
    help="Show and change the job queue.",
    epilog=EXAMPLE,
    rich_markup_mode=None,
)

_NAME = re.compile(r"[A-Za-z0-9-]+(/[0-9]+)?")
"""Any other, such as a server's address that lacks its `--queue`, is not printed again."""

Batch = Annotated[str, typer.Argument(metavar="BATCH", help="Batch name as printed by 'submit'.")]
Jobs = Annotated[
    str, typer.Argument(metavar="BATCH[/JOB]", help="A batch, or one job such as BATCH/00012.")
]


@app.command(epilog=_example("show 20261121-k7m2pq --watch"))
def show(
    batch: Annotated[
        str | None, typer.Argument(metavar="[BATCH]", help="Batch name as printed by 'submit'.")
    ] = None,
    queue: QueueOption = None,
    json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh the view until no job is open.")
    ] = False,
) -> None:
    """Show all batches, or the jobs of one.

    Exit status: 0 shown; 2 the batch does not exist, or the queue cannot be used.
    """
    with _open(queue) as jobs:
        from ...render import queue as shown

        rows = None if batch is None else _known(jobs, batch)
        if watch:
            from ...render.queue import watch as watch_jobs

            watch_jobs(jobs, batch)
        elif json:
            print_line(shown.jobs_json(jobs, rows), sys.stdout)
        else:
            for line in shown.queue_lines(jobs, rows, columns_of(sys.stdout)):
                print_line(line, sys.stdout)


@app.command(epilog=_example("summary 20261121-k7m2pq --html morning.html"))
def summary(
    batch: Batch,
    queue: QueueOption = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write a JSON report like that of 'translate --report'; - prints it.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write an HTML page like that of 'report'."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Summarise a batch like 'translate'.

    Shows time and memory per study, then totals and failures. With --html, writes a page with
    failures first.

    \b
    Exit status:
      0  no job failed so far
      1  a job failed
      2  the batch does not exist, the queue cannot be used, or an output file
         exists already
    """
    report = standard_named(report)
    if report != STDOUT:
        checked_file("--report", report)
    checked_file("--html", html)
    with _open(queue) as jobs:
        from ....pipelines.jobs.summary import report_of
        from ...render import batch_summary
        from ...render.queue import outlook

        rows = _known(jobs, batch)
        summed, out = replace(report_of(rows), command=command_line()), screen(report)
        _store(summed, batch, report, html, force=force)
        for line in batch_summary.table(summed, columns_of(out)):
            print_line(line, out)
        print_sentences(batch_summary.totals(summed, not_reached="open"), out)
        print_sentences(outlook(jobs, rows), out)
        print_sentences(batch_summary.failures(summed), sys.stderr)
    raise typer.Exit(Exit.SOME_FAILED if summed.failures else Exit.DONE)


def _store(
    summed: "BatchReport", batch: str, report: Path | None, html: Path | None, *, force: bool
) -> None:
    """Write the requested files, unless one of them exists. Raises OccupiedError."""
    from ....pipelines.results.output_file import check_free

    for file in (report, html):
        if file and file != STDOUT:
            check_free(file, replace=force, sources=())
    if report:
        write_report(summed, report)
    if html:
        from ....pipelines.report.codec import as_stored
        from ...render.report import page

        size = save_page(page([as_stored(summed, Path(batch))]), html)
        print_line(written(html, size), screen(report))


@app.command(epilog=_example("cancel 20261121-k7m2pq/00012"))
def cancel(batch: Jobs, queue: QueueOption = None) -> None:
    """Cancel the open jobs of a batch, or one job.

    Running jobs stop within seconds and leave no result.

    Exit status: 0 cancelled, or nothing was open; 2 the batch or job does not exist, or the queue
    cannot be used.
    """
    with _open(queue) as jobs:
        _known(jobs, batch)
        print_line(f"{counted(jobs.cancel(batch), 'job')} cancelled", sys.stdout)


@app.command(epilog=_example("retry 20261121-k7m2pq"))
def retry(batch: Jobs, queue: QueueOption = None) -> None:
    """Queue failed and cancelled jobs again.

    Jobs whose work is already queued or running are skipped. Deferred jobs, such as those waiting
    for a full disk, are tried at once.

    Exit status: 0 queued, or there was nothing to queue; 2 the batch or job does not exist, or the
    queue cannot be used.
    """
    with _open(queue) as jobs:
        _known(jobs, batch)
        found = jobs.retry(batch)
        known = (
            (f"; {found.known} skipped because the same work is already queued or running")
            if found.known
            else ""
        )
        print_line(f"{counted(found.again, 'job')} queued again{known}", sys.stdout)


@app.command("run-now", epilog=_example("run-now 20261121-k7m2pq"))
def run_now(batch: Jobs, queue: QueueOption = None) -> None:
    """Start waiting jobs now.

    Jobs wait for a time, for a window, or because they were deferred, for example while a disk is
    full. They keep their priority. After 'jobs pause', none starts before 'jobs resume'.

    Exit status: 0 the jobs may start, or none was waiting; 2 the batch or job does not exist, or
    the queue cannot be used.
    """
    with _open(queue) as jobs:
        _known(jobs, batch)
        print_line(f"{counted(jobs.run_now(batch), 'job')} may start now", sys.stdout)
        if jobs.is_paused():
            from ...render.pending_jobs import PAUSED

            print_line(PAUSED.capitalize(), sys.stdout)


@app.command(epilog=_example("pause"))
def pause(queue: QueueOption = None) -> None:
    """Stop all workers from starting jobs.

    Running jobs finish.

    Exit status: 0 paused; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        jobs.pause()
        print_line("Paused: no job starts until 'jobs resume'.", sys.stdout)


@app.command(epilog=_example("resume"))
def resume(queue: QueueOption = None) -> None:
    """Let jobs start again after 'jobs pause'.

    Exit status: 0 resumed; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        jobs.resume()
        print_line("Resumed: jobs can start again.", sys.stdout)


@app.command(epilog=_example("prune --days 90"))
def prune(
    days: Annotated[
        int,
        typer.Option(
            "--days",
            metavar="N",
            min=0,
            help="Delete jobs that ended more than this many days ago.",
        ),
    ] = 30,
    queue: QueueOption = None,
) -> None:
    """Delete records of old jobs; their results stay.

    Exit status: 0 deleted, or there were none; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        before = datetime.now().astimezone() - timedelta(days=days)
        print_line(f"{counted(jobs.prune(before), 'job')} forgotten", sys.stdout)


@contextmanager
def _open(queue: str | None) -> "Generator[Queue]":
    with stop_signals(), errors_reported(verbose=False):
        from ....pipelines.jobs.queue.location import queue_place
        from ....pipelines.jobs.queue.queue import open_queue

        with open_queue(queue_place(queue)) as jobs:
            yield jobs


def _known(jobs: "Queue", batch: str) -> "list[JobRow]":
    rows = jobs.jobs(batch) if batch else []  # no single name would cover all
    if not rows:
        name = batch if _NAME.fullmatch(batch) else "of that name" if batch else "without a name"
        complain(f"The queue has no batch or job {name}; 'jobs' lists all batches.")
        raise typer.Exit(Exit.USAGE)
    return rows
