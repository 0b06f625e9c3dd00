"""Options of `translate` that other commands take as well."""

import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

from ...engine.options import Effort, Precision
from ...io.choice import ALL_PATHS, Choice, PathGlobs
from ...io.links import Links
from ...pipelines.option import Effect, Option, Rules, Shown
from ...pipelines.settings import OPTIONS
from .values import VolumeChoice, parsed_volume, wrong_value

DEVICES = ("auto", "cpu", "gpu", "cuda", "cuda:0")
"""Shell completions; there may be more GPUs."""

DeviceName: TypeAlias = Annotated[
    str,
    Option(
        "auto takes a GPU, or else the CPU; 0 is cuda:0; also onnxruntime:PROVIDER.",
        Shown("Speed", metavar="auto|cpu|gpu|cuda:N[,M]", short="d", words=DEVICES),
        Rules(Effect.HARMLESS),
    ),
]
Arithmetic: TypeAlias = Annotated[Precision | None, OPTIONS["precision"]]
VramLimit: TypeAlias = Annotated[
    str | None,
    Option(
        "Memory of a GPU to use at most, such as 4GiB.",
        Shown("Speed", metavar="SIZE", is_rare=True),
        Rules(Effect.HARMLESS),
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    Option(
        "Threads of the network on the CPU.  [default: one per usable core]",
        Shown("Speed", metavar="N", is_rare=True, least=1),
        Rules(Effect.HARMLESS),
    ),
]
BatchSize: TypeAlias = Annotated[
    str,
    Option(
        "Tiles that a GPU translates at once, if its memory allows; auto takes what pays.",
        Shown("Speed", metavar="N|auto", is_rare=True),
        Rules(Effect.HARMLESS),
    ),
]
Tune: TypeAlias = Annotated[
    Effort,
    Option(
        "Which of cuDNN's plans a GPU times before its first batch, to keep the fastest for later "
        "starts: the 8 that cuDNN ranks first, all, or none. auto times 8 for the main layer alone "
        "and others at the end of batches, for a tenth of their time.",
        Shown("Speed", metavar="auto|quick|full|off", is_rare=True),
        Rules(Effect.HARMLESS),
    ),
]
TuneSeconds: TypeAlias = Annotated[
    float,
    Option(
        "Time for that at most; what is best by then is taken.",
        Shown("Speed", metavar="SECONDS", is_rare=True, least=0.0),
        Rules(Effect.HARMLESS),
    ),
]
ChannelPatterns: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "Which scans are this channel of the model, such as T1=*_mprage; else those that end in "
        "its name, as sub-01_T1w does.",
        Shown("Input", 5, "NAME=PATTERN", is_rare=True),
        Rules(Effect.HARMLESS, of_route=True),
    ),
]
Verbose: TypeAlias = Annotated[
    bool,
    Option(
        "Print the traceback of every failure.",
        Shown("Reports", is_rare=True),
        Rules(Effect.WIDENS_PRIVACY),
    ),
]
Modality: TypeAlias = Annotated[
    str,
    Option(
        "Take DICOM series of these modalities only.",
        Shown("DICOM", 1, "CT,MR,..."),
        Rules(Effect.HARMLESS, of_route=True, of_series=True),
    ),
]
SeriesPattern: TypeAlias = Annotated[
    str,
    Option(
        "Take DICOM series only whose description or label matches.",
        Shown("DICOM", 2, "REGEX", is_rare=True),
        Rules(Effect.HARMLESS, of_route=True, of_series=True),
    ),
]
MinSlices: TypeAlias = Annotated[int, OPTIONS["min-slices"]]
AllowUneven: TypeAlias = Annotated[bool, OPTIONS["allow-uneven"]]
VolumeIndex: TypeAlias = Annotated[VolumeChoice | None, OPTIONS["volume"], parsed_volume]
IncludeGlobs: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "Take only what fits, such as '*_T1w.nii.gz' or 'sub-*/anat'; may be repeated.",
        Shown("Input", metavar="GLOB"),
        Rules(Effect.HARMLESS),
    ),
]
ExcludeGlobs: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "Leave out what fits, such as 'derivatives'; may be repeated.",
        Shown("Input", metavar="GLOB"),
        Rules(Effect.HARMLESS),
    ),
]
AllowSynthetic: TypeAlias = Annotated[bool, OPTIONS["allow-synthetic"]]
AnyModality: TypeAlias = Annotated[bool, OPTIONS["any-modality"]]
AnyContrast: TypeAlias = Annotated[bool, OPTIONS["any-contrast"]]
ShowPhi: TypeAlias = Annotated[
    bool,
    Option(
        "Show texts of headers, which may name patients.",
        Shown("DICOM"),
        Rules(Effect.WIDENS_PRIVACY),
    ),
]
FollowLinks: TypeAlias = Annotated[
    bool,
    Option(
        "Follow links that lead out of the inputs, too.",
        Shown("Input", is_rare=True),
        Rules(Effect.WIDENS_PRIVACY),
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
    """Return the filters of scans and the patterns of channels. Raises BadParameter."""
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
    """Return the patterns of paths to take. Raises BadParameter."""
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
    """Return the rule for links that --follow-links sets."""
    return "all" if follow else "inside"
