"""Option values that need more than a type."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import typer

from ...engine.options import device_name
from ...io.files.disk import takes_name
from ...io.files.documents import why_not_writable
from ...pipelines.errors import SettingsError
from ...pipelines.settings import MOST_OVERLAP
from ...pipelines.shard import Shard
from ..render.documents import STDOUT, standard_named

_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(MiB|GiB|MB|GB)")
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(s|min|h|d)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_FORM = "such as '90 s' or '10 min'; a number without a unit is in seconds"
"""Part of the help of every option that is a duration."""

_COUNT = re.compile(r"[1-9]\d?")
_VOLUME = re.compile(r"\d{1,9}")
_SUFFIX = re.compile(r"[A-Za-z0-9]+")
_PATCH = re.compile(r"(\d{1,5}),(\d{1,5}),(\d{1,5})")


def wrong_value(option: str, why: str) -> typer.BadParameter:
    """Return the error for a rejected value of an option."""
    return typer.BadParameter(why, param_hint=f"'{option}'")


def checked_device(text: str) -> str:
    """Return the device name that `device_name` parses. Raises BadParameter."""
    try:
        return device_name(text)
    except ValueError as error:
        raise wrong_value("--device", str(error)) from None


def parsed_patch(text: str | None, option: str = "--patch") -> tuple[int, int, int] | None:
    """Return extents D,H,W, each at least 1. Raises BadParameter."""
    if text is None:
        return None
    found = _PATCH.fullmatch(text)
    if found is None or min(extents := tuple(map(int, found.groups()))) < 1:
        raise wrong_value(option, f"{text!r} is not three extents D,H,W such as 128,128,128.")
    depth, height, width = extents
    return depth, height, width


def parsed_overlap(value: float | str) -> float:
    """Parse an overlap such as 0.5 or 50%. Raises BadParameter. value: a number if a default."""
    text = str(value).strip()
    try:
        # "33.3e-2" is exactly the number 0.333, unlike 33.3 / 100.
        share = float(f"{text[:-1].strip()}e-2" if text.endswith("%") else text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= MOST_OVERLAP:
        raise typer.BadParameter(
            f"{text!r} is neither a fraction from 0 to {MOST_OVERLAP:g} such as 0.5 nor a "
            f"percentage from 0% to {MOST_OVERLAP:.0%} such as 50%."
        )
    return share


def parsed_duration(text: str) -> float:
    """Return the seconds of a duration such as 10 min. Raises BadParameter."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration such as '30 s', '10 min', '12 h' or '7 d'."
        )
    return float(found[1]) * _SECONDS[found[2]]


def duration_from(least: float) -> Callable[[float | str], float]:
    """Return the parser of an option that is a duration, at least so many seconds. Its unit may be
    omitted, unlike in a route, where `keep = 30` might be meant in days.
    """

    def parsed(value: float | str) -> float:
        text = str(value)
        try:
            seconds = float(text)
        except ValueError:
            seconds = parsed_duration(text)
        if not least <= seconds < inf:
            raise typer.BadParameter(f"{text!r} is not a duration from {least:g} s on.")
        return seconds

    return parsed


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """A choice among the volumes of a 4-D file: one by its index, or every one."""

    index: int | None = None
    every: bool = False


def parsed_volume(text: str) -> VolumeChoice:
    """Parse --volume. Raises BadParameter."""
    if text == "all":
        return VolumeChoice(every=True)
    if not _VOLUME.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is neither a number from 0 up nor all.")
    return VolumeChoice(int(text))


def parsed_shard(text: str) -> Shard:
    """Parse --shard. Raises BadParameter."""
    try:
        return Shard.parse(text)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error


def parsed_suffixes(text: str) -> tuple[str, ...]:
    """Return suffixes of BIDS, one for each result of a study. Raises BadParameter."""
    suffixes = tuple(text.split(",")) if text else ()
    if wrong := [each for each in suffixes if not _SUFFIX.fullmatch(each)]:
        raise wrong_value("--bids-suffix", f"{wrong[0]!r} is not a suffix such as T2w.")
    return suffixes


def parsed_size(option: str, text: str | None) -> int | None:
    """Return the bytes of a size such as 4GiB or 800 MB. Raises BadParameter."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    if found is None or not (size := int(float(found[1]) * _UNITS[found[2]])):
        raise wrong_value(option, f"{text!r} is not a size such as 4GiB or 800MB.")
    return size


def parsed_batch(text: str) -> int | None:
    """Return the patches of a batch; None for auto. Raises BadParameter."""
    if text == "auto":
        return None
    if not _COUNT.fullmatch(text):
        raise wrong_value("--batch", f"{text!r} is neither auto nor a number from 1 to 99.")
    return int(text)


def checked_output(option: str, path: Path | None) -> Path | None:
    """Return `STDOUT` for a name of standard output, else the path as `checked_file` does."""
    path = standard_named(path)
    return path if path == STDOUT else checked_file(option, path)


def checked_file(option: str, path: Path | None) -> Path | None:
    """Return the path if a document can be written there, in an existing folder."""
    if path and not takes_name(path):
        raise wrong_value(option, f"the name {str(path)!r} is too long for its disk.")
    if path and not path.parent.exists():
        folder = str(path.parent)
        raise wrong_value(option, f"folder {folder!r} does not exist; create it.")
    if path and (path.is_dir() or not path.parent.is_dir()):
        raise wrong_value(option, f"{str(path)!r} is not a file in an existing folder.")
    if path and (reason := why_not_writable(path)):
        raise wrong_value(option, f"{str(path)!r} {reason}.")
    return path
