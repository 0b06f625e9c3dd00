"""From the headers of many files to series, each one grid or with the reason why it is none."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from ..choice import Choice
from .geometry import SAME_PLACE_MM, depth_of, grid_of, normal_of
from .instance import Frame, Instance, Stack

Verdict: TypeAlias = Literal["taken", "skipped", "refused"]
HASH_DIGITS = 8
SAME_COSINE = 1e-3


@dataclass(frozen=True, slots=True)
class Series:
    """Images of one SeriesInstanceUID that share contrast and orientation.

    label: a name without a word about the patient. verdict: whether it is translated, left out, or
    wrong, with the reason. volumes: the slices of each volume, sorted along their normal; several
    where slices repeat, as over time. duplicates: how many copies of its images were left out.
    extents: along columns, rows and slices. spacing: along them, in millimetres. uneven: what is
    wrong with its grid, if it is taken all the same and resampled. notes: what a user should know
    of a series that is taken. text: its description, if that may be shown. study_numbers: of all
    series of its study. keep_private: whether its private elements go into the result. uid: its
    SeriesInstanceUID. study: its StudyInstanceUID. number: SeriesNumber. modality: such as MR.
    files: all of its files. images: how many it has.
    """

    label: str
    uid: str
    study: str
    number: int
    modality: str
    description: str
    files: tuple[Path, ...]
    verdict: Verdict
    reason: str | None = None
    volumes: tuple[Stack, ...] = ()
    images: int = 0
    duplicates: int = 0
    extents: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()
    uneven: str | None = None
    notes: tuple[str, ...] = ()
    text: str = ""
    study_numbers: frozenset[int] = frozenset()
    keep_private: bool = False

    @property
    def folder(self) -> Path:
        """The folder that its files share."""
        return Path(os.path.commonpath([file.parent for file in self.files]))

    @property
    def told(self) -> str:
        """The reason, behind the series' own text where that may be shown."""
        return f'"{self.text}": {self.reason}' if self.text else self.reason or ""


def assemble(instances: Iterable[Instance], choice: Choice) -> list[Series]:
    """All series, sorted by label; what no volume can be made of has a row of its own."""
    members: dict[tuple[str, str], list[Instance]] = defaultdict(list)
    numbers: dict[str, set[int]] = defaultdict(set)
    for instance in instances:
        members[instance.study, instance.series].append(instance)
        numbers[instance.study].add(instance.number)
    found = [
        replace(series, study_numbers=frozenset(numbers[study]))
        for (study, _), same in members.items()
        for series in _series(same, choice)
    ]
    return sorted(found, key=lambda series: (series.label, series.files))


def _series(members: Sequence[Instance], choice: Choice) -> Iterator[Series]:
    unique = list({member.uid: member for member in reversed(members)}.values())[::-1]
    first, copies = unique[0], len(members) - len(unique)
    digest = sha256(first.series.encode(errors="replace")).hexdigest()[:HASH_DIGITS]
    row = Series(
        label=f"series-{first.number:04}-{digest}",
        uid=first.series,
        study=first.study,
        number=first.number,
        modality=first.modality,
        description=first.description,
        files=(),
        verdict="skipped",
        duplicates=copies,
        notes=(f"{copies} cop{'y' if copies == 1 else 'ies'} of images left out",)
        if copies
        else (),
        text=first.description if choice.show_phi else "",
        keep_private=choice.keep_private,
    )
    obstacles: dict[str, list[Instance]] = defaultdict(list)
    frames: list[Frame] = []
    for instance in unique:
        if instance.obstacle:
            obstacles[instance.obstacle].append(instance)
        frames += instance.frames
    for reason, same in obstacles.items():
        files = tuple(instance.file for instance in same)
        yield replace(row, reason=reason, files=files, images=len(same))
    parts = _parts(frames)
    for count, part in enumerate(parts, 1):
        label = row.label if len(parts) == 1 else f"{row.label}-{count}"
        yield _judged(replace(row, label=label, images=len(part)), part, choice)


def _parts(frames: Iterable[Frame]) -> list[list[Frame]]:
    """Frames apart by contrast and orientation, in the order in which they were made."""
    parts: list[list[Frame]] = []
    for frame in sorted(frames, key=_when_made):
        for part in parts:
            if part[0].contrast == frame.contrast and _parallel(part[0], frame):
                part.append(frame)
                break
        else:
            parts.append([frame])
    return parts


def _when_made(frame: Frame) -> tuple[float, float, Path]:
    return frame.moment.acquisition, frame.image, frame.file


def _parallel(one: Frame, other: Frame) -> bool:
    return all(
        abs(a - b) <= SAME_COSINE for a, b in zip(one.orientation, other.orientation, strict=True)
    )


def _judged(row: Series, part: list[Frame], choice: Choice) -> Series:
    normal = normal_of(part[0])
    part.sort(key=lambda frame: depth_of(frame, normal))
    row = replace(row, files=tuple(dict.fromkeys(frame.file for frame in part)))
    left_out = choice.refusal(row.modality, row.description, row.label)
    if left_out:
        return replace(row, reason=left_out)
    places = _places(part)
    if len(places) == 1:
        return replace(row, reason="it has only 1 slice of this kind, which is no volume")
    if len(places) < choice.fewest_slices:
        slices = f"{len(places)} slices of this kind"
        return replace(row, reason=f"it has only {slices}; setting min-slices sets the fewest")
    if len(_sizes(part)) > 1:
        return replace(row, verdict="refused", reason=_sizes_in_words(part))
    notes = row.notes
    counts = {len(place) for place in places}
    if len(counts) > 1:
        span = f"{min(counts)} to {max(counts)}"
        repeated = f"its {len(part)} images lie at {len(places)} places, {span} at each"
        if not choice.allow_uneven:
            reason = (
                f"{repeated}, so they are no whole volumes; setting allow-uneven takes the first "
                "of each"
            )
            return replace(row, verdict="refused", reason=reason)
        places = [place[:1] for place in places]
        notes = (*notes, f"{repeated}; the first of each is taken")
    volumes = volumes_of(places)
    if volumes is None:
        reason = (
            f"{len(places[0])} images lie at each of its {len(places)} places, and no header says "
            "which of them belong together"
        )
        return replace(row, verdict="refused", reason=reason)
    return _on_grid(replace(row, volumes=volumes, notes=notes), choice)


def _on_grid(row: Series, choice: Choice) -> Series:
    """The series with its grid, or refused because of it."""
    grids = [grid_of(volume) for volume in row.volumes]
    first = row.volumes[0][0]
    lengths = np.linalg.norm(grids[0].affine[:3, :3], axis=0)
    row = replace(
        row,
        extents=(first.columns, first.rows, len(row.volumes[0])),
        spacing=tuple(float(length) for length in lengths),
    )
    bad = next((grid for grid in grids if grid.trouble), None)
    if bad is None:
        return replace(row, verdict="taken")
    if not bad.curable:
        return replace(row, verdict="refused", reason=bad.trouble)
    if not choice.allow_uneven:
        reason = f"{bad.trouble}; setting allow-uneven resamples it onto an even grid"
        return replace(row, verdict="refused", reason=reason)
    notes = (*row.notes, f"{bad.trouble}; resampled onto an even grid")
    return replace(row, verdict="taken", uneven=bad.trouble, notes=notes)


def _places(part: Sequence[Frame]) -> list[list[Frame]]:
    """Frames, sorted by depth, at each place; those at one place in the order they were made."""
    depths = np.array([depth_of(frame, normal_of(part[0])) for frame in part])
    starts = [0, *map(int, np.flatnonzero(np.diff(depths) > SAME_PLACE_MM) + 1)]
    ends = [*starts[1:], len(part)]
    return [
        sorted(part[start:end], key=_when_made) for start, end in zip(starts, ends, strict=True)
    ]


def _sizes(part: Iterable[Frame]) -> dict[tuple[int, int, float, float], int]:
    sizes: dict[tuple[int, int, float, float], int] = defaultdict(int)
    for frame in part:
        between_rows, between_columns = frame.spacing
        sizes[frame.columns, frame.rows, round(between_columns, 4), round(between_rows, 4)] += 1
    return sizes


def _sizes_in_words(part: Iterable[Frame]) -> str:
    found = (
        f"{count} of {columns} x {rows} pixels of {width:g} x {height:g} mm"
        for (columns, rows, width, height), count in _sizes(part).items()
    )
    return f"its slices disagree in size: {', '.join(found)}"


_SIGNS: tuple[tuple[str, ...], ...] = (
    ("temporal",),
    ("diffusion",),
    ("trigger",),
    ("acquisition",),
    ("temporal", "diffusion"),
    ("temporal", "trigger"),
    ("temporal", "acquisition"),
    ("acquisition", "diffusion"),
    ("temporal", "acquisition", "trigger", "diffusion"),
)
"""What may tell volumes apart, the surest first; many scanners fill some of it at random."""


def volumes_of(places: Sequence[Sequence[Frame]]) -> tuple[Stack, ...] | None:
    """Volumes of one slice a place, in the order they were made; None if headers do not tell.

    places: the frames at each place, equally many, along the stack.
    """
    if len(places[0]) == 1:
        return (tuple(place[0] for place in places),)
    for signs in _SIGNS:
        found = _by_signs(places, signs)
        if found:
            return found
    return _by_number(places)


def _by_signs(places: Sequence[Sequence[Frame]], signs: Sequence[str]) -> tuple[Stack, ...] | None:
    """Volumes whose slices share these signs, if each then has one slice a place."""
    told = attrgetter(*signs)
    groups: dict[object, list[Frame]] = defaultdict(list)
    for place in places:
        told_here = [told(frame.moment) for frame in place]
        if len(set(told_here)) < len(place):
            return None
        for sign, frame in zip(told_here, place, strict=True):
            groups[sign].append(frame)
    if any(len(group) != len(places) for group in groups.values()):
        return None
    return tuple(sorted(map(tuple, groups.values()), key=_first_number))


def _by_number(places: Sequence[Sequence[Frame]]) -> tuple[Stack, ...] | None:
    """Volumes by instance numbers that run through volume after volume, or place after place."""
    ranked = [sorted(place, key=lambda frame: frame.image) for place in places]
    volumes = tuple(zip(*ranked, strict=True))
    spans = [[frame.image for frame in volume] for volume in volumes]
    one_after_another = all(max(one) < min(other) for one, other in pairwise(spans))
    runs = [[frame.image for frame in place] for place in ranked]
    place_after_place = all(run[-1] - run[0] == len(run) - 1 for run in runs)
    return volumes if one_after_another or place_after_place else None


def _first_number(volume: Stack) -> float:
    return min(frame.image for frame in volume)
