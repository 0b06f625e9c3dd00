"""Declared options on the command line, in config files and in routes."""

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.options.config import options_of
from cuda_cyclegan.cli.options.spelling import declared_of, effects_of, filled, spelled_out
from cuda_cyclegan.cli.options.study import StudyOptions
from cuda_cyclegan.pipelines.option import Effect, Option, Rules, Shown
from cuda_cyclegan.pipelines.settings import OPTIONS

COMMANDS = cast("TyperGroup", get_command(app)).commands
HARMLESS = Rules(Effect.HARMLESS)
SIZE = Option("Of it; see setting patch.", Shown("Speed", also=("name",), least=1), HARMLESS)


@dataclass(frozen=True)
class Group:
    """Some options."""

    size: Annotated[int, SIZE]
    depth: Annotated[int, Option("How deep.", Shown("", short="d", off="flat"), HARMLESS)] = 3


def spelled(command: Any) -> dict[str, Any]:
    """Typer's options by parameter."""
    parameters = inspect.signature(spelled_out(command)).parameters.values()
    return {one.name: get_args(one.annotation)[1] for one in parameters}


def names(option: Any) -> tuple[str, ...]:
    """An option's names; typer takes the first of them for a default until it is asked."""
    return option.default, *option.param_decls


def test_a_group_is_spelled_out_and_handed_on() -> None:
    taken: list[Group] = []

    def command(some: Group) -> None:
        taken.append(some)

    options = spelled(command)
    assert names(options["size"]) == ("--size", "--name")
    assert options["size"].help == "Of it; see --patch."
    assert (options["size"].min, options["size"].rich_help_panel) == (1, "Speed")
    assert names(options["depth"]) == ("--depth/--flat", "-d")
    cast("Any", spelled_out(command))(size=4, depth=5)
    assert taken == [Group(4, 5)]


def test_another_name_goes_to_the_option_that_has_it() -> None:
    def command(some: Group, name: Annotated[str, Option("", Shown(""), HARMLESS)] = "") -> None:
        del some, name

    assert names(spelled(command)["size"]) == ("--size",)


@pytest.mark.parametrize("command", ["translate", "plan", "submit", "watch"])
def test_a_command_on_studies_has_every_option_of_studies(command: str) -> None:
    has = options_of(COMMANDS[command])
    declared = declared_of(COMMANDS[command])
    for name, option in OPTIONS.items():
        assert declared[str(has[name].name)] == option


def test_effects_are_read_from_a_declaration_and_beside_an_option_of_typer() -> None:
    effects = effects_of(COMMANDS["translate"])
    assert effects["overwrite"] is Effect.WRITES
    assert effects["report"] is Effect.WRITES
    assert effects["overlap"] is Effect.HARMLESS


def test_options_that_a_route_may_not_set() -> None:
    submit = declared_of(COMMANDS["submit"])
    assert {name for name, option in submit.items() if not option.rules.of_route} == {
        *("output", "include", "exclude", "overwrite", "format", "preview", "spread", "sidecar"),
        *("result_name", "layout", "bids_suffix", "more", "follow_links"),
    }


def test_options_that_are_not_given_have_their_defaults() -> None:
    asked: Any = {"model": "m", "output": "o", "overlap": 0.5, "other": 1}
    study = filled(StudyOptions, asked)
    assert asked == {"other": 1}
    options = study.options
    assert (options.overlap, options.blend, options.patch) == (0.5, None, None)
