"""Checks of callers' arguments: a value of a wrong type is a SettingsError naming the argument."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from ...engine.decoding import FieldError, decode, encode
from ...engine.model.model_file import Model, load_model
from ...io.conversion import AnyPath
from ..errors import SettingsError
from ..events import Listen
from ..settings import TranslateOptions

Record = TypeVar("Record")


def path_of(name: str, value: object) -> Path:
    """Return a path from text or a path. Raises SettingsError."""
    if not isinstance(value, str | PathLike):
        raise _wrong(name, "a path", value)
    return Path(cast("AnyPath", value))


def paths_of(name: str, value: object) -> tuple[Path, ...]:
    """Return the paths from one path or several. Raises SettingsError."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | PathLike):
        return tuple(path_of(name, each) for each in cast("Iterable[object]", value))
    return (path_of(name, value),)


def model_of(value: object) -> Model:
    """Return a model, loaded if a path is passed. Raises SettingsError or ModelFileError."""
    return value if isinstance(value, Model) else load_model(path_of("model", value))


def typed(name: str, kind: type[Record], value: object) -> Record:
    """Return a value converted to its type: lists to tuples, NumPy's numbers to Python's.

    Raises SettingsError.
    """
    plain = _plain(name, value)
    try:
        return decode(kind, plain)
    except FieldError as error:
        where = ".".join(filter(None, (name, error.path)))
        raise SettingsError(f"Argument {where} {error.reason}.", where) from None


def _plain(name: str, value: object) -> object:
    try:
        return encode(value)
    except NotImplementedError:
        raise _wrong(name, "plain values", value) from None


def checked(name: str, kind: type[Record], value: object) -> Record:
    """Return a value of this class. Raises SettingsError for one of another."""
    if not isinstance(value, kind):
        raise _wrong(name, f"a {kind.__name__}", value)
    return value


def record(name: str, kind: type[Record], value: object) -> Record:
    """Return a record of settings with checked field types. Raises SettingsError."""
    of_record: Any = checked(name, kind, value)
    for item in fields(of_record):  # by itself, as no error of `encode` names its field
        _plain(f"{name}.{item.name}".lstrip("."), getattr(value, item.name))
    return typed(name, kind, value)


def options_of(value: TranslateOptions) -> TranslateOptions:
    """Return options with checked field types, and the reverse model replaced by its file.

    Raises SettingsError.
    """
    check: Any = value.cycle_check if isinstance(cast("object", value), TranslateOptions) else None
    model = getattr(check, "model", None)
    if isinstance(model, Model):
        named = replace(check, model=path_of("options.cycle_check.model", model.path))
        value = replace(value, cycle_check=replace(named, sha256=model.sha256))
    return record("options", TranslateOptions, value)


def texts_of(name: str, value: object) -> frozenset[str]:
    """Return the texts from one text or several. Raises SettingsError."""
    if isinstance(value, str):
        return frozenset({value})
    several = [*cast("Iterable[object]", value)] if isinstance(value, Iterable) else value
    return typed(name, frozenset[str], several)


def mapping_of(name: str, value: object) -> dict[str, str]:
    """Return a mapping of texts to texts. Raises SettingsError."""
    plain = {**cast("Mapping[str, object]", value)} if isinstance(value, Mapping) else value
    return typed(name, dict[str, str], plain)


def listener(value: object) -> Listen:
    """Return the callback for events. Raises SettingsError."""
    if not callable(value):
        raise _wrong("on_event", "a function of one event", value)
    return cast("Listen", value)


def _wrong(name: str, wanted: str, value: object) -> SettingsError:
    return SettingsError(f"Argument {name} must be {wanted}, not {type(value).__name__}.", name)
