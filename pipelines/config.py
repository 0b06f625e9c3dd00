"""Config file `cuda-cyclegan.toml`: its search path, its content, and adding keys to it."""

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..io.files.documents import write_document
from ..io.files.own_files import folder_of_user, is_trusted_owner
from ..io.files.regular import read_regular
from .errors import ConfigError

NAME = "cuda-cyclegan.toml"

Tables: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Config file of defaults.

    path: its path. is_trusted: whether it is the user's own or was named; not the folder's.
    """

    path: Path
    is_trusted: bool


def config_files(named: Path | None) -> list[ConfigFile]:
    """Return the files in effect, later over earlier: the user's and the folder's, or the named.

    Raises ConfigError for a named file that is missing, and for one that others could change.
    """
    if named is not None:
        if not named.exists():
            raise ConfigError(f"There is no config file {named}.")
        return [ConfigFile(named, is_trusted=True)]
    here, found = Path(NAME), _found_of_user()
    if here.exists() and not any(here.samefile(own.path) for own in found):
        found.append(ConfigFile(here, is_trusted=False))
    for file in found:
        _check_unchanged_by_others(file.path)
    return found


def read_config(path: Path) -> Tables:
    """Return the content of a file. Raises ConfigError."""
    import tomllib  # late: most runs have no config file

    try:
        return tomllib.loads(read_regular(path).decode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def user_config() -> Path:
    """Return the path of this user's file. Raises ConfigError for a user without a home."""
    from platformdirs import user_config_path

    folder = folder_of_user(user_config_path)
    if folder is None:
        raise ConfigError(
            "This user has no home folder to keep a config file in; set HOME, or give a file with "
            "setting config."
        )
    return folder / NAME


def _found_of_user() -> list[ConfigFile]:
    try:
        own = user_config()
        return [ConfigFile(own, is_trusted=True)] if own.exists() else []
    except (ConfigError, PermissionError):  # no home, or another user's, as in a container
        return []


def is_readable_by_others(path: Path) -> bool:
    """Return whether the file's permissions let other users read it."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _check_unchanged_by_others(path: Path) -> None:
    """Raise ConfigError for a file that another user could have left in a folder.

    A config file may name a queue, and so decides whose jobs are run.
    """
    status = path.stat()
    if not is_trusted_owner(status) or status.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} belongs to another user or can be changed by all; if you trust it, give it "
            "with setting config."
        )


def write_defaults(path: Path, table: str, values: Mapping[str, str | int]) -> None:
    """Set keys of one table. Raises ConfigError if the file's text does not allow it, WriteError.

    A missing file, folder or table is created.
    """
    text = read_regular(path).decode() if path.exists() else ""
    wanted = read_config(path) if text else {}
    wanted[table] = {**wanted.get(table, {}), **values}
    written = _with_keys(text, table, [f"{k} = {json.dumps(v)}" for k, v in values.items()])
    if not _states(written, wanted):
        keys = ", ".join(f"{k} = {json.dumps(v)}" for k, v in values.items())
        raise ConfigError(f"{path} is written in a way that only you can add to: [{table}] {keys}.")
    write_document(path, written.encode())


def _with_keys(text: str, table: str, settings: list[str]) -> str:
    """Return the text with the new lines for the table's keys in place of the old ones."""
    head = rf"\[\s*{re.escape(table)}\s*\]"
    keys = "|".join(re.escape(setting.split(" = ")[0]) for setting in settings)
    lines: list[str] = []
    inside = found = False
    for line in text.splitlines():
        if re.match(r"\s*\[", line):
            inside = re.match(rf"\s*{head}", line) is not None
        if inside and re.match(rf"\s*({keys})\s*=", line):
            continue
        lines.append(line)
        if inside and not found:
            found = True
            lines += settings
    if not found:
        lines += [*([""] if lines else []), f"[{table}]", *settings]
    return "\n".join([*lines, ""])


def _states(text: str, wanted: Mapping[str, object]) -> bool:
    import tomllib

    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
