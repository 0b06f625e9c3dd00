"""Defaults of options from `cuda-cyclegan.toml`.

A table a command, a key a long option of it: `[worker]` and `until-empty = true`. `[translate]`
also stands for the same options of `submit` and `watch`, and `queue` at the top for those of all
commands. What is typed on the command line comes first, then the environment.
"""

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from ..pipelines.config import config_files, read_config
from ..pipelines.errors import ConfigError

Defaults = dict[str, Any]

_SAME_OPTIONS = ("submit", "watch")


def config_defaults(context: typer.Context, named: Path | None) -> Defaults:
    """The defaults of all commands, as a context takes them. Raises ConfigError."""
    group = context.command
    assert isinstance(group, TyperGroup)  # the program's own root
    defaults: Defaults = {}
    for path in config_files(named):
        _merge(defaults, _of_file(context, group, path))
    return defaults


def _of_file(context: typer.Context, root: TyperGroup, path: Path) -> Defaults:
    tables = read_config(path)
    queue = tables.pop("queue", None)
    defaults: Defaults = {}
    if queue is not None:
        _merge(defaults, _for_all(context, root, queue, path))
    shared = {key: value for key, value in tables.get("translate", {}).items()}
    for name in _SAME_OPTIONS:
        options = _options(root.commands[name])
        _merge(defaults, {name: _values(context, options, _known(shared, options), f"{path}: [translate]")})
    for name, keys in tables.items():
        command = root.commands.get(name)
        if command is None or isinstance(command, TyperGroup) or not isinstance(keys, dict):
            known = ", ".join(sorted(n for n, c in root.commands.items() if not isinstance(c, TyperGroup)))
            raise ConfigError(f"{path}: {name} is not known; there are queue, and tables for {known}.")
        _merge(defaults, {name: _values(context, _options(command), keys, f"{path}: [{name}]")})
    return defaults
