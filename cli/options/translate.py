"""Options of `translate` that other commands take as well."""

import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from ...engine.options import Effort, Precision
from ...io.choice import ALL_PATHS, Choice, PathGlobs
from ...io.links import Links
from .help_panels import DICOM, INPUT, REPORTS, SPEED
from .values import VolumeChoice, parsed_volume, wrong_value

DEVICES = ("auto", "cpu", "gpu", "cuda", "cuda:0")
"""What a shell completes; there may be more cards."""

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
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Threads of the network on the CPU.  [default: one per usable core]",
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
VolumeIndex: TypeAlias = Annotated[
    VolumeChoice | None,
    typer.Option(
        "--volume",
        parser=parsed_volume,
        metavar="N|all",
        help="Which volume of a 4-D file, counted from 0; all translates each, into a 4-D result.",
        rich_help_panel=INPUT,
    ),
]
IncludeGlobs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="GLOB",
        help="Take only what fits, such as '*_T1w.nii.gz' or 'sub-*/anat'; may be repeated.",
        rich_help_panel=INPUT,
    ),
]
ExcludeGlobs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="GLOB",
        help="Leave out what fits, such as 'derivatives'; may be repeated.",
        rich_help_panel=INPUT,
    ),
]
AllowSynthetic: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-synthetic",
        help="Take results of this program as scans; else passed over.",
        rich_help_panel=INPUT,
    ),
]
AnyModality: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--any-modality",
        help="Take series of another modality than the model's source; else passed over.",
        rich_help_panel=DICOM,
    ),
]
AnyContrast: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--any-contrast",
        help="Take masks, and scans of another contrast than the model's source; else passed over.",
        rich_help_panel=INPUT,
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
_MODALITIES = re.compile(r"\s*[A-Za-z]{2,16}\s*(,\s*[A-Za-z]{2,16}\s*)*")


def parsed_choice(
    modality: str,
    series: str,
    channels: Sequence[str] | None,
    globs: PathGlobs = ALL_PATHS,
    *,
    show_phi: bool,
) -> Choice:
    """Which scans are taken, and which as which channel. Raises BadParameter."""
    if modality and not _MODALITIES.fullmatch(modality):
        raise wrong_value("--modality", f"{modality!r} is no list of modalities such as CT,MR.")
    return Choice(
        modalities=frozenset(word.strip().upper() for word in modality.split(",") if word),
        series=_pattern(series),
        show_phi=show_phi,
        channels=tuple(map(_channel, channels or ())),
        globs=globs,
    )


def parsed_globs(include: Sequence[str] | None, exclude: Sequence[str] | None) -> PathGlobs:
    """Which paths are taken. Raises BadParameter."""
    for option, patterns in (("--include", include), ("--exclude", exclude)):
        if any(not pattern.strip("./") for pattern in patterns or ()):
            raise wrong_value(option, "a pattern is empty; name paths such as 'sub-*/anat'.")
    return PathGlobs(tuple(include or ()), tuple(exclude or ()))


def _pattern(series: str) -> "re.Pattern[str] | None":
    try:
        return re.compile(series, re.IGNORECASE) if series else None
    except re.error as error:
        raise wrong_value("--series", f"{series!r} is no regular expression ({error}).") from error


def _channel(text: str) -> tuple[str, str]:
    name, _, pattern = text.partition("=")
    if not name.strip() or not pattern.strip():
        raise wrong_value(
            "--channel", f"{text!r} is no channel's name and pattern such as T1=*_mprage."
        )
    return name.strip(), pattern.strip()


def links_of(*, follow: bool) -> Links:
    """What --follow-links means."""
    return "all" if follow else "inside"
