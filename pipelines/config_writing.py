"""Puts keys into a config file that people write, and leaves all else of it as it is."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ..io.atomic import whole_file
from .config import read_config
from .errors import ConfigError


def write_defaults(path: Path, table: str, values: Mapping[str, str | int]) -> None:
    """Set keys of one table. Raises ConfigError if the file's text does not allow it, WriteError.

    A file, its folder and the table are made where they are missing.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    wanted = read_config(path) if text else {}
    wanted[table] = {**wanted.get(table, {}), **values}
    written = _with_keys(text, table, [f"{k} = {json.dumps(v)}" for k, v in values.items()])
    if not _says(written, wanted):
        keys = ", ".join(f"{k} = {json.dumps(v)}" for k, v in values.items())
        raise ConfigError(f"{path} is written in a way that only you can add to: [{table}] {keys}.")
    with whole_file(path) as part:
        part.write_text(written, encoding="utf-8")


def _with_keys(text: str, table: str, settings: list[str]) -> str:
    """The text with lines for the table's keys, those that it had left out."""
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


def _says(text: str, wanted: Mapping[str, object]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
