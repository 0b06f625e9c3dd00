"""Defaults of options from `cuda-cyclegan.toml`.

One table per command, one key per long option: `[worker]` with `until-empty = true`. `[translate]`
also sets the same options of `plan`, `submit` and `watch`, and `queue` at the top sets that of all
commands. The command line takes precedence, then the environment, then the files.

A folder may come from anyone: unpacked, cloned, on a shared disk. The config file in it may only
change how scans are translated and what is printed.
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias, cast

import typer
from typer.core import TyperGroup, TyperOption

from ...pipelines.errors import ConfigError
from ...pipelines.option import Effect
from ..render.terminal import print_sentences
from ..render.text import printable
from .spelling import effects_of

Defaults: TypeAlias = dict[str, Any]

ROUTES = "route"
"""Tables of a node, each named as the AE title that scans are sent to."""

_LIKE_TRANSLATE = ("plan", "submit", "watch")


def config_defaults(context: typer.Context, named: Path | None) -> Defaults:
    """Return the defaults of all commands, as a context takes them. Raises ConfigError.

    The folder's file is named on stderr if the command takes a default from it.
    """
    from ...pipelines.config import config_files, read_config

    root = cast("TyperGroup", context.command)
    defaults: Defaults = {}
    for file in config_files(named):
        tables = read_config(file.path)
        _warn_of_password(file.path, tables)
        _check_names(file.path, root, tables)
        if not file.is_trusted:
            commands = tables.keys() - {"queue", ROUTES}
            effects = {name: effects_in(root.commands[name]) for name in commands}
            _check_harmless(file.path, tables, effects)
            _print_use(context, file.path, tables)
        _take(context, file.path, tables, defaults)
    return defaults


def _warn_of_password(path: Path, tables: Mapping[str, Any]) -> None:
    """Warn if a file that others can read contains a password in a queue's URL."""
    from ...pipelines.config import is_readable_by_others
    from ...pipelines.jobs.queue.location import has_password

    inner = [cast("dict[str, Any]", table) for table in tables.values() if isinstance(table, dict)]
    asked = [table.get("queue") for table in (tables, *inner)]
    queues = [queue for queue in asked if isinstance(queue, str)]
    if any(map(has_password, queues)) and is_readable_by_others(path):
        warning = (
            f"Warning: other users can read {path}, which contains the password of a queue; "
            "remove their permission (chmod go-r) or keep the password in ~/.pgpass."
        )
        print_sentences([printable(warning)], sys.stderr)


def _take(context: typer.Context, path: Path, tables: dict[str, Any], defaults: Defaults) -> None:
    """Override the defaults from earlier files with those of this file."""
    root = cast("TyperGroup", context.command)
    if "queue" in tables:
        _set_for_all(ConfigValues(context, f"{path}: "), root, tables.pop("queue"), defaults)
    tables.pop(ROUTES, None)  # which the node reads itself
    shared = tables.get("translate", {})
    for name in _LIKE_TRANSLATE:
        options = options_of(root.commands[name])
        common = {key: value for key, value in shared.items() if key in options}
        _set(ConfigValues(context, f"{path}: [translate] "), options, common, defaults, name)
    for name, keys in tables.items():
        options = options_of(root.commands[name])
        _set(ConfigValues(context, f"{path}: [{name}] "), options, keys, defaults, name)


def _print_use(context: typer.Context, path: Path, tables: Mapping[str, Any]) -> None:
    asked = context.invoked_subcommand or ""
    sources = ("translate", asked) if asked in _LIKE_TRANSLATE else (asked,)
    options = options_of(cast("TyperGroup", context.command).commands[asked])
    keys: list[str] = [key for table in sources for key in tables.get(table, ())]
    used = [key for key in dict.fromkeys(keys) if key in options]
    if used:
        print_sentences([f"Defaults from ./{path}: {', '.join(used)}"], sys.stderr)


class ConfigValues:
    """Checks of values from one place in a config file, which errors name."""

    def __init__(self, context: typer.Context, place: str) -> None:
        self._context = context
        self._place = place

    def value(self, key: str, option: TyperOption, stated: Any) -> Any:
        """Return a value that the option accepts. Raises ConfigError, which names the key."""
        return self._checked(key, option, stated)[0]

    def taken(self, key: str, option: TyperOption, stated: Any) -> Any:
        """Return the option's parsed value. Raises ConfigError, which names the key."""
        return self._checked(key, option, stated)[1]

    def _checked(self, key: str, option: TyperOption, stated: Any) -> tuple[Any, Any]:
        value = self._as_typed(key, option, stated)
        try:
            taken = option.process_value(self._context, value)
        except typer.BadParameter as error:
            message = error.message.replace("valid float", "valid number").replace(
                "integer range", "whole number"
            )
            raise ConfigError(f"{self._place}{key}: {message}") from error
        return value, taken

    def _as_typed(self, key: str, option: TyperOption, stated: Any) -> Any:
        """Return the value as typed on a command line: neither 1.5 nor true is a whole number."""
        if option.is_flag:
            if not isinstance(stated, bool):
                raise ConfigError(f"{self._place}{key} must be true or false.")
            return stated
        several = isinstance(stated, list)
        words = [str(each) for each in (cast("list[Any]", stated) if several else (stated,))]
        if any("\0" in word for word in words):
            raise ConfigError(f"{self._place}{key} contains a zero byte, which names may not.")
        takes_several = option.multiple or option.nargs > 1
        if several:
            return words if takes_several else ",".join(words)
        if takes_several:
            raise ConfigError(f'{self._place}{key} must be a list: {key} = ["{stated}"].')
        return str(stated)


def named_config(context: typer.Context) -> Path | None:
    """Return the file of --config; typer converts it to a path only for the function it calls."""
    named: str | None = context.find_root().params.get("config")
    return Path(named) if named else None


def _check_names(path: Path, root: TyperGroup, tables: Mapping[str, Any]) -> None:
    known = {name: options_of(command) for name, command in root.commands.items()}
    for name, keys in tables.items():
        if name in ("queue", ROUTES):
            continue
        if not known.get(name) or not isinstance(keys, dict):
            raise ConfigError(
                f"{path}: {name} is not known; known are queue, [route.TITLE] and the tables "
                f"{', '.join(f'[{table}]' for table in sorted(known) if known[table])}."
            )
        for key in cast("dict[str, Any]", keys):
            if key not in known[name]:
                similar = get_close_matches(key, known[name])
                listed = f"known are {', '.join(sorted(known[name]))}."
                raise ConfigError(
                    f"{path}: [{name}] {key} is not known; "
                    f"{f'did you mean {similar[0]}?' if similar else listed}"
                )


def _set(
    source: ConfigValues,
    options: Mapping[str, TyperOption],
    keys: Mapping[str, Any],
    defaults: Defaults,
    command: str,
) -> None:
    for key, value in keys.items():
        option = options[key]
        defaults.setdefault(command, {})[option.name] = source.value(key, option, value)


def _set_for_all(source: ConfigValues, group: TyperGroup, queue: Any, defaults: Defaults) -> None:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            _set_for_all(source, command, queue, defaults.setdefault(name, {}))
        elif "queue" in (options := options_of(command)):
            _set(source, options, {"queue": queue}, defaults, name)


def options_of(command: Any) -> dict[str, TyperOption]:
    """Return a command's options by config key: the first long name without its dashes."""
    return {
        option.opts[0].removeprefix("--"): option
        for option in command.params
        if isinstance(option, TyperOption) and option.name != "help"
    }


def effects_in(command: Any) -> dict[str, Effect]:
    """Return, by config key, the effect of each option of a command in a folder's config file."""
    effects = effects_of(command)
    return {key: effects[str(option.name)] for key, option in options_of(command).items()}


def _check_harmless(
    path: Path, tables: Mapping[str, Any], effects: Mapping[str, Mapping[str, Effect]]
) -> None:
    """Raise ConfigError, which names the key, if a folder's file sets more than it may.

    tables: with known options only. effects: of the options of each table.
    """
    for name, effect in (("queue", Effect.REDIRECTS), ("route", Effect.ROUTES)):
        if name in tables:
            raise _refusal(path, name, effect)
    for table, keys in tables.items():
        for key in keys:
            if effect := effects[table][key]:
                raise _refusal(path, f"[{table}] {key}", effect)


def _refusal(path: Path, key: str, effect: Effect) -> ConfigError:
    from ...pipelines.config import user_config

    return ConfigError(
        f"./{path}: {key} {effect}, which a config file of a folder may not do; set it in "
        f"{user_config()} or give a file that you trust with --config."
    )
