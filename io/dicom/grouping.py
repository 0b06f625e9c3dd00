"""Grouping of the images of a series by contents, orientation and acquisition."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, pairwise
from math import degrees, sqrt
from typing import Literal, TypeAlias, TypeVar

from .frames import Contrast, Frame
from .geometry import (
    are_disjoint,
    cover_one_range,
    depths_of,
    fill_a_grid,
    normal_of,
    overlap,
    places_of,
    slice_distance,
)

_Values: TypeAlias = Sequence[Hashable]
"""One value per frame."""
_Groups: TypeAlias = Sequence[Sequence[Frame]]
"""Frames by their value of a parameter."""

_FAR_APART_SECONDS = 600.0
"""Pause in a series after which its images belong to another acquisition.

Passes of one scan that acquire every other slice follow each other within a few minutes.
"""
_MOST_LISTED = 4
_FEWEST_NUMBERED = 3
"""Slices of a stack that is recognised by its numbers alone."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A property that distinguishes acquisitions of one series.

    words: its name. values: of frames. repeats: whether stacks at the same places are volumes of
    their own; otherwise they are one volume after another, as over time. interleaved: whether
    stacks that lie between the slices of each other are volumes of their own, also if "touching"
    requires that the slices of each leave no gap for those of the others. slabs: whether stacks
    that follow each other on one grid are. others: whether groups that together form no even stack
    are, in any arrangement. unit: unit of the values. is_shown: whether the values are shown; free
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
        """Return the frames by their value, in the order in which the values occur."""
        found: dict[Hashable, list[Frame]] = defaultdict(list)
        for frame, value in zip(frames, self.values(frames), strict=True):
            found[value].append(frame)
        return list(found.values())

    def is_apart(self, groups: _Groups) -> bool:
        """Return whether the groups are volumes of their own: each one an even, complete stack."""
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
        """Return whether even stacks may be volumes although others interleave with them."""
        return self.interleaved == "apart" or (
            self.interleaved == "touching" and all(map(_leaves_no_gap, groups))
        )

    def is_worth_a_note(self, groups: _Groups) -> bool:
        """Return whether a user should know that the groups were taken as one volume."""
        return self.repeats or are_disjoint(groups)

    def described(self, frames: Sequence[Frame]) -> str:
        """Return the parameter with the values that it has."""
        values = list(dict.fromkeys(self.values(frames)))
        if not self.is_shown:
            return f"{self.words} ({len(values)} different)"
        if len(values) > _MOST_LISTED:
            sizes = sorted(value for value in values if isinstance(value, float | int))
            span = f", {sizes[0]:g} to {sizes[-1]:g}{self.unit}" if sizes else ""
            return f"{self.words} ({len(values)} values{span})"
        return f"{self.words} ({', '.join(map(_text, values))}{self.unit})"

    def names(self, frames: Sequence[Frame]) -> list[str]:
        """Return what distinguishes each frame from the others, in words."""
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
        period += now - before > _FAR_APART_SECONDS
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
    """Return whether slices are as thick as their spacing, according to their headers."""
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
    Parameter("acquisition period", _periods, repeats=False),
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
"""All parameters, in the order in which they are tried."""


def differing(frames: Sequence[Frame]) -> Iterator[tuple[Parameter, list[list[Frame]]]]:
    """Yield the parameters that these frames differ in, with the frames by value."""
    for parameter in PARAMETERS:
        groups = parameter.groups(frames)
        if len(groups) > 1:
            yield parameter, groups


def names_of(firsts: Sequence[Frame], known: Sequence[Hashable]) -> list[tuple[str, ...]]:
    """Return the parameters that distinguish one frame of each volume from the others.

    known: words that already distinguish them; parameters that add nothing are left out.
    """
    distinct: list[tuple[Hashable, ...]] = [(each,) for each in known]
    named: list[tuple[str, ...]] = [() for _ in firsts]
    for parameter in (*SETTINGS, *PASSES):
        names = parameter.names(firsts)
        finer = [(*one, name) for one, name in zip(distinct, names, strict=True)]
        if len(set(finer)) > len(set(distinct)):
            distinct = finer
            named = [(*one, name) for one, name in zip(named, names, strict=True)]
    return named


_T = TypeVar("_T")

_SAME_ECHO_MS = 0.01
"""Echo times that differ by no more are one, written down with an error.

Scanners program echo times in steps of 1 us or more and write neighbours of one scan up to 1.4 us
apart, as in rordenlab/dcm2niix#543, whose author advises a tolerance. The closest echoes that
sequences acquire lie 100 us apart and more.
"""
_SAME_COSINE = 1e-3
_TURNED_DEGREES = 1.0
"""No scan has planes that differ by less than this, and by more than their rounding."""

_FEWEST_OF_A_GRID = 3
"""Slices that can be uneven."""


MAGNITUDE = "MAGNITUDE"
_COMPONENTS = {
    MAGNITUDE: "magnitude",
    "PHASE": "phase",
    "REAL": "real part",
    "IMAGINARY": "imaginary part",
}
"""Words for the values of ComplexImageComponent that describe one image; MIXED does not."""

_QUANTITIES = {
    **dict.fromkeys(("M", "MAGNITUDE"), "magnitude"),
    **dict.fromkeys(("P", "PHASE", "PHASE MAP", "PHASE_MAP"), "phase"),
    **dict.fromkeys(("R", "REAL"), "real part"),
    **dict.fromkeys(("I", "IMAGINARY"), "imaginary part"),
    **dict.fromkeys(("FIELD_MAP", "FIELD MAP", "FIELDMAP", "B0 MAP", "B0_MAP", "B0"), "field map"),
    **dict.fromkeys(("B1 MAP", "B1_MAP", "B1"), "B1 map"),
    **dict.fromkeys(("W", "WATER"), "water"),
    **dict.fromkeys(("F", "FAT"), "fat"),
    **dict.fromkeys(("IP", "IN_PHASE"), "in phase"),
    **dict.fromkeys(("OP", "OUT_PHASE", "OPP_PHASE", "OPPOSED_PHASE"), "opposed phase"),
    **dict.fromkeys(("ADC", "ADC_MAP"), "ADC"),
    **dict.fromkeys(("FA", "FRACTIONAL_ANISOTROPY"), "fractional anisotropy"),
    "TRACEW": "trace-weighted",
    **{f"{kind} MAP": f"{kind} map" for kind in ("T1", "T2", "T2_STAR", "R2", "R2_STAR")},
}
"""Quantities that values of an image type from the third on name; all others are add-ons.

PS3.3 C.8.3.1.1.1 and C.8.13.3.1.1, and what Siemens, Philips, GE and UIH write in their place.
"""
_PHILIPS = {"M": "magnitude", "P": "phase", "R": "real part", "I": "imaginary part"}
"""Letters before the name of the sequence, as in M_FFE, P_SE and SW_P_FFE."""


@dataclass(frozen=True, slots=True)
class Part:
    """Images of one series that may be a volume.

    frames: its images. kind: what distinguishes it from the other parts of the series, in words.
    notes: remarks on the grouping for the user. trouble: why it is unclear which volume they form,
    usually None.
    """

    frames: tuple[Frame, ...]
    kind: str = ""
    notes: tuple[str, ...] = ()
    trouble: str | None = None


def parts_of(frames: Iterable[Frame], fewest_slices: int) -> list[Part]:
    """Return images grouped by contents and orientation, in the order of acquisition.

    Images that also differ in an acquisition parameter are several parts if those of
    each value are a complete, even stack, and one part otherwise. If parts that show different
    things fill one even grid together, and one of them has fewer slices than a volume or lies
    incomplete between the slices of another, the scan was torn: they are one part with trouble.
    """
    in_order = sorted(frames, key=acquisition_key)
    parts = [part for alike in _alike(in_order) for part in _separated(alike)]
    parts = [part for near in _by_plane(parts) for part in _torn(near, fewest_slices)]
    positions = {id(frame): at for at, frame in enumerate(in_order)}
    parts.sort(key=lambda part: min(positions[id(frame)] for frame in part.frames))
    return _named(parts)


def acquisition_key(frame: Frame) -> tuple[float, float, str]:
    """Return a sort key for the order of acquisition, as far as headers give it."""
    return frame.moment.acquisition, frame.image, str(frame.file)


def quantity_of(contrast: Contrast) -> str:
    """Return what an image shows, in words; empty if its header does not say.

    An image type that names a computed quantity, such as a field map, is more exact than the
    component that it was computed from, which goes before the image type otherwise.
    """
    by_type = _by_image_type(contrast)
    by_component = _COMPONENTS.get(contrast.component.upper(), "")
    is_computed = by_type and by_type not in _COMPONENTS.values()
    return by_type if is_computed else by_component or by_type


def component_of(contrast: Contrast) -> str:
    """Value of ComplexImageComponent for a frame; magnitude if its header names none."""
    shown = quantity_of(contrast)
    return next((value for value, words in _COMPONENTS.items() if words == shown), MAGNITUDE)


def _by_image_type(contrast: Contrast) -> str:
    for flag in reversed(contrast.flags):
        if found := _QUANTITIES.get(flag):
            return found
        for part in flag.split("_")[:-1]:
            if found := _PHILIPS.get(part):
                return found
    return ""


def _alike(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Yield groups of images with the same contents and orientation, whatever else differs."""
    echoes = _echoes(frames)
    classes: dict[object, list[Frame]] = defaultdict(list)
    for frame in frames:
        contrast = frame.contrast
        key = (
            *(contrast.modality, quantity_of(contrast), echoes[contrast.echo]),
            *(contrast.echo_number, frame.reference),
        )
        classes[key].append(frame)
    for same in classes.values():
        yield from _grouped(same, _parallel)


def _separated(frames: Sequence[Frame]) -> list[Part]:
    """Return a part for each value of a parameter that separates volumes, else one part."""
    found = list(differing(frames))
    for parameter, groups in found:
        if parameter.is_apart(groups):
            return [part for group in groups for part in _separated(group)]
    notes = [
        f"its images differ in {_described(parameter, groups, frames)}; they are treated as one "
        "volume"
        for parameter, groups in found
        if parameter.is_worth_a_note(groups)
    ]
    return [Part(tuple(frames), notes=tuple(notes))]


def _described(
    parameter: Parameter, groups: Sequence[Sequence[Frame]], frames: Sequence[Frame]
) -> str:
    if parameter is not ADD_ONS:
        return parameter.described(frames)
    flags = [group[0].contrast.flags for group in groups]
    add_ons = sorted({flag for own in flags for flag in own if not all(flag in f for f in flags)})
    shares = ", ".join(str(len(group)) for group in groups)
    return f"their image type ({', '.join(add_ons)} on some, {shares} alike)"


def _echoes(frames: Iterable[Frame]) -> dict[float, float]:
    """Return the smallest echo time that counts as the same, by each echo time."""
    times = sorted({frame.contrast.echo for frame in frames})
    first = last = times[0] if times else 0.0
    found: dict[float, float] = {}
    for time in times:
        first = first if time - last <= _SAME_ECHO_MS else time
        found[time], last = first, time
    return found


def _parallel(one: Frame, other: Frame) -> bool:
    return all(
        abs(a - b) <= _SAME_COSINE for a, b in zip(one.orientation, other.orientation, strict=True)
    )


def _by_plane(parts: Sequence[Part]) -> Iterable[list[Part]]:
    def is_like(one: Part, other: Part) -> bool:
        a, b = one.frames[0], other.frames[0]
        return a.contrast.stack == b.contrast.stack and _angle(a, b) < _TURNED_DEGREES

    return _grouped(parts, is_like)


def _grouped(all_of_them: Iterable[_T], is_like: Callable[[_T, _T], bool]) -> list[list[_T]]:
    """Group elements, each with the first group whose first element it is like."""
    groups: list[list[_T]] = []
    for one in all_of_them:
        for group in groups:
            if is_like(group[0], one):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _torn(near: list[Part], fewest_slices: int) -> list[Part]:
    stacks = [part.frames for part in near]
    frames = tuple(chain.from_iterable(stacks))
    if len(near) == 1 or not are_disjoint(stacks) or not fill_a_grid(frames):
        return near
    count = max(places_of(frames)) + 1
    are_complete = all(map(fill_a_grid, stacks)) and cover_one_range(stacks)
    is_small = any(len(stack) < fewest_slices for stack in stacks)
    is_torn = not are_complete and any(_interleave(*pair) for pair in combinations(near, 2))
    if not (is_small or is_torn) or count < max(fewest_slices, _FEWEST_OF_A_GRID):
        return near
    trouble = f"its {count} slices share one grid but differ in {_differences(near)}"
    if are_complete:
        trouble += f"; lower setting min-slices to treat them as {len(near)} volumes"
    return [Part(frames, trouble=trouble)]


def _differences(parts: Sequence[Part]) -> str:
    firsts = [part.frames[0] for part in parts]
    echoes = sorted({frame.contrast.echo for frame in firsts})
    references = {frame.reference for frame in firsts}
    angle = max(_angle(firsts[0], frame) for frame in firsts)
    shown = dict.fromkeys(quantity_of(frame.contrast) or "unnamed" for frame in firsts)
    modalities = dict.fromkeys(frame.contrast.modality or "unnamed" for frame in firsts)
    numbers = {frame.contrast.echo_number for frame in firsts}
    found = [
        f"modality ({', '.join(modalities)})" if len(modalities) > 1 else "",
        f"what they show ({', '.join(shown)})" if len(shown) > 1 else "",
        f"echo time ({echoes[0]:g} to {echoes[-1]:g} ms)" if len(_echoes(firsts)) > 1 else "",
        f"echo number ({', '.join(sorted(numbers))})" if len(numbers) > 1 else "",
        f"frame of reference ({len(references)} of them)" if len(references) > 1 else "",
        f"orientation (by {angle:.2f} degrees)" if angle > degrees(_SAME_COSINE) else "",
        *(each.described(firsts) for each, _ in differing(firsts) if each in SETTINGS),
    ]
    return ", ".join(filter(None, found)) or "image type"


def _named(parts: list[Part]) -> list[Part]:
    """Return the parts named by what distinguishes them, or by the contents of a single one."""
    if len(parts) == 1:
        shown = quantity_of(parts[0].frames[0].contrast)
        is_plain = shown == "magnitude" or parts[0].trouble
        return [replace(parts[0], kind="" if is_plain else shown)]
    firsts = [part.frames[0] for part in parts]
    words = [_words(first) for first in firsts]
    words = [(*one, *more) for one, more in zip(words, names_of(firsts, words), strict=True)]
    varying = [len(set(column)) > 1 for column in zip(*words, strict=True)]
    references = list(dict.fromkeys(part.frames[0].reference for part in parts))
    named: list[Part] = []
    for part, found in zip(parts, words, strict=True):
        kind = [word for word, differs in zip(found, varying, strict=True) if differs and word]
        if not kind and len({part.frames[0].orientation for part in parts}) > 1:
            kind.append(f"orientation {_cosines(part.frames[0])}")
        elif sum(other == found for other in words) > 1 and len(references) == 1:
            kind.append(f"from {min(depths_of(part.frames)):.2f} mm on")
        if len(references) > 1:
            kind.append(f"frame of reference {references.index(part.frames[0].reference) + 1}")
        named.append(replace(part, kind=", ".join(kind)))
    return named


def _words(frame: Frame) -> tuple[str, ...]:
    """Return the words that may distinguish an image's part; only differing ones are shown."""
    contrast = frame.contrast
    shown = quantity_of(contrast)
    return (
        contrast.modality,
        shown,
        "" if shown else " ".join(contrast.flags),
        f"echo {contrast.echo_number}" if contrast.echo_number else "",
        f"echo time {contrast.echo:g} ms" if contrast.echo else "",
        f"stack {contrast.stack}" if contrast.stack else "",
        f"{_plane(frame)} plane",
    )


def _cosines(frame: Frame) -> str:
    return " ".join(f"{cosine:.3g}" for cosine in frame.orientation)


def _plane(frame: Frame) -> str:
    sizes = [abs(float(size)) for size in normal_of(frame)]
    names = ("sagittal", "coronal", "axial")
    along = max(range(3), key=sizes.__getitem__)
    turned = "" if sizes[along] > 0.999 else "oblique "
    turn = " ".join(f"{size:.2f}" for size in normal_of(frame))
    return f"{turned}{names[along]}" + (f" ({turn})" if turned else "")


def _interleave(one: Part, other: Part) -> bool:
    places = places_of([*one.frames, *other.frames])
    ours, theirs = places[: len(one.frames)], places[len(one.frames) :]
    return min(ours) < max(theirs) and min(theirs) < max(ours)


def _angle(one: Frame, other: Frame) -> float:
    """Return the larger of the angles between rows and between columns, in degrees."""
    pairs = [(one.orientation[at : at + 3], other.orientation[at : at + 3]) for at in (0, 3)]
    chords = [sqrt(sum((a - b) ** 2 for a, b in zip(*pair, strict=True))) for pair in pairs]
    return degrees(max(chords))  # which for small angles are the angles
