"""`cuda-cyclegan translate`: options in, progress and tables out."""

import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...pipelines.early_start import EarlyStart, early_start, may_start_early
from ...pipelines.option import Effect, Option, Rules, Shown
from ..errors import Exit, complain_of_nothing, errors_reported, stored
from ..options.groups import DeviceOptions, InputOptions
from ..options.printing import AllRows, FailOnSuspicious, OnlyPlan, Quiet, ReportFile
from ..options.study import StudyOptions
from ..options.translate import SchedulerAddress, ShardOption, ShowPhi, Verbose, note_unused
from ..options.values import checked_device, checked_file, wrong_value
from ..render.documents import STDOUT, screen, standard_named, write_report
from ..render.skipped import search_notes, unread_places
from ..render.terminal import SEARCHING, columns_of, counting, print_line, print_sentences, spinner
from ..render.text import counted, printable
from ..signals import Stop, stop_signals

if TYPE_CHECKING:
    from rich.console import Console

    from ...pipelines.dask_cluster import DaskCluster
    from ...pipelines.events import Listen
    from ...pipelines.report.report import BatchReport
    from ...pipelines.translate import Job, Request

EXAMPLE = """\b
Examples:
  cuda-cyclegan translate scans --model t1-to-t2.safetensors --output results
  cuda-cyclegan translate /media/cdrom --model t1-to-ct.safetensors \\
      --output results --modality MR --preview
  cuda-cyclegan translate scans --model t1-to-t2.safetensors \\
      --output results --device cuda:0,1 --report night.json
"""


def translate(
    context: typer.Context,
    study: StudyOptions,
    on: DeviceOptions,
    input_options: InputOptions,
    shard: ShardOption = None,
    scheduler: SchedulerAddress = None,
    show_phi: ShowPhi = False,
    dry_run: OnlyPlan = False,
    report: ReportFile = None,
    trace: Annotated[
        Path | None,
        Option(
            "Write a timeline for ui.perfetto.dev.",
            Shown("Reports", metavar="FILE.json", is_rare=True),
            Rules(Effect.WRITES),
        ),
    ] = None,
    fail_on_suspicious: FailOnSuspicious = False,
    quiet: Quiet = False,
    filter_progress: Annotated[
        bool,
        Option(
            "Print progress as 3D Slicer reads it from a module.",
            Shown("Reports", is_rare=True),
            Rules(Effect.HARMLESS),
        ),
    ] = False,
    all_rows: AllRows = False,
    verbose: Verbose = False,
) -> None:
    """Translate scans with a model.

    Inputs are DICOM series, NIfTI (.nii, .nii.gz, .hdr with .img), NRRD, MetaImage, AFNI and MINC 1
    files, and folders that are searched for them. The output folder mirrors the inputs; a result
    keeps the format, grid and header of its source. AFNI and MINC files need --format.

    Results of this program, masks and scans of a contrast other than the model's source are skipped
    in folders and rejected if given by name; --allow-synthetic and --any-contrast accept them.

    If a scan cannot be translated, the others are still translated, and the reason is listed at the
    end. Up-to-date results are kept, so the same command continues an interrupted batch, and its
    report covers the whole batch. Results of another model or other settings are replaced after a
    note, on a terminal after a question; --overwrite skips the question. Files not written by this
    program, and results of a scan from another folder, are replaced only with --overwrite.

    \b
    Exit status:
      0  all studies are translated, or up to date
      1  a study failed, an input could not be read, a link was not followed, or
         with --fail-on-suspicious a result is suspicious or could not be measured
      2  wrong usage
      3  no study was found
      4  the device or a library is missing
      129, 130, 143  stopped by a closed terminal, Ctrl-C or SIGTERM
    """
    report = standard_named(report)
    for name, file in (("--report", report), ("--trace", trace)):
        if file != STDOUT:
            checked_file(name, file)
        if dry_run and file:
            raise wrong_value(name, "a dry run writes nothing; omit one of the two options.")
    for name, value in (("--shard", shard), ("--trace", trace)):
        if scheduler and value:
            raise wrong_value(name, "it cannot be combined with --scheduler; omit one of the two.")
    begins = not (dry_run or scheduler) and may_start_early(
        study.output,
        overwrites=study.options.overwrite,
        has_cycle_check=study.options.cycle_check is not None,
    )
    with (
        stop_signals() as stop,
        errors_reported(verbose=verbose),
        _cluster(None if dry_run else scheduler) as cluster,
        early_start(checked_device(on.device), study.model) if begins else nullcontext() as early,
    ):
        request = study.request(
            input_options.paths(), on, show_phi=show_phi, links=input_options.links, shard=shard
        )
        with opened(request, context, early, cluster, quiet=quiet) as job:
            if dry_run:
                raise typer.Exit(dry_run_shown(job))
            view = _View(
                report, trace, quiet, verbose, all_rows, filter_progress, fail_on_suspicious
            )
            raise typer.Exit(_run(job, view, stop, cluster))


def _cluster(scheduler: str | None) -> "AbstractContextManager[DaskCluster | None]":
    """Connect to a Dask cluster, if there is one."""
    if scheduler is None:
        return nullcontext()
    from ...pipelines.dask_cluster import LOCAL, connected

    if scheduler != LOCAL and "://" not in scheduler:
        raise wrong_value(
            "--scheduler", f"{scheduler!r} is not an address such as tcp://HOST:8786."
        )
    return connected(scheduler)


def _note(sentence: str) -> None:
    print_sentences([f"note: {sentence}"], sys.stderr)


@contextmanager
def opened(
    request: "Request",
    context: typer.Context,
    early: EarlyStart | None = None,
    cluster: "DaskCluster | None" = None,
    *,
    quiet: bool = False,
) -> "Generator[Job]":
    """Open the job of a request; show a spinner while its studies are searched for.

    context: of the command, whose options without effect are noted. early: its early start.
    cluster: where the job will run; None for this machine.
    """
    with ExitStack() as opening:
        with nullcontext() if quiet else spinner(SEARCHING):
            from ...pipelines.translate import begun_job

            if cluster:
                job = cluster.open_job(request, _note)
            else:
                job = opening.enter_context(begun_job(request, early))
        if not quiet:
            note_unused(context, holds_files_only=job.discovery.holds_files_only)
        yield job


@dataclass(frozen=True, slots=True)
class _View:
    """Requested outputs and verbosity."""

    report: Path | None
    trace: Path | None
    quiet: bool
    verbose: bool
    all_rows: bool
    filter_progress: bool
    fail_on_suspicious: bool

    @contextmanager
    def progress(self) -> "Generator[Listen]":
        """Yield a listener for the batch's events: bars on a terminal, lines elsewhere."""
        if self.filter_progress:
            from ..render.filter_progress import FilterProgress

            yield FilterProgress()
            return
        if self.quiet or (console := _console()) is None:
            from ..render.progress_lines import PlainLines

            yield PlainLines(quiet=self.quiet, verbose=self.verbose)
            return
        from ..render.progress_bars import LiveProgress

        with LiveProgress(console, verbose=self.verbose) as live:
            yield live


def _console() -> "Console | None":
    """Return a terminal that can show progress bars, else None."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _run(job: "Job", view: _View, stop: Stop, cluster: "DaskCluster | None") -> Exit:
    from ...engine.startup import without_openvino_converter
    from ...pipelines.events import DeviceOpened, Event
    from ...pipelines.timeline import Trace
    from ...pipelines.translate import new_device_note, run_job

    print_sentences(search_notes(job.discovery.notes), sys.stderr)
    if not job.discovery.studies and not job.discovery.elsewhere:
        return complain_of_nothing(job.request.inputs, job.discovery.skipped)
    without_openvino_converter()
    earlier, trace = _report_so_far(job, view.report), Trace()
    with view.progress() as show:

        def listen(event: Event) -> None:
            is_opening = isinstance(event, DeviceOpened)
            show(replace(event, note=new_device_note(job)) if is_opening else event)
            if view.trace:
                trace.handle(event)

        with stop.again():
            run = cluster.run_job if cluster else run_job
            report = run(job, listen, _confirm_replacing)
    statuses = [
        _stored(view.report, lambda path: _write_whole(earlier, report, job, path)),
        _stored(view.trace, trace.write),
    ]
    return max(*statuses, _shown(report, view, stop))


def _confirm_replacing() -> None:
    """Ask whether the listed results may be replaced, if a user is at the terminal."""
    from ...pipelines.host.processes import is_in_background

    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if is_in_background(sys.stdin.fileno()):
        return
    print("Replace them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print_line("Nothing was changed.", sys.stderr)
        raise typer.Exit(Exit.USAGE)


def _report_so_far(job: "Job", file: Path | None) -> "BatchReport | None":
    """Return the report of earlier runs in the file. Raises ReportFileError for another's."""
    if file is None or file == STDOUT:
        return None
    from ...pipelines.report.comparison import report_so_far

    return report_so_far(file, job.model.sha256, job.options, job.request.output)


def _write_whole(
    earlier: "BatchReport | None", report: "BatchReport", job: "Job", path: Path
) -> None:
    """Write the report of the whole batch; of a shard, that of all shards so far."""
    if job.request.shard is None:
        write_report(_whole(earlier, report, job), path)
        return
    from ...pipelines.results.kept_report import joint_report

    with joint_report(job.request.output) as joint:
        write_report(_whole(None, joint, job), path)


def _whole(earlier: "BatchReport | None", report: "BatchReport", job: "Job") -> "BatchReport":
    """Return the report of the whole batch, including the studies of earlier runs."""
    from ..command_line import command_line

    report = replace(report, command=command_line())
    if earlier is None:
        return report
    from ...pipelines.report.comparison import joined

    return joined(earlier, report, [str(study.name) for study in job.discovery.studies])


def _stored(path: Path | None, write: Callable[[Path], None]) -> Exit:
    return stored(lambda: write(path)) if path else Exit.DONE


def _shown(report: "BatchReport", view: _View, stop: Stop) -> Exit:
    from ...pipelines.report.suspicion import has_suspicious
    from ..render.batch_summary import failures, suspicious, table, totals

    fails = view.fail_on_suspicious and has_suspicious(report)
    if not view.quiet:
        out = screen(view.report)
        for line in table(report, columns_of(out), all_rows=view.all_rows):
            print_line(line, out)
        asked = view.fail_on_suspicious
        print_sentences(totals(report, verbose=view.verbose, is_condition=asked), out)
        print_sentences(failures(report), sys.stderr)
    elif fails:
        print_sentences(suspicious(report), sys.stderr)
    if report.interrupted:
        for line in _how_to_resume(report):
            print_line(printable(line), sys.stderr)
        return stop.status
    print_sentences(unread_places(report.skipped), sys.stderr)
    failed = fails or report.failures or any(skip.missed for skip in report.skipped)
    return Exit.SOME_FAILED if failed else Exit.DONE


def _how_to_resume(report: "BatchReport") -> tuple[str, str]:
    done = len(report.translated()) + report.count("up to date")
    total = len(report.studies) + report.not_reached
    command = shlex.join(word for word in sys.argv[1:] if word != "--overwrite")
    return (
        f"Stopped with {done} of {counted(total, 'study', 'studies')} done; to continue:",
        f"  cuda-cyclegan {command}",
    )


def dry_run_shown(job: "Job", *, strict: bool = False) -> Exit:
    """Show what would be done, and return the exit status.

    strict: whether the status is 1 if some study would fail or something could not be read.
    """
    from ...pipelines.dry_run import dry_run
    from ...pipelines.translate import new_device_note
    from ..render.plan import lines, reasons

    print_sentences(search_notes(job.discovery.notes), sys.stderr)
    if not job.discovery.studies and not job.discovery.elsewhere:
        return complain_of_nothing(job.request.inputs, job.discovery.skipped)
    with counting("Reading scans", "studies") as report_done:
        plan = dry_run(job, report_done)
    for line in lines(plan, columns_of(sys.stdout)):
        print_line(line, sys.stdout)
    print_sentences(reasons(plan, job.discovery.skipped, new_device_note(job)), sys.stdout)
    print_sentences(unread_places(job.discovery.skipped), sys.stderr)
    failed = [row for row in plan.rows if row.failure]
    is_incomplete = failed or any(skip.missed for skip in job.discovery.skipped)
    return Exit.SOME_FAILED if strict and is_incomplete else Exit.DONE
