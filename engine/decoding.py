"""Conversion of records to plain values and back: errors name the field and its required value."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import inspect

Scalar: TypeAlias = str | int | float | bool | None
Json: TypeAlias = Scalar | Sequence["Json"] | dict[str, "Json"]
Record = TypeVar("Record")

_WORDS = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_MESSAGE = re.compile(r"(?P<reason>.*?)(?: - at `(?:key` in `)?\$\.?(?P<path>.*)`)?", re.DOTALL)
_LONGEST_PATH = 80  # in a message; names in a damaged file may be of any length
_FORMS: dict[Any, Any] = {tuple: tuple, UnionType: Union}
_ABOUT_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)


class Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of alternative records of one field, distinguished by `kind` in the file."""


class FieldError(ValueError):
    """A value that does not fit its record.

    path: of the field, such as "studies[0].name"; empty for the value as a whole. reason: predicate
    of the message, such as "must be text, not null".
    """

    def __init__(self, path: str, reason: str) -> None:
        path = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
        super().__init__(f"its field {path!r} {reason}" if path else f"it {reason}")
        self.path, self.reason = path, reason


def parse(text: str | bytes, *, finite: bool = False) -> Json:
    """Parse JSON to plain values; raises FieldError for other text, and for a repeated key.

    finite: reject NaN and Infinity too, which Python writes although JSON does not define them.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_once, parse_constant=_refused if finite else None
        )
    except RecursionError as error:
        raise FieldError("", "is not valid JSON: it is nested too deeply") from error
    except ValueError as error:
        raise FieldError("", f"is not valid JSON: {error}") from error


def decode(kind: type[Record], value: object) -> Record:
    """Convert plain values to a record; raises FieldError. Unknown fields are ignored."""
    try:
        return msgspec.convert(value, kind, dec_hook=_decoded)
    except msgspec.ValidationError as error:
        raise _refusal(kind, str(error)) from None


def decode_known(kind: type[Record], value: object) -> Record:
    """Convert as `decode`, but reject unknown fields, as ignoring them could change the meaning."""
    return msgspec.convert(decode(_exact(kind), value), kind, from_attributes=True)


def encode(value: object) -> Json:
    """Convert records, and what holds them, to plain values."""
    return cast("Json", msgspec.to_builtins(value, enc_hook=_encoded))


def encode_record(record: object) -> dict[str, Any]:
    """Convert a record to plain values, in the order of its fields."""
    return cast("dict[str, Any]", encode(record))


def encode_stated(record: Any) -> dict[str, Any]:
    """Convert a record without fields at their defaults, which older programs may not know."""
    usual = {item.name for item in fields(record) if getattr(record, item.name) == item.default}
    return {name: value for name, value in encode_record(record).items() if name not in usual}


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


@cache
def _exact(kind: Any) -> Any:
    """Return the type with structs for its dataclasses: only structs can reject unknown fields."""
    if isinstance(kind, type) and is_dataclass(kind):
        names = [(item.name, _exact(item.type), _default(item)) for item in fields(kind)]
        return msgspec.defstruct(kind.__name__, names, forbid_unknown_fields=True)
    form = _FORMS.get(get_origin(kind))
    return form[tuple(map(_exact, get_args(kind)))] if form else cast("Any", kind)


def _default(item: Field[Any]) -> Any:
    return msgspec.NODEFAULT if item.default is MISSING else item.default


def _refused(word: str) -> Json:
    raise ValueError(f"{word} is not a number")


def _decoded(kind: type, value: object) -> object:
    if not issubclass(kind, Path):
        raise NotImplementedError
    if not isinstance(value, str):
        raise ValueError("must be text")
    return kind(value)


def _encoded(value: object) -> object:
    match value:
        case Path():
            return str(value)
        case Integral():  # of numpy, as below
            return int(value)
        case Real():
            return float(value)
        case _:
            raise NotImplementedError


def _refusal(kind: object, message: str) -> FieldError:
    """Convert msgspec's message to a path and a reason."""
    found = _MESSAGE.fullmatch(message)
    reason, path = (found["reason"], found["path"] or "") if found else (message, "")
    if about := _ABOUT_FIELD.fullmatch(reason):
        is_missing = about[1].startswith("missing")
        path = f"{path}.{about[2]}".removeprefix(".")
        return FieldError(path, "is missing" if is_missing else "is not known to this version")
    if reason.startswith("Invalid"):
        steps = re.findall(r"\w+|\[\d+\]|\[\.{3}\]", path)
        known = ", ".join(sorted(_literals_at(inspect.type_info(kind), steps)))
        return FieldError(path, f"must be one of {known}")
    if reason == "Number out of range":
        return FieldError(path, "must be a finite number")
    reason = reason.replace(", got `float`", ", not a decimal number")
    reason = reason.replace("Expected", "must be").replace(", got", ", not")
    return FieldError(path, re.sub(r"`(.*?)`", _in_words, reason))


def _in_words(types: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in types[1].split(" | "))


def _literals_at(kind: inspect.Type, steps: Sequence[str]) -> Iterator[str]:
    """Yield the values allowed at a position of a type."""
    match kind:
        case inspect.LiteralType(values=values) if not steps:
            yield from map(str, values)
        case inspect.UnionType(types=members):
            for member in members:
                yield from _literals_at(member, steps)
        case inspect.StructType(tag=str() as tag, tag_field=field) if steps == [field]:
            yield tag
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() if steps:
            for field in kind.fields:
                if field.encode_name == steps[0]:
                    yield from _literals_at(field.type, steps[1:])
        case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner) if steps:
            yield from _literals_at(inner, steps[1:])
        case _:
            pass
