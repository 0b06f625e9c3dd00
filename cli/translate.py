"""`cuda-cyclegan translate`: options in, progress and tables out."""

import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer

from ..engine.tuning import TUNING_SECONDS
from ..io.choice import FEWEST_SLICES
from ..io.errors import WriteError
from ..pipelines.settings import Extras
from .errors import Exit, complain, told
from .filters import AllowUneven, Filters, MinSlices, Modality, SeriesPattern, ShowPhi
from .options import checked_device, checked_json, cuda_limits, parsed_patch
from .signals import Stop, stop_signals
from .streams import LastingStream, columns_of, say, tell
from .text import counted, printable
from .translate_options import (
    Arithmetic,
    BatchSize,
    Blending,
    DeviceName,
    Inputs,
    ModelFile,
    Output,
    Overlap,
    Overwrite,
    Patch,
    Preview,
    ResultFormat,
    Seams,
    Tune,
    TuneSeconds,
    Verbose,
    VolumeIndex,
    VramLimit,
)

if TYPE_CHECKING:
    from ..pipelines.events import Listen
    from ..pipelines.report import BatchReport
    from ..pipelines.translate import Job

EXAMPLE = "Example: cuda-cyclegan translate scans/ --model t1-to-t2.safetensors --output results/"


def translate(
    inputs: Inputs,
    model: ModelFile,
    output: Output,
    device: DeviceName = "auto",
    precision: Arithmetic = None,
    vram_limit: VramLimit = None,
    batch: BatchSize = "auto",
    tune: Tune = "full",
    tune_seconds: TuneSeconds = TUNING_SECONDS,
    patch: Patch = None,
    overlap: Overlap = 0.25,
    blend: Blending = "gaussian",
    volume: VolumeIndex = None,
    modality: Modality = "",
    series: SeriesPattern = "",
    min_slices: MinSlices = FEWEST_SLICES,
    allow_uneven: AllowUneven = False,
    show_phi: ShowPhi = False,
    output_format: ResultFormat = "same",
    overwrite: Overwrite = False,
    preview: Preview = False,
    seam_score: Seams = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="As 'plan': list what would be done.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write a report for scripts.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write what ran when, for ui.perfetto.dev."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print failures only.")] = False,
    verbose: Verbose = False,
) -> None:
    """Translate scans with a model, one or whole folders of them.

    Exit status: 0 all translated or up to date; 1 some study failed; 2 wrong usage; 3 no study
    found; 4 the device or a library is missing.
    """
    filters = Filters(modality, series, min_slices, allow_uneven, show_phi)
    choice = filters.choice(output_format)
    choices = checked_device(device), parsed_patch(patch)
    limits = cuda_limits(vram_limit, tune, tune_seconds, batch)
    for name, file in (("--report", report), ("--trace", trace)):
        checked_json(name, file)
        if dry_run and file:
            raise typer.BadParameter("a dry run writes nothing.", param_hint=f"'{name}'")
    with stop_signals() as stop, told(verbose=verbose):
        from ..pipelines.translate import Request, open_job

        job = open_job(
            Request(
                inputs=tuple(inputs),
                model=model,
                output=output,
                device=choices[0],
                limits=limits,
                precision=precision,
                patch=choices[1],
                overlap=overlap,
                blend=blend,
                volume_index=volume,
                choice=choice,
                overwrite=overwrite,
                extras=Extras(preview=preview, seam_score=seam_score),
            )
        )
        view = _View(report, trace, quiet, verbose)
        raise typer.Exit(_dry_run(job) if dry_run else _run(job, view, stop))


@dataclass(frozen=True, slots=True)
class _View:
    """What the user wants to see."""

    report: Path | None
    trace: Path | None
    quiet: bool
    verbose: bool

    @contextmanager
    def progress(self) -> "Generator[Listen]":
        """A listener for the batch's events: bars on a terminal, lines elsewhere."""
        from rich.console import Console

        from .lines import PlainLines
        from .live import LiveProgress

        terminal = cast("TextIO", LastingStream(sys.stderr))
        console = Console(file=terminal, highlight=False, markup=False, emoji=False)
        if self.quiet or not console.is_terminal or console.is_dumb_terminal:
            yield PlainLines(quiet=self.quiet, verbose=self.verbose)
            return
        with LiveProgress(console, verbose=self.verbose) as live:
            yield live


def _run(job: "Job", view: _View, stop: Stop) -> Exit:
    from ..pipelines.events import Event
    from ..pipelines.report_json import write_json
    from ..pipelines.trace import Trace
    from ..pipelines.translate import run_job

    if not job.discovery.studies:
        return _nothing_found(job)
    trace = Trace()
    with view.progress() as show:

        def listen(event: Event) -> None:
            show(event)
            if view.trace:
                trace.hear(event)

        report = run_job(job, listen)
    stored = [
        _stored(view.report, lambda path: write_json(report, path)),
        _stored(view.trace, trace.write),
    ]
    return max(*stored, _shown(report, view, stop))


def _stored(path: Path | None, write: Callable[[Path], None]) -> Exit:
    if path is None:
        return Exit.DONE
    try:
        write(path)
    except WriteError as error:
        complain(str(error))
        return Exit.SOME_FAILED
    return Exit.DONE


def _shown(report: "BatchReport", view: _View, stop: Stop) -> Exit:
    from .summary import failures, table, totals

    if not view.quiet:
        for line in table(report, columns_of(sys.stdout)):
            say(line, sys.stdout)
        tell(totals(report), sys.stdout)
        tell(failures(report), sys.stderr)
    if report.interrupted:
        say(printable(_how_to_resume(report)), sys.stderr)
        return stop.status
    return Exit.SOME_FAILED if report.failures else Exit.DONE


def _how_to_resume(report: "BatchReport") -> str:
    done = len(report.translated()) + report.count("up to date")
    total = len(report.studies) + report.not_reached
    command = shlex.join(word for word in sys.argv[1:] if word != "--overwrite")
    return (
        f"Stopped with {done} of {counted(total, 'study', 'studies')} done; to go on: "
        f"cuda-cyclegan {command}"
    )


def _nothing_found(job: "Job") -> Exit:
    where = ", ".join(str(path) for path in job.request.inputs)
    why = "; name scan files, or folders that hold some"
    for skip in job.discovery.skipped[:1]:
        others = len(job.discovery.skipped) - 1
        why = f": {skip.path}: {skip.reason}" + (f" ({others} more are skipped)" if others else "")
    complain(f"No study found in {where}{why}.")
    return Exit.NO_STUDY


def _dry_run(job: "Job") -> Exit:
    from ..pipelines.dry_run import dry_run
    from .dry_run import lines, reasons

    if not job.discovery.studies:
        return _nothing_found(job)
    plan = dry_run(job)
    for line in lines(plan, columns_of(sys.stdout)):
        say(line, sys.stdout)
    device = job.devices[0]
    no_card = device.note if device.kind == "cpu" else None
    tell(reasons(plan, job.discovery.skipped, no_card), sys.stdout)
    return Exit.SOME_FAILED if any(row.failure for row in plan.rows) else Exit.DONE
