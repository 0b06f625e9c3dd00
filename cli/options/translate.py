"""Options of `translate` that other commands take as well."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ...engine.options import Effort, Inference, Precision
from ...io.choice import Choice, OutputFormat
from ...io.links import Links
from ...pipelines.settings import MOST_FLIPS, MOST_OVERLAP, Blend
from .help_panels import DICOM, INPUT, REPORTS, RESULT, SPEED

DEVICES = ("auto", "cpu", "gpu", "cuda", "cuda:0")
"""What a shell completes; there may be more cards."""

Inputs: TypeAlias = Annotated[
    list[Path] | None,
    typer.Argument(metavar="INPUT...", help="Scan files, and folders to search for them."),
]
MoreInputs: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--input", "-i", metavar="INPUT", help="The same as an option.", rich_help_panel=INPUT
    ),
]
ModelFile: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        metavar="FILE",
        help="Model file, as 'model import' makes it.",
        rich_help_panel=INPUT,
    ),
]
Output: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR|FILE",
        help="Folder for the results, which mirrors the inputs; or one's file.",
        rich_help_panel=RESULT,
    ),
]
OutputFolder: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for the results, which mirrors the inputs.",
        rich_help_panel=RESULT,
    ),
]
DeviceName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="auto|cpu|gpu|cuda:N[,M]",
        autocompletion=lambda: list(DEVICES),
        help="auto takes a GPU, or else the CPU; 0 is cuda:0; also onnxruntime:PROVIDER.",
        rich_help_panel=SPEED,
    ),
]
Arithmetic: TypeAlias = Annotated[
    Precision | None,
    typer.Option(
        metavar="fp16|bf16|tf32|fp32",
        help="Arithmetic of the network.  [default: fp16 on a GPU, fp32 on the CPU]",
        rich_help_panel=SPEED,
    ),
]
VramLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--vram-limit",
        metavar="SIZE",
        help="Memory of a GPU to use at most, such as 4GiB.",
        rich_help_panel=SPEED,
    ),
]
BatchSize: TypeAlias = Annotated[
    str,
    typer.Option(
        "--batch",
        metavar="N|auto",
        help="Tiles that a GPU translates at once, if its memory allows; auto takes what pays.",
        rich_help_panel=SPEED,
    ),
]
Tune: TypeAlias = Annotated[
    Effort,
    typer.Option(
        metavar="quick|full|off",
        help="Which of cuDNN's plans a GPU tries before its first batch: the 8 it names first, "
        "all, or none. The fastest are kept for later starts.",
        rich_help_panel=SPEED,
    ),
]
TuneSeconds: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0.0,
        help="Time for that at most; what is best by then is taken.",
        rich_help_panel=SPEED,
    ),
]
Patch: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="D,H,W", help="Extents of a tile.  [default: the model's]", rich_help_panel=SPEED
    ),
]
HowAtOnce: TypeAlias = Annotated[
    Inference | None,
    typer.Option(
        "--inference",
        metavar="patches|volume",
        help="Blend tiles, or run the network over each volume at once.  [default: the model's]",
        rich_help_panel=RESULT,
    ),
]
Overlap: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="0..0.9",
        min=0.0,
        max=MOST_OVERLAP,
        help="Share of a tile's edge that neighbours share.",
        rich_help_panel=RESULT,
    ),
]
Blending: TypeAlias = Annotated[
    Blend,
    typer.Option(
        metavar="gaussian|linear|constant",
        help="Weights where tiles overlap.",
        rich_help_panel=RESULT,
    ),
]
VolumeIndex: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Which volume of a 4-D file, counted from 0.",
        rich_help_panel=INPUT,
    ),
]
NanTo: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--nan-to",
        metavar="VALUE",
        help="Take NaN in a scan as this value, in the scan's unit; else refused.",
        rich_help_panel=INPUT,
    ),
]
ChannelPatterns: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--channel",
        metavar="NAME=PATTERN",
        help="Which scans are this channel of the model, such as T1=*_mprage; else those that "
        "end in its name, as sub-01_T1w does.",
        rich_help_panel=INPUT,
    ),
]
ResampleChannels: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resample-channels",
        help="Resample scans of a study onto the grid of its first channel; else refused.",
        rich_help_panel=INPUT,
    ),
]
StrictInput: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict-input",
        help="Refuse scans unlike those that the model was calibrated with; else noted.",
        rich_help_panel=INPUT,
    ),
]
ResultFormat: TypeAlias = Annotated[
    OutputFormat,
    typer.Option(
        "--format",
        metavar="same|nifti|dicom",
        help="Of the results; a DICOM series becomes a derived series in its study.",
        rich_help_panel=RESULT,
    ),
]
Overwrite: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--overwrite/--skip-existing",
        help="Make all results anew, or keep those that are up to date.",
        rich_help_panel=RESULT,
    ),
]
Preview: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--preview", help="Beside each result, a picture of middle slices.", rich_help_panel=RESULT
    ),
]
Seams: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--seam-score", help="Measure how visible the tile borders are.", rich_help_panel=RESULT
    ),
]
VerifiedTiles: TypeAlias = Annotated[
    int,
    typer.Option(
        "--verify",
        metavar="N",
        min=0,
        help="Compute N tiles of each study again on the CPU, or its volume where that is "
        "translated at once; a study whose result differs fails.",
        rich_help_panel=RESULT,
    ),
]
CycleModel: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--cycle-check",
        metavar="FILE",
        help="Translate results back with this model; tell how far they then lie from the scans.",
        rich_help_panel=RESULT,
    ),
]
CycleMap: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--cycle-map",
        help="With --cycle-check, store the error of each voxel as a map.",
        rich_help_panel=RESULT,
    ),
]
Flips: TypeAlias = Annotated[
    int,
    typer.Option(
        "--spread",
        metavar="2..8",
        min=0,
        max=MOST_FLIPS,
        help="Translate with N of the 8 flips; store mean and standard deviation as maps.",
        rich_help_panel=RESULT,
    ),
]
Verbose: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--verbose", help="Print the traceback of every failure.", rich_help_panel=REPORTS
    ),
]


Modality: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="CT,MR,...",
        help="Take DICOM series of these modalities only.",
        rich_help_panel=DICOM,
    ),
]
AnyModality: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--any-modality",
        help="Take series of another modality than the model's source; else refused.",
        rich_help_panel=DICOM,
    ),
]
SeriesPattern: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="REGEX",
        help="Take DICOM series only whose description or label matches.",
        rich_help_panel=DICOM,
    ),
]
MinSlices: TypeAlias = Annotated[
    int,
    typer.Option(
        metavar="N", min=2, help="Fewest slices of a DICOM volume.", rich_help_panel=DICOM
    ),
]
AllowUneven: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-uneven",
        help="Resample tilted, uneven or incomplete DICOM stacks; else refused.",
        rich_help_panel=DICOM,
    ),
]
ShowPhi: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--show-phi", help="Show texts of headers, which may name patients.", rich_help_panel=DICOM
    ),
]
FollowLinks: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Follow links that lead out of the inputs, too.",
        rich_help_panel=INPUT,
    ),
]
KeepPrivate: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--keep-private-tags",
        help="Copy private elements of a DICOM source to its result; they may hold patient data.",
        rich_help_panel=DICOM,
    ),
]
_MODALITIES = re.compile(r"\s*[A-Za-z]{2,16}\s*(,\s*[A-Za-z]{2,16}\s*)*")


def parsed_choice(
    modality: str, series: str, channels: Sequence[str] | None, *, show_phi: bool
) -> Choice:
    """Which series are taken, and which scans as which channel. Raises BadParameter."""
    if modality and not _MODALITIES.fullmatch(modality):
        raise typer.BadParameter(
            f"{modality!r} is no list of modalities such as CT,MR.", param_hint="'--modality'"
        )
    return Choice(
        modalities=frozenset(word.strip().upper() for word in modality.split(",") if word),
        series=_pattern(series),
        show_phi=show_phi,
        channels=tuple(map(_channel, channels or ())),
    )


def _pattern(series: str) -> "re.Pattern[str] | None":
    try:
        return re.compile(series, re.IGNORECASE) if series else None
    except re.error as error:
        raise typer.BadParameter(
            f"{series!r} is no regular expression ({error}).", param_hint="'--series'"
        ) from error


def _channel(text: str) -> tuple[str, str]:
    name, _, pattern = text.partition("=")
    if not name.strip() or not pattern.strip():
        raise typer.BadParameter(
            f"{text!r} is no channel's name and pattern such as T1=*_mprage.",
            param_hint="'--channel'",
        )
    return name.strip(), pattern.strip()


def links_of(*, follow: bool) -> Links:
    """What --follow-links means."""
    return "all" if follow else "inside"
