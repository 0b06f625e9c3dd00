"""`cuda-cyclegan plan`: what `translate` would do with the same options."""

from typing import Annotated

import typer

from ...pipelines.option import Effect
from ..errors import errors_reported
from ..options.groups import DeviceOptions, InputOptions
from ..options.help_panels import REPORTS
from ..options.study import StudyOptions
from ..options.translate import ShardOption, ShowPhi, Verbose
from ..signals import stop_signals
from .translate import dry_run_shown, opened

EXAMPLE = """\b
Example:
  cuda-cyclegan plan scans --model t1-to-t2.safetensors --output results
"""


def plan(
    context: typer.Context,
    study: StudyOptions,
    on: DeviceOptions,
    input_options: InputOptions,
    shard: ShardOption = None,
    show_phi: ShowPhi = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with status 1 if a study would fail or an input could not be read.",
            rich_help_panel=REPORTS,
        ),
        Effect.HARMLESS,
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Show what 'translate' would do, without doing it.

    Reads and prepares every scan that would be translated, so that problems show now, and lists
    patches, memory and time per study. Writes nothing. For a study that would fail, the reason is
    shown.

    \b
    Exit status:
      0  the plan is complete, even if a study would fail
      1  with --strict: a study would fail, an input could not be read, or a
         link was not followed
      2  wrong usage
      3  no study was found
      4  the device or a library is missing
    """
    with stop_signals(), errors_reported(verbose=verbose):
        request = study.request(
            input_options.paths(), on, show_phi=show_phi, links=input_options.links, shard=shard
        )
        with opened(request, context) as job:
            raise typer.Exit(dry_run_shown(job, strict=strict))
