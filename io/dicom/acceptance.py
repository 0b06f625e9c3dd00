"""Acceptance checks: which volumes grouped images form, or why they form none."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import numpy as np

from ..choice import Choice
from ..volume import spacing_of
from .frames import Frame, Stack
from .geometry import SAME_PLACE_MM, bad_frames, depth_of, grid_of, normal_of
from .grouping import acquisition_key

Verdict: TypeAlias = Literal["taken", "skipped", "refused"]
"""Accepted, skipped or rejected."""

_SIGNS: tuple[tuple[str, ...], ...] = (
    ("index",),
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
"""Elements that may distinguish volumes, the surest first; many scanners fill some at random."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Result of the acceptance checks; the fields are those of `Series`. verdict: outcome. reason:
    why the images are not accepted. volumes: volumes that they form. extents, spacing: grid of
    these. uneven: fault of their grid, if they are accepted nevertheless. incomplete: which images
    they leave out, in words for the result. notes: remarks for the user.
    """

    verdict: Verdict
    reason: str | None = None
    volumes: tuple[Stack, ...] = ()
    extents: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()
    uneven: str | None = None
    incomplete: str = ""
    notes: tuple[str, ...] = ()


def accepted(
    frames: Sequence[Frame], trouble: str | None, choice: Choice, *, is_whole: bool
) -> Acceptance:
    """Return the acceptance of images of one kind and orientation, sorted by depth.

    trouble: why it is unclear which volume they form, usually None. is_whole: whether their
    SeriesInstanceUID has no other images.
    """
    if trouble := trouble or bad_frames(frames):
        return Acceptance("refused", trouble)
    places = _places(frames)
    if len(places) == 1 and len(frames) > 1:
        reason = f"its {len(frames)} images all have the same position, so they form no volume"
        return Acceptance("skipped", reason)
    if len(places) == 1:
        return Acceptance("skipped", "it has only 1 slice of this kind, which is not a volume")
    if len(places) < choice.fewest_slices:
        slices = f"{len(places)} slices of this kind"
        reason = f"it has only {slices}; lower setting min-slices to accept it"
        return Acceptance("skipped", reason)
    if len(_sizes(frames)) > 1:
        return Acceptance("refused", _sizes_in_words(frames))
    found = _in_volumes(frames, places, choice)
    thinned = tuple(_numbering_notes(found.volumes)) if is_whole else ()
    return replace(found, notes=(*found.notes, *thinned))


def _in_volumes(
    frames: Sequence[Frame], places: Sequence[Sequence[Frame]], choice: Choice
) -> Acceptance:
    counts = {len(place) for place in places}
    notes: tuple[str, ...] = ()
    incomplete = ""
    if len(counts) > 1:
        span = f"{min(counts)} to {max(counts)}"
        repeated = f"its {len(frames)} images have {len(places)} positions, {span} at each"
        if not choice.allow_uneven:
            reason = (
                f"{repeated}, so they form no complete volumes; use setting allow-uneven to keep "
                "the first of each"
            )
            return Acceptance("refused", reason)
        places = [place[:1] for place in places]
        notes = (f"{repeated}; the first of each is used",)
        incomplete = (
            f"the {len(frames)} images of the source had {len(places)} positions, and the first "
            "of each was used"
        )
    volumes = _volumes_of(places)
    if volumes is None:
        reason = (
            f"each of its {len(places)} positions has {len(places[0])} images, and no header "
            "field groups them into volumes; export them as separate series"
        )
        return Acceptance("refused", reason)
    found = _on_grid(volumes, (*notes, *_labelling_notes(volumes)), choice)
    return replace(found, incomplete=incomplete)


def _labelling_notes(volumes: Sequence[Stack]) -> Iterator[str]:
    """Yield a note on the order of volumes of a scan with labelled spins."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for at, volume in enumerate(volumes):
        for labelling in {frame.moment.labelling for frame in volume}:
            kinds[labelling.lower().replace("_", " ")].append(str(at))
    if len(kinds) > 1:
        words = (f"{kind or 'unnamed'} in {', '.join(found)}" for kind, found in kinds.items())
        yield f"arterial spin labelling volumes: {'; '.join(words)}"


def _numbering_notes(volumes: Sequence[Stack]) -> Iterator[str]:
    """Yield a note if slices seem to be missing at even intervals, which positions cannot show."""
    numbers = {int(frame.image) for volume in volumes for frame in volume}
    steps = {after - before for before, after in pairwise(sorted(numbers))}
    if len(steps) == 1 and (step := steps.pop()) > 1:
        yield (
            f"its images are numbered {min(numbers)} to {max(numbers)} in steps of {step}; slices "
            "in between may be missing"
        )


def _on_grid(volumes: tuple[Stack, ...], notes: tuple[str, ...], choice: Choice) -> Acceptance:
    """Return volumes with their grid, or rejected because of it."""
    grids = [grid_of(volume) for volume in volumes]
    first = volumes[0][0]
    acceptance = Acceptance(
        verdict="taken",
        volumes=volumes,
        extents=(first.columns, first.rows, len(volumes[0])),
        spacing=spacing_of(grids[0].affine),
        notes=notes,
    )
    bad = next((grid for grid in grids if grid.trouble), None)
    if bad is None:
        return acceptance
    if not bad.curable:
        return replace(acceptance, verdict="refused", reason=bad.trouble)
    if not choice.allow_uneven:
        reason = f"{bad.trouble}; use setting allow-uneven to resample it onto an even grid"
        return replace(acceptance, verdict="refused", reason=reason)
    notes = (*notes, f"{bad.trouble}; resampled onto an even grid")
    return replace(acceptance, uneven=bad.trouble, notes=notes)


def _places(part: Sequence[Frame]) -> list[list[Frame]]:
    """Return the frames at each place by depth; those at one place in order of acquisition."""
    normal = normal_of(part[0])
    depths = np.array([depth_of(frame, normal) for frame in part])
    starts = [0, *map(int, np.flatnonzero(np.diff(depths) > SAME_PLACE_MM) + 1)]
    ends = [*starts[1:], len(part)]
    return [
        sorted(part[start:end], key=acquisition_key)
        for start, end in zip(starts, ends, strict=True)
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
    return f"its slices differ in size: {', '.join(found)}"


def _volumes_of(places: Sequence[Sequence[Frame]]) -> tuple[Stack, ...] | None:
    """Return volumes of one slice per place, by acquisition order; None if headers do not give it.

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
    """Return volumes whose slices share these signs, if each then has one slice a place."""
    values = attrgetter(*signs)
    groups: dict[Any, list[Frame]] = defaultdict(list)
    for place in places:
        values_here = [values(frame.moment) for frame in place]
        if len(set(values_here)) < len(place):
            return None
        for sign, frame in zip(values_here, place, strict=True):
            groups[sign].append(frame)
    if any(len(group) != len(places) for group in groups.values()):
        return None
    # Some scanners number the images of each volume from 1, and the sign alone gives their order.
    in_order = sorted(groups, key=lambda sign: (min(frame.image for frame in groups[sign]), sign))
    return tuple(tuple(groups[sign]) for sign in in_order)


def _by_number(places: Sequence[Sequence[Frame]]) -> tuple[Stack, ...] | None:
    """Return volumes by instance numbers that run volume by volume or place by place."""
    ranked = [sorted(place, key=lambda frame: frame.image) for place in places]
    volumes = tuple(zip(*ranked, strict=True))
    spans = [[frame.image for frame in volume] for volume in volumes]
    one_after_another = all(max(one) < min(other) for one, other in pairwise(spans))
    runs = [[frame.image for frame in place] for place in ranked]
    place_after_place = all(run[-1] - run[0] == len(run) - 1 for run in runs)
    return volumes if one_after_another or place_after_place else None
