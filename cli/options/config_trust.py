"""Options that a config file in a folder may set.

A folder may come from anyone: unpacked, cloned, on a shared disk. Its config file may only change
how scans are translated and what is printed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...pipelines.errors import ConfigError
from ...pipelines.option import Effect


def check_harmless(
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
