"""`cuda-cyclegan bids-app`: `translate` with the command line of BIDS Apps."""

import typer

from ..descriptors.boutiques import Descriptor
from ..options.bids import BidsOptions
from ..options.groups import DeviceOptions, InputOptions
from ..options.printing import AllRows, OnlyPlan, Quiet, ReportFile, Version
from ..options.translate import FollowLinks, Verbose, links_of
from .translate import translate

EXAMPLE = """\b
Examples:
  cuda-cyclegan bids-app /data /out participant --model t1-to-t2.safetensors
  cuda-cyclegan bids-app /data /out participant --participant-label 01 02 \\
      --session-label pre --model t1-to-t2.safetensors
  cuda-cyclegan bids-app --descriptor > cuda-cyclegan.json
"""


def bids_app(
    context: typer.Context,
    bids: BidsOptions,
    on: DeviceOptions,
    follow_links: FollowLinks = False,
    dry_run: OnlyPlan = False,
    report: ReportFile = None,
    quiet: Quiet = False,
    all_rows: AllRows = False,
    verbose: Verbose = False,
    _version: Version = False,
    _descriptor: Descriptor = False,
) -> None:
    """Translate a BIDS dataset, as a BIDS App.

    The scans of all participants, or of those with --participant-label, are translated as
    'translate --layout bids' does; scans of a contrast other than the model's source are skipped.
    Nothing is written to BIDS_DIR. OUTPUT_DIR becomes a derivative dataset, which a later run of
    the same command continues.

    \b
    Exit status:
      0  all scans are translated, or up to date
      1  a scan failed, an input could not be read, or a link was not followed
      2  wrong usage, or BIDS_DIR is not a BIDS dataset
      3  no scan was found
      4  the device or a library is missing
      129, 130, 143  stopped by a closed terminal, Ctrl-C or SIGTERM
    """
    translate(
        context,
        bids.study(),
        on,
        InputOptions(bids.folders(links_of(follow=follow_links)), follow_links=follow_links),
        dry_run=dry_run,
        report=report,
        quiet=quiet,
        all_rows=all_rows,
        verbose=verbose,
    )
