"""`bench --write-config`: what a sweep proposes becomes the default of `translate`."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import typer
from typer.core import TyperGroup

from ..pipelines.bench_sweep import Tried
from ..pipelines.config import user_config
from ..pipelines.config_writing import write_defaults
from .config import options_of

TABLE = "translate"


def write(context: typer.Context, fastest: Tried, vram_limit: str | None) -> str:
    """Write to the file of --config, or else the user's; what was done, in a sentence.

    vram_limit: under which the setting was found. Raises ConfigError or WriteError.
    """
    root = context.find_root()
    named: Path | None = root.params.get("config")
    path = named or user_config()
    known = options_of(cast("TyperGroup", root.command).commands[TABLE])
    keys = {key: value for key, value in _keys(fastest, vram_limit) if key in known}
    write_defaults(path, TABLE, keys)
    listed = ", ".join(f"{key} = {value}" for key, value in keys.items())
    return f"Written to {path}: [{TABLE}] {listed}"


def _keys(fastest: Tried, vram_limit: str | None) -> Iterator[tuple[str, str | int]]:
    setting = fastest.setting
    yield "patch", ",".join(map(str, setting.patch))
    yield "batch", setting.batch
    yield "precision", setting.precision
    if vram_limit:
        yield "vram-limit", vram_limit
