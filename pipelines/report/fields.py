"""Fields of a JSON object, each of the type that is asked for, or an error that names the field."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from ..errors import ReportFileError

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
Word = TypeVar("Word", bound=str)

_SMALLEST, _LARGEST = 1e-9, 1e15
"""No time, count or size is beyond them; what is would break plots and quotients."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of the file. place: where it stands in there, with a dot behind it."""

    file: Path
    content: dict[str, Json]
    place: str = ""

    def text(self, name: str) -> str:
        """Text of any letters."""
        return cast("str", self._of((str,), name, "text"))

    def text_or_none(self, name: str) -> str | None:
        """Text, or None where the file has null or no such field."""
        return None if self.content.get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        found = cast("list[Json]", self._of((list,), name, "a list"))
        if not all(isinstance(item, str) for item in found):
            raise self._wrong(name, "is not a list of texts")
        return tuple(cast("list[str]", found))

    def word(self, name: str, known: tuple[Word, ...]) -> Word:
        """One of the words that this version knows."""
        found = self.text(name)
        for word in known:
            if word == found:
                return word
        raise self._wrong(name, f"is none of {', '.join(known)}")

    def word_or_none(self, name: str, known: tuple[Word, ...]) -> Word | None:
        """As `word`, or None where the file has null or no such field."""
        return None if self.content.get(name) is None else self.word(name, known)

    def flag(self, name: str) -> bool:
        """True or false; false where the file has no such field."""
        return name in self.content and bool(self._of((bool,), name, "true or false"))

    def number(self, name: str) -> float:
        """A number that is not negative; what is too small to be measured is 0."""
        found = cast("float", self._of((int, float), name, "a number"))
        if not 0 <= found <= _LARGEST:
            raise self._wrong(name, f"is not a number from 0 to {_LARGEST:g}")
        return 0.0 if found < _SMALLEST else float(found)

    def number_or_none(self, name: str) -> float | None:
        """As `number`, or None where the file has null or no such field."""
        return None if self.content.get(name) is None else self.number(name)

    def whole(self, name: str) -> int:
        """A whole number that is not negative."""
        found = cast("int", self._of((int,), name, "a whole number"))
        if not 0 <= found <= _LARGEST:
            raise self._wrong(name, f"is not a number from 0 to {_LARGEST:g}")
        return found

    def whole_or_none(self, name: str) -> int | None:
        """As `whole`, or None where the file has null or no such field."""
        return None if self.content.get(name) is None else self.whole(name)

    def inner(self, name: str) -> "Fields":
        """An object within this one."""
        found = cast("dict[str, Json]", self._of((dict,), name, "an object"))
        return Fields(self.file, found, f"{self.place}{name}.")

    def inner_or_none(self, name: str) -> "Fields | None":
        """An object, or None where the file has null or no such field."""
        return None if self.content.get(name) is None else self.inner(name)

    def each(self, name: str) -> "Iterator[Fields]":
        """The objects of a list."""
        for index, item in enumerate(cast("list[Json]", self._of((list,), name, "a list"))):
            place = f"{self.place}{name}[{index}]"
            if not isinstance(item, dict):
                raise ReportFileError(_sentence(self.file, place, "is not an object"))
            yield Fields(self.file, item, f"{place}.")

    def pair(self, name: str) -> tuple[float, float]:
        """Two numbers, the second not below the first."""
        found = cast("list[Json]", self._of((list,), name, "a list"))
        numbers = [item for item in found if type(item) in (int, float)]
        match cast("list[float]", numbers):
            case [first, second] if len(found) == 2 and 0 <= first <= second <= _LARGEST:
                return float(first), float(second)
            case _:
                raise self._wrong(name, "is not a start and an end")

    def wholes(self, name: str, count: int) -> tuple[int, ...]:
        """So many whole numbers."""
        found = cast("list[Json]", self._of((list,), name, "a list"))
        if len(found) != count or not all(
            type(item) is int and 0 < item <= _LARGEST for item in found
        ):
            raise self._wrong(name, f"is not {count} whole numbers")
        return tuple(cast("list[int]", found))

    def _of(self, kinds: tuple[type, ...], name: str, words: str) -> Json:
        if name not in self.content:
            raise self._wrong(name, "is missing")
        if type(self.content[name]) not in kinds:
            raise self._wrong(name, f"is not {words}")
        return self.content[name]

    def _wrong(self, name: str, trouble: str) -> ReportFileError:
        return ReportFileError(_sentence(self.file, self.place + name, trouble))


def read_fields(file: Path) -> Fields:
    """A JSON file's outermost object. Raises ReportFileError."""
    try:
        content: Any = json.loads(file.read_bytes(), parse_constant=_refused)
    except OSError as error:
        raise ReportFileError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ReportFileError(
            f"{file} is not JSON; name a file that 'translate setting report' wrote."
        ) from error
    if not isinstance(content, dict):
        raise ReportFileError(
            f"{file} holds no JSON object; name a file that 'translate setting report' wrote."
        )
    return Fields(file, cast("dict[str, Json]", content))


def _refused(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


def _sentence(file: Path, place: str, trouble: str) -> str:
    return f"{file} is damaged: its field {place} {trouble}; write the report again."
