"""Options of `translate` that other commands take as well."""

import re
import sys
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from ...engine.options import Precision
from ...io.choice import Choice, PathGlobs
from ...io.links import Links
from ...pipelines.option import Effect, Option, Rules, Shown
from ...pipelines.settings import OPTIONS
from ...pipelines.shard import Shard
from ..render.terminal import print_sentences
from ..render.text import option as option_name
from .spelling import declared_of
from .values import (
    VolumeChoice,
    parsed_shard,
    parsed_volume,
    wrong_value,
)

DEVICES = ("auto", "cpu", "gpu", "cuda", "cuda:0")
"""Shell completions; there may be more GPUs."""

DeviceName: TypeAlias = Annotated[
    str,
    Option(
        "Device; auto uses a GPU if there is one, else the CPU; 0 means cuda:0, and 0,0 two "
        "processes on it; also onnxruntime:PROVIDER.",
        Shown("Speed", metavar="auto|cpu|gpu|cuda:N[,M]", short="d", words=DEVICES),
        Rules(Effect.HARMLESS),
    ),
]
Arithmetic: TypeAlias = Annotated[Precision | None, OPTIONS["precision"]]
VramLimit: TypeAlias = Annotated[
    str | None,
    Option(
        "Maximum GPU memory to use, such as 4GiB.",
        Shown("Speed", metavar="SIZE", is_rare=True),
        Rules(Effect.HARMLESS),
    ),
]
ChannelPatterns: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "Scans of a channel of the model, such as T1=*_mprage; by default those whose name ends "
        "in the channel's, such as sub-01_T1w.",
        Shown("Input", 5, "NAME=PATTERN", is_rare=True),
        Rules(Effect.HARMLESS, of_route=True),
    ),
]
Verbose: TypeAlias = Annotated[
    bool,
    Option(
        "Print the traceback of every failure, and the time of each stage of the batch.",
        Shown("Reports", is_rare=True),
        Rules(Effect.WIDENS_PRIVACY),
    ),
]
Modality: TypeAlias = Annotated[
    str,
    Option(
        "Only DICOM series of these modalities.",
        Shown("DICOM", 1, "CT,MR,..."),
        Rules(Effect.HARMLESS, of_route=True, of_series=True),
    ),
]
SeriesPattern: TypeAlias = Annotated[
    str,
    Option(
        "Only DICOM series whose description or label matches.",
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
        "Only paths that match, such as '*_T1w.nii.gz' or 'sub-*/anat'; repeatable.",
        Shown("Input", metavar="GLOB"),
        Rules(Effect.HARMLESS),
    ),
]
ExcludeGlobs: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "Exclude paths that match, such as 'derivatives'; repeatable.",
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
        "Show header texts, which may identify patients.",
        Shown("DICOM"),
        Rules(Effect.WIDENS_PRIVACY, of_series=True),
    ),
]
FollowLinks: TypeAlias = Annotated[
    bool,
    Option(
        "Also follow links that lead outside the inputs.",
        Shown("Input", is_rare=True),
        Rules(Effect.WIDENS_PRIVACY),
    ),
]
ShardOption: TypeAlias = Annotated[
    Shard | None,
    Option(
        "Only this share of the studies, such as 3/40; others may run at the same time.",
        Shown("Input", metavar="I/N", is_rare=True),
        Rules(Effect.HARMLESS),
    ),
    parsed_shard,
]
SchedulerAddress: TypeAlias = Annotated[
    str | None,
    Option(
        "Share the work among the workers of this Dask cluster; local starts one here.",
        Shown("Speed", metavar="tcp://HOST:PORT|local", is_rare=True),
        Rules(Effect.LOADS_CODE),
    ),
]
_MODALITIES = re.compile(r"\s*[A-Za-z]{2,16}\s*(,\s*[A-Za-z]{2,16}\s*)*")


def parsed_choice(
    modality: str,
    series: str,
    channels: Sequence[str] | None,
    globs: PathGlobs,
    *,
    show_phi: bool,
) -> Choice:
    """Return the filters of scans and the patterns of channels. Raises BadParameter."""
    if modality and not _MODALITIES.fullmatch(modality):
        raise wrong_value("--modality", f"{modality!r} is not a list of modalities such as CT,MR.")
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
            raise wrong_value(option, "a pattern is empty; give paths such as 'sub-*/anat'.")
    return PathGlobs(tuple(include or ()), tuple(exclude or ()))


def _pattern(series: str) -> "re.Pattern[str] | None":
    try:
        return re.compile(series, re.IGNORECASE) if series else None
    except re.error as error:
        raise wrong_value(
            "--series", f"{series!r} is not a regular expression ({error})."
        ) from error


def _channel(text: str) -> tuple[str, str]:
    name, _, pattern = text.partition("=")
    if not name.strip() or not pattern.strip():
        raise wrong_value(
            "--channel", f"{text!r} is not a channel name and pattern such as T1=*_mprage."
        )
    return name.strip(), pattern.strip()


def links_of(*, follow: bool) -> Links:
    """Return the rule for links that --follow-links sets."""
    return "all" if follow else "inside"


def note_unused(context: typer.Context, *, holds_files_only: bool) -> None:
    """Note typed options of DICOM series if none was found: a nightly command must not depend on
    what arrived that day.

    holds_files_only: whether scans were found, and none of DICOM. Options of a config file, which
    may be meant for other folders, get no note.
    """
    declared = declared_of(context.command) if holds_files_only else {}
    unused: list[str] = []
    for name in (name for name, option in declared.items() if option.rules.of_series):
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            unused.append(option_name(declared[name].shown.name or name))
    if unused:
        words = "the inputs contain no DICOM series; these options had no effect"
        print_sentences([f"note: {words}: {', '.join(unused)}"], sys.stderr)
