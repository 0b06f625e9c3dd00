"""Declarations of options, from which the command line, config files, routes of a node, stored jobs
and fingerprints follow. Imports nothing heavy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from math import inf
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from .errors import SettingsError

Value = TypeVar("Value")
Panel: TypeAlias = Literal["Input", "Result", "Speed", "DICOM", "Queue", "Reports", ""]
"""Section of a command's help; "" is the last one, for all other options."""


class Effect(StrEnum):
    """Harm that a config file from a folder could do with an option; such a file may not set it."""

    HARMLESS = ""
    WRITES = "decides which files are written or replaced"
    REDIRECTS = "decides whose jobs are done, and who gets them"
    ROUTES = "decides who may send scans, and where results go"
    LOADS_CODE = "decides which code is loaded"
    OPENS = "decides who can reach this machine, and what of it they may take"
    UNCHECKS = "decides whether synthetic images and scans of another contrast are translated"
    RELEASES = "decides whether studies that lack images are translated"
    WIDENS_PRIVACY = "decides which data of patients is read, shown or kept"


_OPTIONS: Final = "options"
_RULES: Final = "rules"


@dataclass(frozen=True, slots=True)
class Shown:
    """Position of an option in the help of a command, and its spelling.

    panel: section of the help. line: position among the rare or the other options of the section;
    last by default. metavar: placeholder of the value. is_rare: few people need it; it comes last
    in its section. name: name with dashes; "" takes the name of the field or parameter. also: other
    names on the command line, unless a command has an option of that name. short: its letter. off:
    name of the flag that turns it off. least, most: bounds of a number. words: words for
    completion.
    """

    panel: Panel
    line: int = 50
    metavar: str | None = None
    is_rare: bool = False
    name: str = ""
    also: tuple[str, ...] = ()
    short: str = ""
    off: str = ""
    least: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """Allowed sources of an option or setting, and what depends on it.

    effect: harm that a config file in a folder could do with it, and so may not. omitted: it was
    added later, and is not in fingerprints and jobs at its default. before: behaviour before it
    was added; None if that is the default. of_route: a DICOM route of the node may have it.
    of_series: it concerns DICOM series only. changes_result: it is part of the fingerprint and of
    reports. of_patches: it has no effect with whole-volume inference. of_one_volume: its figures
    and maps apply to one volume.
    """

    effect: Effect
    omitted: bool = False
    before: object = None
    of_route: bool = False
    of_series: bool = False
    changes_result: bool = False
    of_patches: bool = False
    of_one_volume: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """Option by which a user sets a value, with the same name on the command line and in config.

    help: one sentence, which calls other options "setting name". shown: its place and spelling.
    rules: where it may come from.
    """

    help: str
    shown: Shown
    rules: Rules


def setting(
    help: str,  # noqa: A002
    shown: Shown,
    rules: Rules,
    *others: Option,
    default: Value,
) -> Value:
    """Return a settings field with its option. others: more options that set the field."""
    return _declared(default, rules, Option(help, shown, rules), *others)


def unoffered(rules: Rules, *, default: Value) -> Value:
    """Return a settings field that has no option of its own."""
    return _declared(default, rules)


def _declared(default: Value, rules: Rules, *options: Option) -> Value:
    return field(default=default, metadata={_RULES: rules, _OPTIONS: options})


def rules_in(record: Any) -> dict[str, Rules]:
    """Return the rules of a record of settings, by field."""
    return {one.name: one.metadata[_RULES] for one in fields(record)}


@cache
def options_in(record: type) -> tuple[tuple[str, Option], ...]:
    """Return the options of a class of settings, each with its name, after the field it sets."""
    return tuple(_named_options(record))


def _named_options(record: Any) -> Iterator[tuple[str, Option]]:
    for one in fields(record):
        for option in one.metadata[_OPTIONS]:
            name = option.shown.name or one.name.replace("_", "-")
            yield one.name, replace(option, shown=replace(option.shown, name=name))


def check_bounds(record: object, declared: type) -> None:
    """Raise SettingsError for a number outside the bounds that its option declares, or NaN there.

    record: of settings. declared: class that declares their options. Values of other types are
    left to the check of types.
    """
    for name, option in options_in(declared):
        shown, value = option.shown, getattr(record, name)
        least = -inf if shown.least is None else shown.least
        most = inf if shown.most is None else shown.most
        if (least, most) == (-inf, inf):
            continue
        for number in cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,)):
            if isinstance(number, int | float) and not least <= number <= most:
                bounds = f"{least:g} to {most:g}" if most < inf else f"at least {least:g}"
                raise SettingsError(
                    f"Setting {shown.name}={number:g} is out of its bounds; use {bounds}.", name
                )
