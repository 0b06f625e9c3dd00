"""Parameters that frames of one series may differ in, and when that makes them several volumes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, TypeAlias

from .geometry import (
    are_disjoint,
    cover_one_range,
    depths_of,
    fill_a_grid,
    overlap,
    slice_distance,
)
from .instance import Frame

_Values: TypeAlias = Sequence[Hashable]
"""One value per frame."""
_Groups: TypeAlias = Sequence[Sequence[Frame]]
"""Frames by their value of a parameter."""

FAR_APART_SECONDS = 600.0
"""Pause in a series after which its images are another acquisition.

Passes of one scan that acquire every other slice follow each other within a few minutes.
"""
_MOST_LISTED = 4
_FEWEST_NUMBERED = 3
"""Slices of a stack that is recognised by its numbers alone."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something that tells acquisitions of one series apart.

    words: its name. values: of frames. repeats: whether stacks at the same places are volumes of
    their own; otherwise they are one volume after another, as over time. interleaved: whether
    stacks that lie between the slices of each other are volumes of their own, also if "touching"
    requires that the slices of each leave no gap for those of the others. slabs: whether stacks
    that follow each other on one grid are. others: whether groups that form no even stack together
    are, whatever they look like. unit: behind each value. is_shown: whether the values are; free
    text may name a patient.
    """

    words: str
    values: Callable[[Sequence[Frame]], _Values]
    repeats: bool = True
    interleaved: Literal["apart", "touching", "together"] = "apart"
    slabs: bool = False
    others: bool = False
    unit: str = ""
    is_shown: bool = True

    def groups(self, frames: Sequence[Frame]) -> list[list[Frame]]:
        """The frames by their value, in the order in which the values occur."""
        found: dict[Hashable, list[Frame]] = defaultdict(list)
        for frame, value in zip(frames, self.values(frames), strict=True):
            found[value].append(frame)
        return list(found.values())

    def is_apart(self, groups: _Groups) -> bool:
        """Whether the groups are volumes of their own: each one an even, complete stack."""
        are_grids = all(map(fill_a_grid, groups))
        if not fill_a_grid([*chain.from_iterable(groups)]):
            is_repeated = self.repeats or are_disjoint(groups)
            are_whole = are_grids and is_repeated and overlap(groups)
            return self.others or (are_whole and self._may_interleave(groups))
        if not are_disjoint(groups):
            return self.repeats and are_grids
        if are_grids and cover_one_range(groups):
            return self._may_interleave(groups)
        return self.slabs

    def _may_interleave(self, groups: _Groups) -> bool:
        """Whether even stacks may be volumes although slices of others lie between theirs."""
        return self.interleaved == "apart" or (
            self.interleaved == "touching" and all(map(_leaves_no_gap, groups))
        )

    def is_worth_a_note(self, groups: _Groups) -> bool:
        """Whether a user should know that the groups were taken as one volume."""
        return self.repeats or are_disjoint(groups)

    def described(self, frames: Sequence[Frame]) -> str:
        """The parameter with the values that it has."""
        values = list(dict.fromkeys(self.values(frames)))
        if not self.is_shown:
            return f"{self.words} ({len(values)} different)"
        if len(values) > _MOST_LISTED:
            sizes = sorted(value for value in values if isinstance(value, float | int))
            span = f", {sizes[0]:g} to {sizes[-1]:g}{self.unit}" if sizes else ""
            return f"{self.words} ({len(values)} values{span})"
        return f"{self.words} ({', '.join(map(_text, values))}{self.unit})"

    def names(self, frames: Sequence[Frame]) -> list[str]:
        """For each frame what tells it from the others, in words."""
        values = self.values(frames)
        if self.is_shown:
            return [f"{self.words} {_text(value)}{self.unit}" for value in values]
        order = list(dict.fromkeys(values))
        return [f"{self.words} {order.index(value) + 1}" for value in values]


def _text(value: Hashable) -> str:
    if isinstance(value, float | int):
        return f"{value:g}"
    return str(value) or "none"


def _each(value: Callable[[Frame], Hashable]) -> Callable[[Sequence[Frame]], _Values]:
    return lambda frames: [value(frame) for frame in frames]


def _periods(frames: Sequence[Frame]) -> _Values:
    """Number of the acquisition, from 1, that each frame belongs to, by pauses between them."""
    times = [frame.technique.seconds for frame in frames]
    if not all(times):
        return [1] * len(frames)
    period, periods = 1, dict[float, int]()
    for before, now in pairwise([min(times), *sorted(times)]):
        period += now - before > FAR_APART_SECONDS
        periods[now] = period
    return [periods[time] for time in times]


def _runs(frames: Sequence[Frame]) -> _Values:
    """Number of the stack, from 1, that each file belongs to by its instance number.

    Two stacks that were put into one series are numbered one after the other, or alike.
    """
    one = [1] * len(frames)
    if len({frame.file for frame in frames}) < len(frames) or not fill_a_grid(frames):
        return one
    depths = depths_of(frames)
    by_depth = sorted(range(len(frames)), key=depths.__getitem__)
    repeats = Counter(frame.image for frame in frames)
    runs = one.copy()
    if max(repeats.values()) > 1:
        met = Counter[float]()
        for at in by_depth:
            met[frames[at].image] += 1
            runs[at] = met[frames[at].image]
    else:
        in_order = sorted(range(len(frames)), key=lambda at: frames[at].image)
        upwards = depths[in_order[1]] > depths[in_order[0]]
        for before, at in pairwise(in_order):
            goes_on = (depths[at] > depths[before]) == upwards
            runs[at] = runs[before] + (not goes_on)
    stacks = [[f for f, run in zip(frames, runs, strict=True) if run == at] for at in {*runs}]
    is_sure = all(len(stack) >= _FEWEST_NUMBERED and fill_a_grid(stack) for stack in stacks)
    return runs if is_sure and cover_one_range(stacks) else one


def _leaves_no_gap(frames: Sequence[Frame]) -> bool:
    """Whether slices are as thick as they lie apart, by what their headers say."""
    spacing = slice_distance(frames)
    return all(spacing <= 1.05 * frame.technique.thickness <= 2 * spacing for frame in frames)


STACK = Parameter(
    "stack",
    _each(lambda frame: frame.contrast.stack),
    interleaved="touching",
    slabs=True,
    others=True,
)
SETTINGS = (
    Parameter("series number", _each(lambda frame: frame.technique.series)),
    Parameter("tube voltage", _each(lambda frame: frame.technique.voltage), unit=" kV"),
    Parameter("kernel", _each(lambda frame: frame.technique.kernel)),
    Parameter("inversion time", _each(lambda frame: frame.technique.inversion), unit=" ms"),
    Parameter("flip angle", _each(lambda frame: frame.technique.flip), unit=" degrees"),
    Parameter("contrast agent", _each(lambda frame: frame.technique.agent), is_shown=False),
    Parameter("b-value", _each(lambda frame: (*frame.moment.diffusion, 0.0)[0]), repeats=False),
    Parameter("period of acquisition", _periods, repeats=False),
)
PASSES = (
    Parameter(
        "acquisition number",
        _each(lambda frame: frame.moment.acquisition),
        repeats=False,
        interleaved="touching",
    ),
    Parameter("stack by instance number", _runs, repeats=False, interleaved="touching"),
)
ADD_ONS = Parameter(
    "image type", _each(lambda frame: frame.contrast.flags), interleaved="together", others=True
)
PARAMETERS = (*SETTINGS, STACK, *PASSES, ADD_ONS)
"""In the order in which they are asked."""


def differing(frames: Sequence[Frame]) -> Iterator[tuple[Parameter, list[list[Frame]]]]:
    """The parameters that these frames differ in, with the frames by value."""
    for parameter in PARAMETERS:
        groups = parameter.groups(frames)
        if len(groups) > 1:
            yield parameter, groups


def names_of(firsts: Sequence[Frame], known: Sequence[Hashable]) -> list[tuple[str, ...]]:
    """For one frame of each volume the parameters that tell it from the others.

    known: what tells them apart already; parameters that add nothing to it are left out.
    """
    told: list[tuple[Hashable, ...]] = [(each,) for each in known]
    named: list[tuple[str, ...]] = [() for _ in firsts]
    for parameter in (*SETTINGS, *PASSES):
        names = parameter.names(firsts)
        finer = [(*one, name) for one, name in zip(told, names, strict=True)]
        if len(set(finer)) > len(set(told)):
            told = finer
            named = [(*one, name) for one, name in zip(named, names, strict=True)]
    return named
