"""Declarations of options: what the command line, config files, routes of a node, stored jobs and
fingerprints need to know of each. Imports nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from enum import StrEnum
from types import NoneType
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin

Panel: TypeAlias = Literal["Input", "Result", "Speed", "DICOM", "Queue", "Reports", ""]
"""Section of a command's help; "" is the last one, for all other options."""


class Effect(StrEnum):
    """What a config file that came with a folder could do with an option, and so may not."""

    HARMLESS = ""
    WRITES = "decides which files are written or replaced"
    REDIRECTS = "decides whose jobs are done, and who gets them"
    ROUTES = "decides who may send scans, and where results go"
    LOADS_CODE = "decides which code is loaded"
    OPENS = "decides who can reach this machine, and what of it they may take"
    UNCHECKS = "decides whether synthetic images and scans of another contrast are translated"
    RELEASES = "decides whether studies that lack images are translated"
    WIDENS_PRIVACY = "decides which data of patients is read, shown or kept"


ALWAYS: Final = None
"""`since` of a setting that was there from the first version on."""

_SETTING: Final = "setting"
_AT_THE_END: Final = 50


@dataclass(frozen=True, slots=True)
class Option:
    """How a user sets a value: on the command line, and by the same name in a config file.

    help: one sentence, which calls other options "setting name". panel: section of the help.
    effect: what a stranger's config file could do with it, and so may not; HARMLESS if nothing.
    name: with dashes; "" takes the name of the field or parameter. also: other names on the command
    line, as far as a command has no option of that name. short: its letter. off: name of the flag
    that turns it off. metavar: stands for the value in the help. least, most: bounds of a number.
    words: what a shell completes. is_rare: few people need it; it comes last in its panel. line:
    its place among the rare or the other options of its panel, which is the end unless stated.
    of_route: a DICOM route of the node may have it. of_series: it concerns DICOM series only.
    """

    help: str
    panel: Panel
    effect: Effect
    name: str = ""
    also: tuple[str, ...] = ()
    short: str = ""
    off: str = ""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()
    is_rare: bool = False
    line: int = _AT_THE_END
    of_route: bool = False
    of_series: bool = False


@dataclass(frozen=True, slots=True)
class SettingRules:
    """What is known of a field of a record of settings.

    options: by which a user sets it; none if another field's option does. since: version of the
    first worker that heeds it, 0 if jobs always name it; ALWAYS for the oldest. before: what was
    done before it came; None if that is the default. changes_result: it is part of the fingerprint
    and of reports. of_tiles: it means nothing if volumes are translated at once. of_one_volume: its
    figures and maps are of one volume.
    """

    options: tuple[Option, ...]
    since: int | None
    before: object = None
    changes_result: bool = False
    of_tiles: bool = False
    of_one_volume: bool = False


def setting(
    *options: Option,
    since: int | None,
    before: object = None,
    changes_result: bool = False,
    of_tiles: bool = False,
    of_one_volume: bool = False,
) -> Mapping[str, SettingRules]:
    """Metadata of a field of a record of settings; the arguments as in SettingRules."""
    known = SettingRules(options, since, before, changes_result, of_tiles, of_one_volume)
    return {_SETTING: known}


def settings_in(record: Any) -> Iterator[tuple[Field[Any], SettingRules]]:
    """The fields of a record of settings, with what is known of each."""
    for one in fields(record):
        yield one, one.metadata[_SETTING]


def options_in(record: Any) -> Iterator[tuple[str, Option]]:
    """The options of a record of settings, each with its name and after the field that it sets."""
    for one, known in settings_in(record):
        for option in known.options:
            yield one.name, replace(option, name=option.name or one.name.replace("_", "-"))


def words_of(kind: Any) -> tuple[str | None, ...]:
    """The words of a Literal, and None if the type has it besides; () for all other types."""
    members = get_args(kind)
    if get_origin(kind) is Literal:
        return members
    words = [word for member in members for word in words_of(member)]
    return (None, *words) if words and NoneType in members else ()
