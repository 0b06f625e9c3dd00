"""Routes of a node from `[route.TITLE]` tables: options of `submit` and of routes alone."""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperGroup

from ...pipelines.errors import ConfigError, SettingsError
from .config import ROUTES, ConfigValues, options_of
from .queue import scheduling_of
from .spelling import declared_of, filled
from .study import StudyOptions
from .tokens import token_keys, token_source
from .values import parsed_duration, parsed_size, wrong_value

if TYPE_CHECKING:
    from ...pipelines.node.routes import Route, Source

_TIMES = ("quiet", "hold", "retry", "keep", "keep-failed")
_LARGEST, _LONGEST = "source-object-limit", "source-list-limit"
_SOURCE = ("source", "source-query", *token_keys("source"), "poll", _LARGEST, _LONGEST)
_OWN = (
    *("callers", "destination", *token_keys("destination"), "commitment", "tls", "batch-name"),
    *("reject-superseded", *_SOURCE, *_TIMES),
)


def routes_of(context: typer.Context, named: Path | None) -> "dict[str, Route]":
    """Return the routes of the config files that count, by AE title. Raises ConfigError."""
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
            "No config file defines a route for received scans; add a table such as "
            "[route.T1TOCT] to a config file, and give that with setting config."
        )
    return found


def _route(context: typer.Context, place: str, title: str, keys: Any) -> "Route":
    from ...pipelines.jobs.queue.batch_name import BatchPattern
    from ...pipelines.node.routes import (
        Caller,
        Route,
        check_modalities,
        checked_title,
        parse_destination,
    )

    if not isinstance(keys, dict):
        raise ConfigError(f"{place}must be a table.")
    asked = cast("dict[str, Any]", keys)
    submit = cast("TyperGroup", context.find_root().command).commands["submit"]
    declared = declared_of(submit)
    options = {
        key: option
        for key, option in options_of(submit).items()
        if (known := declared.get(str(option.name))) and known.rules.of_route
    }
    _check_keys(place, asked, {*options, *_OWN})
    source = ConfigValues(context, place)
    values = {
        str(option.name): source.taken(key, option, asked[key])
        for key, option in options.items()
        if key in asked
    }
    values["model"] = Path(values["model"])  # typer makes it only for the function that it calls
    callers = asked.get("callers", [])
    if not isinstance(callers, list) or not all(
        isinstance(one, str) for one in cast("list[Any]", callers)
    ):
        raise ConfigError(f"{place}callers must be a list such as ['SCANNER1@10.0.0.5'].")
    try:
        study = filled(StudyOptions, {**values, "output": Path()})
        request = study.request((), links="none")
        check_modalities(request.filters.modalities)
        return Route(
            title=checked_title(title),
            request=request,
            scheduling=scheduling_of(values.get("priority", "normal"), values.get("window")),
            callers=tuple(Caller.parse(one) for one in cast("list[str]", callers)),
            destination=parse_destination(
                str(asked["destination"]), token_source(asked, "destination")
            ),
            source=_source(asked),
            commitment=_commitment(asked),
            rejects_superseded=_flag(asked, "reject-superseded"),
            uses_tls=_flag(asked, "tls"),
            batch=BatchPattern.parse(str(asked.get("batch-name", ""))),
            **{key.replace("-", "_"): _seconds(key, asked[key]) for key in _TIMES if key in asked},
        )
    except typer.BadParameter as error:
        raise ConfigError(f"{place}{error.param_hint or 'it'}: {error.message}") from error
    except (ConfigError, SettingsError) as error:
        raise ConfigError(f"{place}{error}") from error


def _check_keys(place: str, asked: Mapping[str, Any], known: Set[str]) -> None:
    for key in asked:
        if key not in known:
            raise ConfigError(f"{place}{key} is not known; known are {', '.join(sorted(known))}.")
    for key in ("model", *(() if "source" in asked else ("callers",)), "destination"):
        if key not in asked:
            raise ConfigError(f"{place}{key} is missing.")
    for key in _SOURCE:
        if key in asked and "source" not in asked:
            raise ConfigError(f"{place}{key} is for a route with a source.")


def _source(asked: Mapping[str, Any]) -> "Source | None":
    from ...pipelines.node.routes import Source, parse_filters, parse_source, web_limits

    if "source" not in asked:
        return None
    largest = str(asked[_LARGEST]) if _LARGEST in asked else None
    token = token_source(asked, "source")
    peer = parse_source(str(asked["source"]), token, has_largest=largest is not None)
    return Source(
        peer,
        parse_filters(str(asked.get("source-query", "")), peer),
        _seconds("poll", asked.get("poll", "30 s")),
        web_limits(parsed_size(_LARGEST, largest), _count(asked, _LONGEST)),
        uses_tls=_flag(asked, "tls"),
    )


def _commitment(asked: Mapping[str, Any]) -> float | None:
    if "commitment" not in asked:
        return None
    if "://" in str(asked["destination"]):
        raise ConfigError(
            "commitment is for a destination TITLE@HOST:PORT; DICOMweb has no storage commitment."
        )
    return _seconds("commitment", asked["commitment"])


def _count(asked: Mapping[str, Any], key: str) -> int | None:
    value = asked.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"{key} must be a whole number from 1 on.")
    return value


def _flag(asked: Mapping[str, Any], key: str) -> bool:
    value = asked.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false.")
    return value


def _seconds(key: str, value: Any) -> float:
    try:
        return parsed_duration(str(value))
    except typer.BadParameter as error:
        raise wrong_value(key, error.message) from None
