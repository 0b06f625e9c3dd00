"""Names of studies in a node's inbox, which hold no identifier of theirs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StudyName:
    """A study in the inbox. route: its AE title. name: of its folder, beginning with its day."""

    route: str
    name: str

    def __str__(self) -> str:
        return f"{self.route}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "StudyName":
        """The name that `str` made."""
        route, _, name = text.rpartition("/")
        return cls(route, name)

    @property
    def day(self) -> str:
        """On which its first object came, as 20261122."""
        return self.name.partition("-")[0]

    @property
    def key(self) -> str:
        """Hash of its UID."""
        return self.name.partition("-")[2]


def output_of(results: Path, route: str, day: str) -> Path:
    """Return the folder of results of a route's studies that began to arrive on a day."""
    return results / route / day
