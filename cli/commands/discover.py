"""`cuda-cyclegan discover`: scans in files and folders, and which would be translated."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...io.choice import FEWEST_SLICES
from ...io.formats.nibabel_alone import import_nibabel_alone
from ...pipelines.option import Effect
from ...pipelines.settings import TranslateOptions
from ..errors import Exit, complain, errors_reported
from ..options.printing import AsJson, Traceback
from ..options.translate import (
    AllowSynthetic,
    AllowUneven,
    AnyContrast,
    AnyModality,
    ChannelPatterns,
    ExcludeGlobs,
    FollowLinks,
    IncludeGlobs,
    MinSlices,
    Modality,
    SeriesPattern,
    ShowPhi,
    VolumeIndex,
    links_of,
    note_unused,
    parsed_choice,
    parsed_globs,
)
from ..options.values import VolumeChoice, wrong_value
from ..render.skipped import nothing_found, search_notes, unread_places
from ..render.terminal import SEARCHING, columns_of, print_line, print_sentences, spinner
from ..signals import stop_signals

if TYPE_CHECKING:
    from ...engine.model.model_card import ModelCard

EXAMPLE = """\b
Examples:
  cuda-cyclegan discover /media/cdrom
  cuda-cyclegan discover scans --modality CT,MR --series "t1|mprage" --json
  cuda-cyclegan discover scans --model t1-to-t2.safetensors
"""


def discover(
    context: typer.Context,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...", help="Scan files, or folders that are searched for scans."
        ),
    ],
    modality: Modality = "",
    series: SeriesPattern = "",
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", metavar="FILE", help="Show which studies this model would accept."
        ),
        Effect.HARMLESS,
    ] = None,
    volume: VolumeIndex = None,
    include: IncludeGlobs = None,
    exclude: ExcludeGlobs = None,
    any_modality: AnyModality = False,
    any_contrast: AnyContrast = False,
    allow_synthetic: AllowSynthetic = False,
    channel: ChannelPatterns = None,
    min_slices: MinSlices = FEWEST_SLICES,
    allow_uneven: AllowUneven = False,
    follow_links: FollowLinks = False,
    show_phi: ShowPhi = False,
    json: AsJson = False,
    verbose: Traceback = False,
) -> None:
    """List studies and DICOM series, including rejected ones.

    Every series has a row, with the reason if it is skipped or rejected. Only headers are read. As
    with 'translate', results of this program and masks are skipped; with --model, scans of other
    contrasts than the model's source are skipped too, and scans are grouped into studies with its
    channels.

    \b
    Exit status:
      0  at least one study was found
      1  studies were found, but some input could not be read or a link was
         not followed
      2  wrong usage
      3  no study was found
    """
    if channel and not model:
        raise wrong_value("--channel", "channels belong to a model; give one.")
    meant = volume or VolumeChoice()
    filters = parsed_choice(
        modality, series, channel, parsed_globs(include, exclude), show_phi=show_phi
    )
    choice = TranslateOptions(
        fewest_slices=min_slices,
        allow_uneven=allow_uneven,
        links=links_of(follow=follow_links),
        any_modality=any_modality,
        any_contrast=any_contrast,
        allow_synthetic=allow_synthetic,
    ).choice(filters)
    with stop_signals(), errors_reported(verbose=verbose):
        import_nibabel_alone()
        from ...io.discovery import KnownHeaders
        from ...io.found_headers import read_headers
        from ...pipelines.results.earlier_results import discover_scans
        from ...pipelines.study.selection import studies_for
        from ..render import discovery

        with spinner(SEARCHING):
            card = _card_of(model) if model else None
            known = KnownHeaders()
            search = discover_scans(inputs, None, choice, known)
            search = studies_for(search, card, choice.takes, choice.channels, known)
            found = read_headers(search, meant.index, every_volume=meant.every)
        note_unused(context, holds_files_only=search.holds_files_only)
        if json:
            print_line(discovery.text(found, show_phi=show_phi), sys.stdout)
        else:
            for line in discovery.lines(found, columns_of(sys.stdout), show_phi=show_phi):
                print_line(line, sys.stdout)
            print_sentences(discovery.reasons(found), sys.stdout)
        print_sentences(search_notes(search.notes), sys.stderr)
        print_sentences(unread_places(search.skipped), sys.stderr)
        if not search.studies:
            complain(nothing_found(inputs, search.skipped, are_listed=not json))
            raise typer.Exit(Exit.NO_STUDY)
        if found.failures or any(skip.missed for skip in search.skipped):
            raise typer.Exit(Exit.SOME_FAILED)


def _card_of(model: Path) -> "ModelCard":
    from ...engine.model.model_file import load_model

    return load_model(model).card
