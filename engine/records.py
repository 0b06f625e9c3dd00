"""Frozen dataclasses as JSON values and back, strictly: every refusal names the field."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, cast, get_args, get_origin

from .errors import ModelFileError

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
Kinds: TypeAlias = Mapping[type, str]
"""The word that tells apart the dataclasses that may stand in one field."""

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_TAG = "kind"


def to_json(record: object, kinds: Kinds) -> Json:
    """A dataclass as an object of its fields, tagged with its kind if it has one."""
    if is_dataclass(record):
        values = {item.name: to_json(getattr(record, item.name), kinds) for item in fields(record)}
        kind = kinds.get(type(record))
        return {_TAG: kind, **values} if kind else values
    if isinstance(record, tuple):
        return [to_json(item, kinds) for item in cast("tuple[object, ...]", record)]
    return cast("Json", record)


def from_json(expected: Any, value: Json, kinds: Kinds, path: str) -> Any:
    """The value as the expected type; raises ModelFileError, which names the field at `path`.

    Understands dataclasses, tagged unions of them, optional values, literals, tuples, str, bool,
    int and float.
    """
    origin = get_origin(expected)
    if origin is Literal:
        choices = get_args(expected)
        if value not in choices:
            raise refusal(path, f"must be one of {', '.join(choices)}, not {_shown(value)}")
        return value
    if origin is tuple:
        return _tuple(get_args(expected), value, kinds, path)
    if isinstance(expected, UnionType):
        return _union(get_args(expected), value, kinds, path)
    if is_dataclass(expected):
        return _record(cast("type", expected), value, kinds, path)
    return _scalar(expected, value, path)


def refusal(path: str, reason: str) -> ModelFileError:
    """The error of one field of the card."""
    return ModelFileError(f"The model card's field {path!r} {reason}.")


def _scalar(expected: type, value: Json, path: str) -> Json:
    kind = type(value)
    if expected is float and kind is int:
        value = _as_float(cast("int", value), path)
    elif kind is not expected:
        raise refusal(path, f"must be {_WORDS[expected]}, not {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise refusal(path, "must be a finite number")
    if isinstance(value, str) and not value.isprintable():
        raise refusal(path, "must not hold control characters or line breaks")
    return value


def _as_float(value: int, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise refusal(path, "must be a finite number") from None


def _tuple(members: Sequence[Any], value: Json, kinds: Kinds, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise refusal(path, f"must be a list, not {_shown(value)}")
    if members[-1] is Ellipsis:
        members = [members[0]] * len(value)
    if len(members) != len(value):
        raise refusal(path, f"must have {len(members)} entries, not {len(value)}")
    return tuple(
        from_json(member, item, kinds, f"{path}[{index}]")
        for index, (member, item) in enumerate(zip(members, value, strict=True))
    )


def _union(members: Sequence[Any], value: Json, kinds: Kinds, path: str) -> Any:
    if value is None and NoneType in members:
        return None
    members = [member for member in members if member is not NoneType]
    if len(members) == 1:
        return from_json(members[0], value, kinds, path)
    if not isinstance(value, dict):
        raise refusal(path, f"must be an object with a {_TAG!r}, not {_shown(value)}")
    by_kind = {kinds[member]: member for member in members}
    kind = value.get(_TAG)
    if not isinstance(kind, str) or kind not in by_kind:
        raise refusal(f"{path}.{_TAG}", f"must be one of {', '.join(by_kind)}, not {_shown(kind)}")
    return _record(by_kind[kind], value, kinds, path, (_TAG,))


def _record(
    expected: type, value: Json, kinds: Kinds, path: str, tags: tuple[str, ...] = ()
) -> Any:
    if not isinstance(value, dict):
        raise refusal(path or "(whole card)", f"must be an object, not {_shown(value)}")
    prefix = f"{path}." if path else ""
    known = {item.name: item.type for item in fields(expected)}
    for name in value:
        if name not in known and name not in tags:
            raise refusal(prefix + _clipped(name), "is not known to this version")
    for name in known:
        if name not in value:
            raise refusal(prefix + name, "is missing")
    read = {name: from_json(known[name], value[name], kinds, prefix + name) for name in known}
    return expected(**read)


def _shown(value: Json) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return "null" if value is None else _clipped(repr(value))


def _clipped(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
