"""`cuda-cyclegan jobs`: show the jobs of the queue and act on them."""

import re
import shlex
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from ....pipelines.jobs.queue.schedule import Priority
from ...errors import Exit, complain, errors_reported
from ...options.help_panels import example
from ...options.marks import Browser, ReaderName, ShowMarks
from ...options.printing import AllRows, AsJson
from ...options.queue import BATCH, QueueOption, typed_queue
from ...options.values import checked_file, checked_output, wrong_value
from ...render.terminal import columns_of, print_line, print_sentences
from ...render.text import counted
from ...signals import stop_signals

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.job import JobRow, JobState, SummaryMark
    from ....pipelines.jobs.queue.queue import Queue
    from ....pipelines.jobs.summary import Selection


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


app = typer.Typer(
    cls=_ShowsByDefault,
    help="Show and change the job queue.",
    epilog=EXAMPLE,
    rich_markup_mode=None,
)

_NAME = re.compile(rf"{BATCH.pattern}(/[0-9]+)?")
"""Any other, such as a server's address that lacks its `--queue`, is not printed again."""

Jobs = Annotated[
    str, typer.Argument(metavar="BATCH[/JOB]", help="A batch, or one job such as BATCH/00012.")
]
OneBatch = Annotated[
    str | None,
    typer.Argument(metavar="[BATCH]", help="Only this one, as 'submit' printed it."),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Without a batch: only jobs that are open, or that ended after TIME: HH:MM (the last "
        "time it was that hour), an ISO date, yesterday (24 hours ago), or last (when the last "
        "'jobs summary --since last' of the same --name and --route ended).",
    ),
]
NamePattern = Annotated[
    str,
    typer.Option(metavar="PATTERN", help="Without a batch: of batches of this name; * is any."),
]
RouteTitle = Annotated[
    str, typer.Option(metavar="TITLE", help="Without a batch: of this route of the node.")
]


@app.command(epilog=example("jobs show 20261121-k7m2pq --watch"))
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


@app.command(epilog=example("jobs summary --since 18:00 --html morning.html"))
def summary(
    context: typer.Context,
    batch: OneBatch = None,
    since: Since = None,
    name: NamePattern = "",
    route: RouteTitle = "",
    queue: QueueOption = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the report of a batch, as 'translate' does; - prints it.",
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Without a batch: write JSON; - prints it."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page for the morning after."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    all_rows: AllRows = False,
) -> None:
    """Sum up a night, or one batch.

    A night, without BATCH: one line per batch, throughput, what waits until when, and failures by
    cause. A batch: time and memory of each study, then the totals, and the failures last.

    Names of files may have date fields, such as %Y-%m-%d.

    \b
    Exit status:
      0  no job failed so far
      1  a job failed
      2  the batch does not exist, the queue cannot be used, or an output file
         exists already
    """
    if batch is not None and json:
        raise wrong_value("BATCH", "--json is for all batches; --report is for one.")
    if batch is None and report:
        raise wrong_value("--report", "it is for one batch; --json is for all.")
    from .summary import Files, show_batch, show_overview

    files = Files.dated(json or report, html, force=force)
    checked_output("--json" if json else "--report", files.data)
    checked_file("--html", files.html)
    with _open(queue) as jobs:
        selection, mark = _selection(jobs, batch, since, name, route)
        if batch is not None:
            status = show_batch(jobs, batch, _known(jobs, batch), files, all_rows=all_rows)
        else:
            typed = shlex.join(typed_queue(context, queue))
            status = show_overview(jobs, selection, mark, files, typed)
    raise typer.Exit(status)


@app.command(epilog=example("jobs view --since 18:00"))
def view(
    batch: OneBatch = None,
    since: Since = None,
    name: NamePattern = "",
    route: RouteTitle = "",
    queue: QueueOption = None,
    reader: ReaderName = None,
    show_marks: ShowMarks = False,
    browser: Browser = True,
) -> None:
    """Look at the results of jobs in a browser, and mark them.

    Shows the studies of a night, or of one batch, whose jobs have ended, as 'view' does. Each mark
    is stored in the folder of its result, in review.csv.

    \b
    Exit status:
      2  no such job has ended, the batch does not exist, or the queue cannot
         be used
      129, 130, 143  stopped by a closed terminal, Ctrl-C or SIGTERM
    """
    with _open(queue) as jobs:
        from ....pipelines.jobs.summary import overview_of
        from ...render.overview import viewing

        selection, _ = _selection(jobs, batch, since, name, route)
        rows = None if batch is None else _known(jobs, batch)
        found = viewing(overview_of(jobs, selection, rows))
    if not found.studies:
        complain("None of these jobs has ended; 'jobs' lists all batches.")
        raise typer.Exit(Exit.USAGE)
    with stop_signals(), errors_reported(verbose=False):
        from ....pipelines.view.review import NAME, Review, login
        from ..view import serve

        name = reader or login()
        reviews = {
            folder: Review(folder / NAME, name, shows_all=show_marks) for folder in found.folders
        }
        serve(found, reviews, opens=browser)


@app.command(epilog=example("jobs cancel 20261121-k7m2pq/00012"))
def cancel(batch: Jobs, queue: QueueOption = None) -> None:
    """Cancel the open jobs of a batch, or one job.

    Running jobs stop within seconds and leave no result.

    Exit status: 0 cancelled, or nothing was open; 2 the batch or job does not exist, or the queue
    cannot be used.
    """
    with _open(queue) as jobs:
        counts = _counts(jobs, batch)
        print_line(_changed(jobs.cancel(batch), "cancelled", counts), sys.stdout)


@app.command(epilog=example("jobs retry 20261121-k7m2pq"))
def retry(batch: Jobs, queue: QueueOption = None) -> None:
    """Queue failed and cancelled jobs again.

    Jobs whose work is already queued or running are skipped. Deferred jobs, such as those waiting
    for a full disk, are tried at once.

    Exit status: 0 queued, or there was nothing to queue; 2 the batch or job does not exist, or the
    queue cannot be used.
    """
    with _open(queue) as jobs:
        _counts(jobs, batch)
        found = jobs.retry(batch)
        known = (
            (f"; {found.known} skipped because the same work is already queued or running")
            if found.known
            else ""
        )
        print_line(f"{counted(found.again, 'job')} queued again{known}", sys.stdout)


@app.command("run-now", epilog=example("jobs run-now 20261121-k7m2pq"))
def run_now(batch: Jobs, queue: QueueOption = None) -> None:
    """Start waiting jobs now.

    Jobs wait for a time, for a window, because they are held, or because they were deferred, for
    example while a disk is full. They keep their priority. After 'jobs pause', none starts before
    'jobs resume'.

    Exit status: 0 the jobs may start, or none was waiting; 2 the batch or job does not exist, or
    the queue cannot be used.
    """
    with _open(queue) as jobs:
        _counts(jobs, batch)
        print_line(f"{counted(jobs.run_now(batch), 'job')} may start now", sys.stdout)
        if jobs.is_paused():
            from ...render.pending_jobs import PAUSED

            print_line(PAUSED.capitalize(), sys.stdout)


@app.command(epilog=example("jobs hold 20261121-k7m2pq"))
def hold(batch: Jobs, queue: QueueOption = None) -> None:
    """Hold jobs that have not started until a user starts them.

    'jobs run-now' starts them, and 'jobs move --at' gives them a time. Running jobs continue.

    Exit status: 0 held, or no job was waiting; 2 the batch or job does not exist, or the queue
    cannot be used.
    """
    with _open(queue) as jobs:
        counts = _counts(jobs, batch)
        print_line(_changed(jobs.hold(batch), "held", counts), sys.stdout)


@app.command(epilog=example("jobs move 20261121-k7m2pq --window night"))
def move(
    batch: Jobs,
    priority: Annotated[
        Priority | None,
        typer.Option(metavar="urgent|normal|low", help="Which jobs go first."),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="HH:MM-HH:MM|night|any",
            help="Start them only at these times of day; any removes their window.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start none before HH:MM, or before an ISO date."),
    ] = None,
    queue: QueueOption = None,
) -> None:
    """Change when jobs that have not started may start.

    Options that you do not give keep their values: a job with a window and --at starts only when
    both allow it. 'jobs run-now' removes both; --window any removes only the window.

    Exit status: 0 moved, or no job was waiting; 2 the batch or job does not exist, or the queue
    cannot be used.
    """
    if not (priority or window or at):
        raise wrong_value("BATCH", "give --priority, --window or --at.")
    with _open(queue) as jobs:
        from ....pipelines.jobs.queue.schedule import StartWindow, parse_time

        counts = _counts(jobs, batch)
        moved = jobs.move(
            batch,
            priority=priority,
            window="" if window == "any" else str(StartWindow.parse(window)) if window else None,
            not_before=parse_time(at, datetime.now().astimezone()) if at else None,
        )
        print_line(_changed(moved, "moved", counts), sys.stdout)
        if moved:
            from ...render.queue import outlook

            print_sentences(outlook(jobs, jobs.open_jobs(batch)), sys.stderr)


@app.command(epilog=example("jobs pause"))
def pause(queue: QueueOption = None) -> None:
    """Stop all workers from starting jobs.

    Running jobs finish.

    Exit status: 0 paused; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        jobs.pause()
        print_line("Paused: no job starts until 'jobs resume'.", sys.stdout)


@app.command(epilog=example("jobs resume"))
def resume(queue: QueueOption = None) -> None:
    """Let jobs start again after 'jobs pause'.

    Exit status: 0 resumed; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        jobs.resume()
        print_line("Resumed: jobs can start again.", sys.stdout)


@app.command(epilog=example("jobs prune --days 90"))
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

    A batch with jobs that have not ended is kept whole.

    Exit status: 0 deleted, or there were none; 2 the queue cannot be used.
    """
    with _open(queue) as jobs:
        before = datetime.now().astimezone() - timedelta(days=days)
        count = counted(jobs.prune(before), "job")
        print_line(f"Deleted from the queue: {count}", sys.stdout)


def _changed(count: int, what: str, counts: "Mapping[JobState, int]") -> str:
    """Count the jobs that were changed; if there are none, state what the jobs do."""
    from ....pipelines.jobs.queue.job import OPEN

    if count:
        return f"{counted(count, 'job')} {what}"
    ended = sum(number for state, number in counts.items() if state not in OPEN)
    running = sum(counts.values()) - ended
    if not running:
        return f"no job {what}: {'all ' if ended > 1 else ''}{ended} {_have(ended)} ended"
    return f"no job {what}: {running} running, {ended} {_have(ended)} ended"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


@contextmanager
def _open(queue: str | None) -> "Generator[Queue]":
    with stop_signals(), errors_reported(verbose=False):
        from ....pipelines.jobs.queue.location import queue_place
        from ....pipelines.jobs.queue.queue import open_queue

        with open_queue(queue_place(queue)) as jobs:
            yield jobs


def _selection(
    jobs: "Queue", batch: str | None, since: str | None, name: str, route: str
) -> "tuple[Selection, SummaryMark | None]":
    """Return the selected jobs, and the mark of `--since last`. Raises SettingsError."""
    from ....pipelines.jobs.queue.schedule import parse_since
    from ....pipelines.jobs.summary import Selection

    if batch is not None and (since or name or route):
        raise wrong_value("BATCH", "--since, --name and --route are for all batches.")
    if since == "last":
        mark = jobs.next_summary(name, route)
        return Selection("", mark.since, name, route), mark
    start = parse_since(since, datetime.now().astimezone()) if since else None
    return Selection(batch or "", start, name, route), None


def _known(jobs: "Queue", batch: str) -> "list[JobRow]":
    """Return the jobs of a batch, or one job; ends the command if there is none."""
    rows = jobs.jobs(batch) if batch else []  # no single name would cover all
    if not rows:
        raise _unknown(batch)
    return rows


def _counts(jobs: "Queue", batch: str) -> "Mapping[JobState, int]":
    """Count the jobs as `_known` finds them, however many there are."""
    counts = jobs.counts(batch) if batch else {}
    if not counts:
        raise _unknown(batch)
    return counts


def _unknown(batch: str) -> typer.Exit:
    name = batch if _NAME.fullmatch(batch) else "of that name" if batch else "without a name"
    commands = [str(name) for name in cast("TyperGroup", typer.main.get_command(app)).commands]
    meant = get_close_matches(batch, commands, 1)
    hint = f"did you mean 'jobs {meant[0]}'?" if meant else "'jobs' lists all batches."
    complain(f"The queue has no batch or job {name}; {hint}")
    return typer.Exit(Exit.USAGE)
