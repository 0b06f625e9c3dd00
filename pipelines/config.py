"""Where `cuda-cyclegan.toml` is looked for, and what it says."""

import os
import stat
import tomllib
from pathlib import Path
from typing import Any, TypeAlias

from .errors import ConfigError

NAME = "cuda-cyclegan.toml"

Tables: TypeAlias = dict[str, Any]


def config_files(named: Path | None) -> list[Path]:
    """The files that count, later ones over earlier: the user's and the folder's, or the named.

    Raises ConfigError for a named one that is missing, and for one that others could change.
    """
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"There is no config file {named}.")
        return [named]
    found = [path for path in (user_config(), Path(NAME)) if path.is_file()]
    for path in found:
        _check_trusted(path)
    return found


def read_config(path: Path) -> Tables:
    """What a file says. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def user_config() -> Path:
    """The file of this user, there or not."""
    from platformdirs import user_config_path

    return user_config_path("cuda-cyclegan", appauthor=False) / NAME


def _check_trusted(path: Path) -> None:
    """It may name a queue, and with it whose work is done: not what a stranger left in a folder."""
    status = path.stat()
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} belongs to another user or can be changed by all; if you trust it, name it "
            "with --config."
        )
