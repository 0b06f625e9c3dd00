"""Which images at the places of a stack belong to one volume, where several lie at each."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from .instance import Frame, Stack

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
