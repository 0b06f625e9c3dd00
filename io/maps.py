"""Maps: volumes about a result, stored next to it, such as its uncertainty."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

MapKind: TypeAlias = Literal["spread-mean", "spread-sd", "cycle", "disagreement"]
"""Kind of a map: the end of its file's name; a DICOM series has it in ImageType."""

_MARK = ".map-"
_NAME = re.compile(r".+\.map-[a-z]+(-[a-z]+)*(\.[a-z]+){0,2}", re.IGNORECASE)

IS_MAP = "its name marks it as a map stored with a result; rename it if it is a scan"
"""Reason why a path is not searched for scans."""


@dataclass(frozen=True, slots=True)
class MapMark:
    """Kind of a map, and its parameters in addition to the result's.

    kind: of map. words: what its values are, for a series description. recipe: the same text for
    the same choices, another for others.
    """

    kind: MapKind
    words: str
    recipe: str


def is_map_name(name: str) -> bool:
    """Return whether a file or folder of this name is a map, which is no scan and no result."""
    return bool(_NAME.fullmatch(name))


def map_name(stem: str, kind: MapKind, suffix: str) -> str:
    """Return the name of a map of the result with this stem and suffix."""
    return f"{stem}{_MARK}{kind}{suffix}"
