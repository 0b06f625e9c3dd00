"""Text of names, numbers, bars and settings in a terminal."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from functools import cache


def printable(text: str) -> str:
    """Return a text on one line; control characters and undecodable bytes of names are escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def printable_lines(text: str) -> str:
    """Escape as `printable`, but keep lines; for tracebacks, which quote names too."""
    return "\n".join(map(printable, text.splitlines()))


def from_here(text: str) -> str:
    """Return a message in which paths below the current folder are relative to it."""
    try:
        folder = os.getcwd()  # noqa: PTH109
    except OSError:  # it was removed
        return text
    if folder == os.sep:
        return text
    return re.sub(rf"(?<![^\s(\"'=]){re.escape(folder)}{re.escape(os.sep)}(?=\S)", "", text)


def date_and_minute(iso: str) -> str:
    """Format a stored time: 2026-11-27 08:29 UTC."""
    try:
        return f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M %Z}".strip()
    except ValueError:
        return iso


def digits(value: float) -> str:
    """Format with three digits or more: 0.12, 1.23, 12.3, 123."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def seconds(value: float) -> str:
    """Format a time without its unit, as `digits`."""
    return digits(value)


def duration(value: float) -> str:
    """Format a time in hours, minutes and seconds."""
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def scaled(value: float) -> str:
    """Format a count with an SI prefix: 950, 45.6k, 1.23M, 4.56T."""
    if value < 999.5:
        return f"{value:.0f}"
    for letter in "kMG":
        value /= 1000
        if value < 999.5:
            return f"{digits(value)}{letter}"
    return f"{digits(value / 1000)}T"


def memory(value: int) -> str:
    """Return bytes in MiB, in GiB from 1000 MiB on, and in KiB below 1 MiB."""
    mebibytes = value / 2**20
    if 0 < mebibytes < 1:
        return f"{mebibytes * 1024:.0f} KiB"
    return f"{mebibytes:.0f} MiB" if mebibytes < 999.5 else f"{digits(mebibytes / 1024)} GiB"


def file_size(value: int) -> str:
    """Return bytes of a file: 950 B, 45.6 kB, 1.23 MB."""
    return quantity(value, "B")


def quantity(value: float, unit: str) -> str:
    """Format a number with unit and SI prefix: 950 B/s, 1.23 TB/s."""
    number = scaled(value)
    return f"{number} {unit}" if number[-1].isdigit() else f"{number[:-1]} {number[-1]}{unit}"


def percent(share: float) -> str:
    """Format a share in whole percents: 87 %."""
    return f"{share * 100:.0f} %"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 study, 2 studies."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


_FULL, _EIGHTHS = "\N{FULL BLOCK}", " ▏▎▍▌▋▊▉"


def bar(share: float, width: int) -> str:
    """Draw a bar of up to `width` columns, to an eighth of one."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return _FULL * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


_OF_COMMANDS = (
    *("activation", "address", "any-truth", "audit", "audit-syslog", "axes", "block-padding"),
    *("channel", "code", "compare-inference", "concat", "config", "data-range", "device"),
    *("direction", "end", "epsilon", "exclude", "folder", "folds", "force", "generator"),
    *("grid-window", "inbox-limit", "include", "input-range", "intensity-in", "intensity-out"),
    *("licence", "metrics"),
    *("modality", "name", "norm", "norm-statistics", "on-failure", "output", "output-range"),
    *("padding", "pairs", "port", "queue", "reader", "reference", "reference-scan", "report"),
    *("residual", "scheduler", "series", "shard", "small-volume-padding", "source", "spacing"),
    *("target", "tiling", "tls-certificate", "tls-key", "tls-trusted", "unproven", "upsampling"),
    *("verbose", "vram-limit", "yield-to-others"),
)
"""Options of single commands, searches and devices that messages from lower layers name."""


@cache
def known_settings() -> frozenset[str]:
    """Return the options that messages of the engine and the pipelines name, as "setting NAME" or
    "setting NAME=VALUE"; these layers are independent of the spelling on a command line.
    """
    from ...pipelines.settings import OPTIONS

    return frozenset((*OPTIONS, *_OF_COMMANDS))


_SETTING = re.compile(
    r"""(?:(?<=[\s(])[Ss]|^S)               # not in a path, and no name that begins a message
    etting[ ]([a-z][a-z-]*[a-z])(?:=([\w:.,-]*\w))?
    (?=[.,:;)'"]*(?:\s|$))                  # not in a path, and no name with a suffix
    """,
    re.VERBOSE,
)


def flagged(text: str, fields: Collection[str] = ()) -> str:
    """Return a message with settings as options of the command line.

    fields: those that the message names, as fields of the Python API; unknown if there are none.
    """

    def flag(name: str, value: str | None) -> str:
        return f"{option(name)} {value or ''}".rstrip()

    return _spelled(text, flag, fields)


def as_config_keys(text: str) -> str:
    """Return a message with settings as keys of a config file, for what is configured there."""
    return _spelled(text, lambda name, value: f"{name} = {value}" if value else name)


def _spelled(
    text: str, spelling: Callable[[str, str | None], str], fields: Collection[str] = ()
) -> str:
    from ...pipelines.settings import FIELDS

    def spelled(found: re.Match[str]) -> str:
        name = found[1]
        field = FIELDS.get(name, name.replace("-", "_"))
        is_meant = name in known_settings() and (not fields or field in fields)
        return spelling(name, found[2]) if is_meant else found[0]

    return _SETTING.sub(spelled, text)


def option(setting: str) -> str:
    """Return the command line's spelling of a setting, or of the field that holds it."""
    return "--" + setting.replace("_", "-")


MOST_ALIKE = 3
"""Maximum number of names with the same words that are listed one per line."""


def alike_lines(
    kind: str, pairs: Iterable[tuple[str, str]], what: str = "studies"
) -> Iterator[str]:
    """Return `KIND: NAME: WORDS` for each pair, in the order in which the words first occur.

    what: kind of the named things.
    """
    alike: dict[str, list[str]] = {}
    for name, words in pairs:
        alike.setdefault(words, []).append(name)
    for words, names in alike.items():
        if len(names) > MOST_ALIKE:
            names[:] = [f"{len(names)} {what}, {names[0]} to {names[-1]}"]
        yield from (f"{kind}: {name}: {words}" for name in names)
