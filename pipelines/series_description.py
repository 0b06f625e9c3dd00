"""Patterns for the SeriesDescription of DICOM results, such as "sCT {model}"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from .errors import SettingsError
from .name_pattern import parsed_fields

FIELDS = ("model", "source", "target")
"""Fields that a pattern may contain in braces: name and contrasts of the model."""

LONGEST = 64
"""Characters of a SeriesDescription (PS3.5 6.2, VR LO)."""

_MARK = "Synthetic"


@dataclass(frozen=True, slots=True)
class DescriptionPattern:
    """Validated pattern, which begins with the mark of synthetic images.

    parts: literal text, and the field that follows it; "" for none.
    """

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern. Raises ValueError, with the rest of a sentence on the pattern."""
        if not text.isascii() or not text.isprintable() or "\\" in text:
            raise ValueError("may contain only printable ASCII characters without backslash")
        marked = text if text.lower().startswith(_MARK.lower()) else f"{_MARK} {text}"
        parts = parsed_fields(marked.strip(), FIELDS)
        length = sum(len(literal) for literal, _ in parts)
        if length > LONGEST:
            raise ValueError(
                f"has {length} characters with the mark {_MARK}; DICOM allows {LONGEST}"
            )
        return cls(parts)

    @classmethod
    def of_setting(cls, text: str) -> Self:
        """Return the pattern in a setting. Raises SettingsError."""
        try:
            return cls.parse(text)
        except ValueError as error:
            raise SettingsError(
                f"The pattern {text!r} of setting series-description {error}.",
                "series_description",
            ) from None

    def filled(self, words: Mapping[str, str]) -> str:
        """Return the description of a result, in at most LONGEST characters.

        words: values of the fields, of which the longest are shortened if necessary.
        """
        values = {field: words[field] for _, field in self.parts if field}
        while len(text := self._joined(values)) > LONGEST:
            longest = max(values, key=lambda field: len(values[field]))
            values[longest] = values[longest][:-1]
        return text

    def _joined(self, values: Mapping[str, str]) -> str:
        return "".join(literal + values.get(field, "") for literal, field in self.parts)
