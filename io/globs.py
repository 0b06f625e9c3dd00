"""Patterns of paths below an input folder, by which a user includes and excludes scans."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath


@dataclass(frozen=True, slots=True)
class PathGlobs:
    """Which paths are taken, relative to the input folder that they were found in.

    A pattern without a slash is compared with the names of the file and of each folder around it,
    one with a slash with the whole path. * and ? stay within a name, ** is any number of folders.
    A folder that fits stands for all that it holds. include: of what is taken; none takes all.
    exclude: of what is left out all the same.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def excludes(self, place: PurePath) -> bool:
        """Whether a file, or a folder with all that it holds, is left out by `exclude`."""
        return any(_fits(pattern, place) for pattern in self.exclude)

    def refusal(self, place: PurePath, slices: Sequence[PurePath] = ()) -> str | None:
        """Why what has this path is left out, in words; None if it is taken.

        slices: the files of a series; a pattern that fits all of them fits the series, too.
        """

        def fits(pattern: str) -> bool:
            return _fits(pattern, place) or (
                bool(slices) and all(_fits(pattern, each) for each in slices)
            )

        if any(map(fits, self.exclude)):
            return EXCLUDED
        return NOT_INCLUDED if self.include and not any(map(fits, self.include)) else None


ALL_PATHS = PathGlobs()
EXCLUDED = "setting exclude leaves it out"
NOT_INCLUDED = "setting include leaves it out"


def _fits(pattern: str, place: PurePath) -> bool:
    """Whether the pattern fits the path, or that of a folder around it."""
    words = [word for word in pattern.split("/") if word not in ("", ".")]
    is_anywhere = "/" not in pattern.rstrip("/")
    return _fit(["**", *words] if is_anywhere else words, place.parts)


def _fit(words: Sequence[str], parts: Sequence[str]) -> bool:
    if not words:
        return True
    first, *others = words
    if first == "**":
        while others and others[0] == "**":
            others = others[1:]
        return any(_fit(others, parts[at:]) for at in range(len(parts) + (not others)))
    return bool(parts) and fnmatchcase(parts[0], first) and _fit(others, parts[1:])
