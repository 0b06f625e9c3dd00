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
from ...render.terminal import columns_of, say, tell
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
    help="Look at the job queue, and change it.",
    epilog=EXAMPLE,
    rich_markup_mode=None,
)

_NAME = re.compile(r"[A-Za-z0-9-]+(/[0-9]+)?")
"""Any other, such as a server's address that lacks its `--queue`, is not printed again."""

Batch = Annotated[str, typer.Argument(metavar="BATCH", help="As 'submit' printed it.")]
Jobs = Annotated[
    str, typer.Argument(metavar="BATCH[/JOB]", help="A batch, or one job such as BATCH/00012.")
]


@app.command(epilog=_example("show 20261121-k7m2pq --watch"))
def show(
    batch: Annotated[
        str | None, typer.Argument(metavar="[BATCH]", help="As 'submit' printed it.")
    ] = None,
    queue: QueueOption = None,
    json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep showing it until no job is open.")
    ] = False,
) -> None:
    """Show all batches, or the jobs of one.

    Exit status: 0 shown; 2 there is no such batch, or the queue cannot be used.
    """
    with _open(queue) as jobs:
        from ...render import queue as shown

        rows = None if batch is None else _known(jobs, batch)
        if watch:
            from ...render.queue import watch as watch_jobs

            watch_jobs(jobs, batch)
        elif json:
            say(shown.jobs_json(jobs, rows), sys.stdout)
        else:
            for line in shown.queue_lines(jobs, rows, columns_of(sys.stdout)):
                say(line, sys.stdout)


@app.command(epilog=_example("summary 20261121-k7m2pq --html morning.html"))
def summary(
    batch: Batch,
    queue: QueueOption = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write a report, as 'translate' does; - prints it."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page, as 'report' does.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Sum a batch up as 'translate' does.

    Time and memory of each study, then the totals, and the failures last. With --html, a page for
    the morning after: what failed comes first.

    \b
    Exit status:
      0  all went well so far
      1  some job failed
      2  there is no such batch, the queue cannot be used, or a file is there
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
            say(line, out)
        tell(batch_summary.totals(summed, not_reached="open"), out)
        tell(outlook(jobs, rows), out)
        tell(batch_summary.failures(summed), sys.stderr)
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
        say(written(html, size), screen(report))


@app.command(epilog=_example("cancel 20261121-k7m2pq/00012"))
def cancel(batch: Jobs, queue: QueueOption = None) -> None:
    """Cancel what has not ended of a batch, or one job.

    What runs stops within seconds and leaves no result.

    Exit status: 0 cancelled, as far as there was something; 2 there is no such batch or job, or the
    queue cannot be used.
    """
    with _open(queue) as jobs:
        _known(jobs, batch)
        say(f"{counted(jobs.cancel(batch), 'job')} cancelled", sys.stdout)


@app.command(epilog=_example("retry 20261121-k7m2pq"))
def retry(batch: Jobs, queue: QueueOption = None) -> None:
    """Queue again what failed, was given up or was cancelled.

    Jobs whose equal work is queued or running already are left out. What was put off, as while a
    disk is full, is tried at once.

    Exit status: 0 queued, as far as there was something; 2 there is no such batch or job, or the
    queue cannot be used.
    """
    with _open(queue) as jobs:
        _known(jobs, batch)
        found = jobs.retry(batch)
        known = f", {found.known} for equal work open already" if found.known else ""
        say(f"{counted(found.again, 'job')} queued again{known}", sys.stdout)


@app.command("run-now", epilog=_example("run-now 20261121-k7m2pq"))
def run_now(batch: Jobs, queue: QueueOption = None) -> None:
    """Start jobs now that would start later.

    They wait for a time, for a window, or because they were put off, as while a disk is full. They
    keep their priority. After 'jobs pause', none starts before 'jobs resume'.

    Exit status: 0 they may start, as far as there were some; 2 there is no such batch or job, or
    the queue cannot be used.
    """
    with _open(queue) as jobs:
        _known(jobs, batch)
        say(f"{counted(jobs.run_now(batch), 'job')} may start now", sys.stdout)
        if jobs.is_paused():
            from ...render.pending_jobs import PAUSED

            say(PAUSED.capitalize(), sys.stdout)


@app.command(epilog=_example("pause"))
def pause(queue: QueueOption = None) -> None:
    """Let no job start on any worker.

    Those that run go on to their end.

    Exit status: 0 paused; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        jobs.pause()
        say("Paused; 'jobs resume' lets jobs start again.", sys.stdout)


@app.command(epilog=_example("resume"))
def resume(queue: QueueOption = None) -> None:
    """Let jobs start again after 'jobs pause'.

    Exit status: 0 resumed; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        jobs.resume()
        say("Jobs start again.", sys.stdout)


@app.command(epilog=_example("prune --days 90"))
def prune(
    days: Annotated[
        int,
        typer.Option("--days", metavar="N", min=0, help="Forget jobs that ended so many days ago."),
    ] = 30,
    queue: QueueOption = None,
) -> None:
    """Forget jobs that ended long ago; their results stay.

    Exit status: 0 forgotten, as far as there were some; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        before = datetime.now().astimezone() - timedelta(days=days)
        say(f"{counted(jobs.prune(before), 'job')} forgotten", sys.stdout)


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
        complain(f"The queue holds no batch or job {name}; 'jobs' lists all batches.")
        raise typer.Exit(Exit.USAGE)
    return rows
