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


def path_of(name: str, given: object) -> Path:
    """Return a path from text or a path. Raises SettingsError."""
    if not isinstance(given, str | PathLike):
        raise _wrong(name, "a path", given)
    return Path(cast("AnyPath", given))


def paths_of(name: str, given: object) -> tuple[Path, ...]:
    """Return the paths from one path or several. Raises SettingsError."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | PathLike):
        return tuple(path_of(name, each) for each in cast("Iterable[object]", given))
    return (path_of(name, given),)


def model_of(given: object) -> Model:
    """Return a model, loaded if a path is passed. Raises SettingsError or ModelFileError."""
    return given if isinstance(given, Model) else load_model(path_of("model", given))


def typed(name: str, kind: type[Record], given: object) -> Record:
    """Return a value converted to its type: lists to tuples, NumPy's numbers to Python's.

    Raises SettingsError.
    """
    plain = _plain(name, given)
    try:
        return decode(kind, plain)
    except FieldError as error:
        where = ".".join(filter(None, (name, error.path)))
        raise SettingsError(f"Argument {where} {error.reason}.", where) from None


def _plain(name: str, given: object) -> object:
    try:
        return encode(given)
    except NotImplementedError:
        raise _wrong(name, "plain values", given) from None


def record(name: str, kind: type[Record], given: object) -> Record:
    """Return a record of settings with checked field types. Raises SettingsError."""
    if not isinstance(given, kind):
        raise _wrong(name, f"a {kind.__name__}", given)
    of_record: Any = given
    for item in fields(of_record):  # by itself, as no error of `encode` names its field
        _plain(f"{name}.{item.name}".lstrip("."), getattr(given, item.name))
    return typed(name, kind, given)


def options_of(given: TranslateOptions) -> TranslateOptions:
    """Return options with checked field types, and the reverse model replaced by its file.

    Raises SettingsError.
    """
    check: Any = given.cycle_check if isinstance(cast("object", given), TranslateOptions) else None
    model = getattr(check, "model", None)
    if isinstance(model, Model):
        named = replace(check, model=path_of("options.cycle_check.model", model.path))
        given = replace(given, cycle_check=replace(named, sha256=model.sha256))
    return record("options", TranslateOptions, given)


def texts_of(name: str, given: object) -> frozenset[str]:
    """Return the texts from one text or several. Raises SettingsError."""
    if isinstance(given, str):
        return frozenset({given})
    several = [*cast("Iterable[object]", given)] if isinstance(given, Iterable) else given
    return typed(name, frozenset[str], several)


def mapping_of(name: str, given: object) -> dict[str, str]:
    """Return a mapping of texts to texts. Raises SettingsError."""
    plain = {**cast("Mapping[str, object]", given)} if isinstance(given, Mapping) else given
    return typed(name, dict[str, str], plain)


def listener(given: object) -> Listen:
    """Return the callback for events. Raises SettingsError."""
    if not callable(given):
        raise _wrong("on_event", "a function of one event", given)
    return cast("Listen", given)


def _wrong(name: str, wanted: str, given: object) -> SettingsError:
    return SettingsError(f"Argument {name} must be {wanted}, not {type(given).__name__}.", name)
