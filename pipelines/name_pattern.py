"""Patterns for the names of results, such as {stem}_{target}synth{ext}."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Self

from .errors import SettingsError

FIELDS = ("stem", "suffix", "source", "target", "model", "channel", "ext")
"""Fields that a pattern may contain in braces.

stem: name of the scan's file without its extension, or of its series. suffix: the last word of that
after an underscore, such as T1w. source, target: contrasts of the model. model: its name. channel:
of a model with several results, which one it is. ext: the result's extension.
"""

_EXTENSION = re.compile(r"\.(nii|hdr|img|nrrd|nhdr|mha|mhd|dcm)(\.gz)?$", re.IGNORECASE)
_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


def parsed_fields(text: str, known: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the literal texts of a pattern, each with the field in braces that follows; "" for
    none. Raises ValueError, with the rest of a sentence on the pattern.
    """
    try:
        parsed = [*Formatter().parse(text)]
    except ValueError as error:
        raise ValueError(f"has a brace that is not closed or not opened: {error}") from None
    for _, name, form, conversion in parsed:
        if name is not None and (name not in known or form or conversion):
            names = ", ".join(f"{{{field}}}" for field in known)
            raise ValueError(f"has the unknown field {{{name}}}; known are {names}")
    return tuple((literal, name or "") for literal, name, *_ in parsed)


@dataclass(frozen=True, slots=True)
class NamePattern:
    """Validated pattern.

    parts: literal text, and the field that follows it; "" for none. The extension is left out, as
    it always ends the name.
    """

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern. Raises ValueError, with the rest of a sentence on the pattern."""
        parts = parsed_fields(text, FIELDS)
        pattern = cls(parts)
        pattern._check()
        return cls((*parts[:-1], (parts[-1][0], ""))) if parts[-1][1] == "ext" else pattern

    def _check(self) -> None:
        text = "".join(literal for literal, _ in self.parts)
        fields = [field for _, field in self.parts if field]
        if "/" in text or "\\" in text:
            raise ValueError("contains a path separator; results keep their relative folders")
        if not text.isprintable():
            raise ValueError("contains a character that cannot be printed")
        if "ext" in fields[:-1] or ("ext" in fields and self.parts[-1][1] != "ext"):
            raise ValueError("has {ext} before its end")
        if _EXTENSION.search(self.parts[-1][0] if self.parts else ""):
            raise ValueError("ends in an extension; write {ext} for that of the result")
        if not text and not {"stem", "source", "target", "model"} & {*fields}:
            raise ValueError("may give an empty name; add {stem}")
        if text.startswith(".") and self.parts[0][0]:
            raise ValueError("begins with a dot, which hides files")

    @property
    def has_channel(self) -> bool:
        """Whether the results of several channels have different names by the pattern itself."""
        return any(field == "channel" for _, field in self.parts)

    def name(self, words: Mapping[str, str]) -> str:
        """Return a result's name without its extension. words: values of the fields."""
        return "".join(literal + words.get(field, "") for literal, field in self.parts)


def pattern_of(text: str) -> NamePattern:
    """Return the pattern in a setting. Raises SettingsError."""
    try:
        return NamePattern.parse(text)
    except ValueError as error:
        raise SettingsError(
            f"The pattern {text!r} of setting result-name {error}.", "result_name"
        ) from None


def in_a_name(text: str) -> str:
    """Return a text as valid part of a file name; empty if no character is valid."""
    return _NOT_IN_NAMES.sub("-", text).strip("-.")
