"""`cuda-cyclegan discover`: what lies in files and folders, and what of it would be translated."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ...io.choice import FEWEST_SLICES
from ...io.formats.nibabel_alone import import_nibabel_alone
from ..errors import Exit, complain, errors_reported
from ..options.printing import AsJson, Traceback
from ..options.translate import (
    AllowUneven,
    ChannelPatterns,
    FollowLinks,
    MinSlices,
    Modality,
    SeriesPattern,
    ShowPhi,
    VolumeIndex,
    links_of,
    parsed_choice,
)
from ..options.values import VolumeChoice, wrong_value
from ..render.missed import missed
from ..render.terminal.spinner import SEARCHING, spinner
from ..render.terminal.streams import columns_of, say, tell
from ..signals import stop_signals

EXAMPLE = """\b
Examples:
  cuda-cyclegan discover /media/cdrom
  cuda-cyclegan discover scans --modality CT,MR --series "t1|mprage" --json
  cuda-cyclegan discover scans --model t1-to-t2.safetensors
"""


def discover(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT...", help="Scan files, and folders to search for them."),
    ],
    modality: Modality = "",
    series: SeriesPattern = "",
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", metavar="FILE", help="Tell which studies this model would take."
        ),
    ] = None,
    volume: VolumeIndex = None,
    channel: ChannelPatterns = None,
    min_slices: MinSlices = FEWEST_SLICES,
    allow_uneven: AllowUneven = False,
    follow_links: FollowLinks = False,
    show_phi: ShowPhi = False,
    json: AsJson = False,
    verbose: Traceback = False,
) -> None:
    """List studies and DICOM series, taken or not.

    Every series has a row, and a reason if it is left out or refused. Only headers are read. With
    --model, series of another modality than its source are refused, and scans are joined to studies
    of its channels, as 'translate' does.

    \b
    Exit status:
      0  some study was found
      1  some study was found, and something could not be read or some link
         is not followed
      2  wrong usage
      3  none was found
    """
    if channel and not model:
        raise wrong_value("--channel", "a model has channels; name it.")
    meant = volume or VolumeChoice()
    choice = replace(
        parsed_choice(modality, series, channel, show_phi=show_phi),
        fewest_slices=min_slices,
        allow_uneven=allow_uneven,
        links=links_of(follow=follow_links),
    )
    with stop_signals(), errors_reported(verbose=verbose):
        import_nibabel_alone()
        from ...pipelines.results.earlier_results import discover_scans
        from ..render import discovery

        with spinner(SEARCHING):
            search = discover_scans(inputs, None, choice)
            if model:
                from ...engine.model.model_file import load_model
                from ...pipelines.study.modality import joined_for_model, modalities_checked

                card = load_model(model).card
                search = modalities_checked(joined_for_model(search, card, choice.channels), card)
            found = discovery.looked_at(
                search, show_phi=show_phi, volume_index=meant.index, every_volume=meant.every
            )
        if json:
            say(discovery.text(found), sys.stdout)
        else:
            for line in discovery.lines(found, columns_of(sys.stdout)):
                say(line, sys.stdout)
            tell(discovery.reasons(found), sys.stdout)
        tell(missed(search.skipped), sys.stderr)
        if not search.studies:
            complain(f"No study found in {', '.join(map(str, inputs))}.")
            raise typer.Exit(Exit.NO_STUDY)
        if found.failures or any(skip.missed for skip in search.skipped):
            raise typer.Exit(Exit.SOME_FAILED)
