"""Conversion of declared options to typer's, and lookup of a command's declarations."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar

import typer

from ...pipelines.option import Effect, Option
from ..render.text import flagged

Group = TypeVar("Group")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TypedAs:
    """Parameters that are typed for one field of a group, as metadata of that field.

    parameters: of the command, by name. read: conversion of their values to that of the field;
    raises BadParameter.
    """

    parameters: Mapping[str, inspect.Parameter]
    read: Callable[[Mapping[str, Any]], object]


def spelled_out(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer takes it: a parameter that is a group becomes the options of the
    group, and a declared option becomes one of typer's.
    """
    asked = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in asked if is_dataclass(p.annotation)}

    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = filled(group, values)
        command(**values)

    parameters: list[inspect.Parameter] = []
    for one in asked:
        parameters += _parameters(groups[one.name]) if one.name in groups else [one]
    taken = {one.name for one in parameters}
    called.__doc__ = command.__doc__
    signature = inspect.Signature([_spelled(one, taken) for one in parameters])
    setattr(called, "__signature__", signature)  # noqa: B010
    return called


def filled(group: type[Group], values: dict[str, Any]) -> Group:
    """Return a group of options, taking its values out of `values`; missing ones get their default.

    values: by parameter. Raises BadParameter.
    """
    found: dict[str, Any] = {}
    for field in _fields(group):
        if typed := _typed_as(field):
            found[field.name] = typed.read(
                {name: values.pop(name, one.default) for name, one in typed.parameters.items()}
            )
        elif field.name in values:
            found[field.name] = values.pop(field.name)
    return group(**found)


def declared_of(command: Any) -> dict[str, Option]:
    """Return the declared options of a command, by parameter; options of typer's own are not."""
    declared = {name: _first(Option, metadata) for name, metadata in _metadata_of(command)}
    return {name: option for name, option in declared.items() if option}


def effects_of(command: Any) -> dict[str, Effect]:
    """Return the effect of each option of a command, by parameter: the declared one, or the one in
    the metadata of an option of typer's own.
    """
    effects: dict[str, Effect] = {}
    for name, metadata in _metadata_of(command):
        option = _first(Option, metadata)
        effect = option.rules.effect if option else _first(Effect, metadata)
        if effect is not None:
            effects[name] = effect
    return effects


def _metadata_of(command: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for one in inspect.signature(command.callback).parameters.values():
        yield one.name, getattr(one.annotation, "__metadata__", ())


def _first(kind: type[Found], metadata: Sequence[object]) -> Found | None:
    return next((one for one in metadata if isinstance(one, kind)), None)


def _fields(group: Any) -> tuple[Field[Any], ...]:
    return fields(group)


def _parameters(group: type[Any]) -> Iterator[inspect.Parameter]:
    for field in _fields(group):
        if typed := _typed_as(field):
            yield from typed.parameters.values()
        else:
            yield inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=field.type,
            )


def _typed_as(field: Field[Any]) -> TypedAs | None:
    return _first(TypedAs, getattr(field.type, "__metadata__", ()))


def _spelled(parameter: inspect.Parameter, taken: set[str]) -> inspect.Parameter:
    """Return a parameter with its option as typer's. taken: the command's other parameters."""
    parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    metadata: tuple[Any, ...] = getattr(parameter.annotation, "__metadata__", ())
    option = _first(Option, metadata)
    if option is None:
        return parameter
    parser = next((one for one in metadata if callable(one)), None)
    shown = option.shown
    name = shown.name or parameter.name.replace("_", "-")
    off = f"/--{shown.off}" if shown.off else ""
    short = [f"-{shown.short}"] if shown.short else []
    also = [f"--{other}" for other in shown.also if other not in taken - {parameter.name}]
    spelled = typer.Option(
        *(f"--{name}{off}", *short, *also),
        metavar=shown.metavar,
        min=shown.least,
        max=shown.most,
        help=flagged(option.help),
        parser=parser,
        autocompletion=(lambda: list(shown.words)) if shown.words else None,
        rich_help_panel=shown.panel or None,
    )
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, spelled, option])
