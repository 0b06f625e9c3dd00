"""Arguments and options of a command as plain records."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import typer

from ..options.spelling import declared_of

ParameterKind: TypeAlias = Literal["flag", "whole number", "number", "path", "text"]


@dataclass(frozen=True, slots=True)
class CommandParameter:
    """Argument or option of a command.

    name: as a Python name. flag: long name with its dashes; "" for an argument. kind: type of its
    value. help: its help. metavar: placeholder of its value. default: its value if it is not given,
    or None. words: allowed values, if they are words. least, most: bounds of a number. is_required:
    whether it must be given. is_list: whether it takes several values. panel: section of the help.
    is_rare: whether few users need it.
    """

    name: str
    flag: str
    kind: ParameterKind
    help: str
    metavar: str
    default: Any
    words: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    is_required: bool = False
    is_list: bool = False
    panel: str = ""
    is_rare: bool = False


def parameters_of(command: Any) -> Iterator[CommandParameter]:
    """Yield the arguments and options of a command, without those that print something else
    instead of running it.
    """
    declared = declared_of(command)
    for one in command.get_params(typer.Context(command)):
        if one.is_eager or one.name == "help":
            continue
        is_argument = one.param_type_name == "argument"
        option = declared.get(one.name)
        default = None if callable(one.default) else one.default
        yield CommandParameter(
            name=one.name,
            flag="" if is_argument else one.opts[0],
            kind=_kind(one),
            help=one.help or "",
            metavar=one.metavar or "",
            default=str(default) if isinstance(default, Path) else default,
            words=tuple(getattr(one.type, "choices", ())),
            least=getattr(one.type, "min", None),
            most=getattr(one.type, "max", None),
            is_required=one.required,
            is_list=bool(getattr(one, "multiple", False)) or one.nargs != 1,
            panel=getattr(one, "rich_help_panel", None) or "",
            is_rare=bool(option and option.shown.is_rare),
        )


def _kind(parameter: Any) -> ParameterKind:
    if getattr(parameter, "is_flag", False):
        return "flag"
    kinds: dict[str, ParameterKind] = {"int": "whole number", "float": "number", "path": "path"}
    return kinds.get(parameter.type.name.removesuffix(" range"), "text")
