"""Rules for links in a search: follow those that stay among the inputs, or all, or none."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias

from .files.regular import MOST_LINKS

Links: TypeAlias = Literal["inside", "all", "none"]

SYSTEM_FOLDERS = tuple(map(Path, ("/proc", "/sys", "/dev")))
"""Folders that show processes and devices as files; no link is followed into them."""

LEADS_OUT = "it is a link that leads outside the inputs and is not followed"


@dataclass(frozen=True, slots=True)
class LinkRule:
    """Rule for the links that a search follows.

    links: which are followed. roots: real paths of the inputs.
    """

    links: Links
    roots: tuple[Path, ...]

    @classmethod
    def among(cls, links: Links, inputs: Sequence[Path]) -> Self:
        """Return the rule for these inputs, which may be links themselves."""
        return cls(links, tuple(Path(os.path.realpath(path)) for path in inputs))

    def refusal(self, link: Path) -> str | None:
        """Return why a link that was met on a search is not followed; None if it is."""
        if leads_into_system(link) and not _is_inside(link, filter(is_of_system, self.roots)):
            return "it is a link into a system folder and is not followed"
        if self.links == "none":
            return "it is a link and is not followed"
        return None if self.links == "all" or _is_inside(link, self.roots) else LEADS_OUT

    def admits(self, file: Path, header: Path) -> bool:
        """Return whether the file that a header names for its voxels may be read with it."""
        if self.links == "all":
            return not leads_into_system(file)
        if self.links == "none" and file.is_symlink():
            return False
        beside = Path(os.path.realpath(header.parent))
        return _is_inside(file, (*self.roots, beside))


def _is_inside(path: Path, roots: Iterable[Path]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(root) for root in roots)


def leads_into_system(path: Path) -> bool:
    """Return whether links lead from a path into a folder of the system, if only on their way."""
    _, *places = resolutions(path)
    return any(is_of_system(place) for place in places)


def is_of_system(place: Path) -> bool:
    """Return whether a path without links is one of the system's folders, or inside one."""
    return any(place.is_relative_to(folder) for folder in SYSTEM_FOLDERS)


def resolutions(path: Path) -> Iterator[Path]:
    """Yield a path, then the paths that result as its links are resolved one by one."""
    yield path
    for _ in range(MOST_LINKS):
        link = first_link(path)
        if link is None:
            return
        path = Path(os.path.normpath(link.parent / link.readlink() / path.relative_to(link)))
        yield path


def first_link(path: Path) -> Path | None:
    """Return the uppermost link on the way to a path; None if there is none."""
    return next((each for each in (*reversed(path.parents), path) if each.is_symlink()), None)
