"""Routes of a node from `[route.TITLE]` tables: options of `submit`, and what only routes have."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperGroup

from ...pipelines.errors import ConfigError
from .config import ROUTES, ConfigValues, options_of
from .queue import scheduling_of
from .study import StudyOptions

if TYPE_CHECKING:
    from ...pipelines.node.routes import Route

_OF_STUDIES = (
    *("model", "overlap", "blend", "precision", "patch", "volume", "modality", "series"),
    *("min-slices", "allow-uneven", "keep-private-tags", "seam-score", "verify"),
    *("any-modality", "any-contrast", "allow-synthetic", "nan-to", "strict-input"),
    *("cycle-check", "cycle-map", "channel", "resample-channels", "inference", "output-type"),
)
_OF_JOBS = ("priority", "window")
_FILES = ("model", "cycle_check")
"""Of which typer makes paths only for the functions that it calls."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(s|min|h|d)")
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIMES = ("quiet", "hold", "retry", "keep", "keep-failed")
_OWN = ("callers", "destination", "tls", *_TIMES)


def routes_of(context: typer.Context, named: Path | None) -> "dict[str, Route]":
    """The routes of the config files that count, by AE title. Raises ConfigError."""
    from ...pipelines.config import config_files, read_config

    found: dict[str, Route] = {}
    for file in config_files(named):
        if not file.is_trusted:
            continue
        tables = read_config(file.path).get(ROUTES, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{file.path}: route must be tables such as [route.T1TOCT].")
        for title, keys in cast("dict[str, Any]", tables).items():
            found[title] = _route(context, f"{file.path}: [route.{title}] ", title, keys)
    if not found:
        raise ConfigError(
            "No config file has a route, which tells what becomes of scans that are sent here; "
            "write a table such as [route.T1TOCT] into one, and name it with setting config."
        )
    return found


def _route(context: typer.Context, place: str, title: str, keys: Any) -> "Route":
    from ...pipelines.node.routes import Caller, Route, checked_title, parse_peer

    if not isinstance(keys, dict):
        raise ConfigError(f"{place}must be a table.")
    asked = cast("dict[str, Any]", keys)
    _check_keys(place, asked)
    values = _values(context, place, asked)
    study = StudyOptions(output=Path(), **{key: values[key] for key in values.keys() - _OF_JOBS})
    callers = asked["callers"]
    if not isinstance(callers, list) or not all(
        isinstance(one, str) for one in cast("list[Any]", callers)
    ):
        raise ConfigError(f"{place}callers must be a list such as ['SCANNER1@10.0.0.5'].")
    try:
        return Route(
            title=checked_title(title),
            request=study.request((), links="none"),
            scheduling=scheduling_of(values.get("priority", "normal"), values.get("window")),
            callers=tuple(Caller.parse(one) for one in cast("list[str]", callers)),
            destination=parse_peer(str(asked["destination"])),
            uses_tls=_flag(asked, "tls"),
            **{key.replace("-", "_"): _seconds(asked[key]) for key in _TIMES if key in asked},
        )
    except typer.BadParameter as error:
        raise ConfigError(f"{place}{error.param_hint or 'it'}: {error.message}") from error
    except ConfigError as error:
        raise ConfigError(f"{place}{error}") from error


def _check_keys(place: str, asked: Mapping[str, Any]) -> None:
    known = {*_OF_STUDIES, *_OF_JOBS, *_OWN}
    for key in asked:
        if key not in known:
            raise ConfigError(f"{place}{key} is not known; there are {', '.join(sorted(known))}.")
    for key in ("model", "callers", "destination"):
        if key not in asked:
            raise ConfigError(f"{place}{key} is missing.")


def _values(context: typer.Context, place: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the options of `submit` take, by the names of their parameters."""
    root = cast("TyperGroup", context.find_root().command)
    options = options_of(root.commands["submit"])
    source = ConfigValues(context, place)
    taken = {
        str(options[key].name): source.taken(key, options[key], asked[key])
        for key in (*_OF_STUDIES, *_OF_JOBS)
        if key in asked
    }
    return {name: Path(value) if name in _FILES else value for name, value in taken.items()}


def _flag(asked: Mapping[str, Any], key: str) -> bool:
    value = asked.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false.")
    return value


def _seconds(value: Any) -> float:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ConfigError(f"{value!r} is no duration such as '30 s', '10 min', '12 h' or '7 d'.")
    return float(found[1]) * _UNITS[found[2]]
