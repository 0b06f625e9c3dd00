"""User options for the search for studies and for the format of results."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Literal, TypeAlias

from .links import Links


@dataclass(frozen=True, slots=True)
class PathGlobs:
    """Patterns of the paths to take, relative to the input folder that they were found in.

    A pattern without a slash is compared with the names of the file and of each parent folder, one
    with a slash with the whole path. * and ? stay within a name, ** matches any number of folders,
    [ ] matches one of several characters. A folder that matches selects everything in it. include:
    patterns of included paths; none includes all. exclude: patterns of excluded paths, which take
    precedence.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def excludes(self, place: PurePath) -> bool:
        """Return whether `exclude` matches a file, or a folder and so everything in it."""
        return any(_fits(pattern, place) for pattern in self.exclude)

    def refusal(self, place: PurePath, slices: Sequence[PurePath] = ()) -> str | None:
        """Return the reason why a path is excluded, or None.

        slices: the files of a series; a pattern that matches all of them matches the series.
        """

        def fits(pattern: str) -> bool:
            return _fits(pattern, place) or (
                bool(slices) and all(_fits(pattern, each) for each in slices)
            )

        if any(map(fits, self.exclude)):
            return EXCLUDED
        return NOT_INCLUDED if self.include and not any(map(fits, self.include)) else None

    def unmatched(self, places: Collection[PurePath]) -> Iterator[str]:
        """Yield a note for each pattern that matches none of the paths."""
        for name, patterns in (("include", self.include), ("exclude", self.exclude)):
            for pattern in patterns:
                if not any(_fits(pattern, place) for place in places):
                    hint = _RELATIVE if pattern.startswith(("/", "~")) or "\\" in pattern else ""
                    yield f'pattern "{pattern}" of setting {name} matches no scan{hint}'


_RELATIVE = "; patterns are relative to the input folder, with / between folders"
ALL_PATHS = PathGlobs()
EXCLUDED = "excluded by setting exclude"
NOT_INCLUDED = "not matched by setting include"


def _fits(pattern: str, place: PurePath) -> bool:
    """Return whether the pattern matches the path or that of a parent folder."""
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


OutputFormat: TypeAlias = Literal["same", "nifti", "nrrd", "mha", "dicom"]

SkipKind: TypeAlias = Literal["", "excluded", "synthetic", "mask", "contrast", "modality"]
"""Rule by which a scan is skipped unless requested; empty for other skipped paths."""

FEWEST_SLICES = 8
"""Default for the fewest slices of a DICOM volume; localizers have fewer in each direction."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Filters of DICOM series, and options for the studies that are found.

    modalities: accepted ones, in capitals; empty accepts all. series: searched for in a series'
    description and label. fewest_slices: of a volume. allow_uneven: whether stacks with gaps,
    uneven spacing or tilt are resampled instead of refused. show_phi: whether a series' own text
    is shown. format: of the results. keep_private: whether private elements of
    a DICOM source go into its result. links: which links below the inputs are followed. takes:
    kinds of scans that are accepted although they are skipped by default. take_maps: whether maps
    stored next to results are accepted. channels: name and pattern of those of a model that are not
    recognised by suffixes as in BIDS. globs: patterns of paths. datasets: folders that links below
    the inputs may also lead into, as the data of a dataset may be elsewhere in it.
    """

    modalities: frozenset[str] = frozenset()
    series: "re.Pattern[str] | None" = None
    fewest_slices: int = FEWEST_SLICES
    allow_uneven: bool = False
    show_phi: bool = False
    format: OutputFormat = "same"
    keep_private: bool = False
    links: Links = "inside"
    takes: frozenset[SkipKind] = frozenset()
    take_maps: bool = False
    channels: tuple[tuple[str, str], ...] = ()
    globs: PathGlobs = ALL_PATHS
    datasets: tuple[Path, ...] = ()

    def refusal(self, modality: str, description: str, label: str) -> str | None:
        """Return the reason why the filters reject a series, or None."""
        if self.modalities and modality.upper() not in self.modalities:
            return "excluded by setting modality"
        if self.series and not (self.series.search(description) or self.series.search(label)):
            return "excluded by setting series"
        return None


EVERYTHING = Choice()
