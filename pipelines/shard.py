"""Shards: shares of one command's studies, for schedulers that start the command many times."""

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import SettingsError

if TYPE_CHECKING:
    from ..io.discovery import Discovery

_FORM = re.compile(r"(\d{1,9})/(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several shares of the studies of a command.

    A study belongs to a share by the hash of its path below the inputs, so that a new study moves
    no other. number: of this share, from 1 to `count`. Raises SettingsError.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise SettingsError(
                f"there is no shard {self}: shards are numbered from 1 to their count, such as "
                "3/40.",
                "shard",
            )

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard of a text such as 3/40. Raises SettingsError."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise SettingsError(
                f"{text!r} is not a shard; write its number and their count, such as 3/40.", "shard"
            )
        number, count = map(int, found.groups())
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def takes(self, path: str) -> bool:
        """Return whether a path below the inputs belongs to this share."""
        digest = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest) % self.count == self.number - 1

    def of(self, found: "Discovery") -> "Discovery":
        """Return this share of a search: of its studies, and of the paths that it skipped.

        Names, collisions and blockers are those of the whole search. Files that are no scans are
        counted by the first shard.
        """

        def below(path: Path) -> str:
            return str(path.relative_to(found.root) if path.is_relative_to(found.root) else path)

        own = tuple(
            study
            for study in found.studies
            if self.takes(str((study.mirrored or study.results)[0]))
        )
        return replace(
            found,
            studies=own,
            elsewhere=len(found.studies) - len(own),
            skipped=tuple(skip for skip in found.skipped if self.takes(below(skip.path))),
            ignored=found.ignored if self.number == 1 else 0,
        )
