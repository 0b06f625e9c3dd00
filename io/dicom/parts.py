"""Which images of a series belong to one volume, by what they show and how they are turned."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import degrees, sqrt
from typing import TypeVar

from .geometry import (
    are_disjoint,
    cover_one_range,
    depths_of,
    fill_a_grid,
    normal_of,
    places_of,
)
from .instance import Contrast, Frame
from .techniques import ADD_ONS, SETTINGS, Parameter, differing, names_of

_T = TypeVar("_T")

SAME_ECHO_MS = 0.01
"""Echo times that differ by no more are one, written down with an error.

Scanners program echo times in steps of 1 us or more and write neighbours of one scan up to 1.4 us
apart, as in rordenlab/dcm2niix#543, whose author advises a tolerance. The closest echoes that
sequences acquire lie 100 us apart and more.
"""
SAME_COSINE = 1e-3
TURNED_DEGREES = 1.0
"""No scan has planes that differ by less than this, and by more than their rounding."""

FEWEST_OF_A_GRID = 3
"""Slices that can be uneven."""


MAGNITUDE = "MAGNITUDE"
COMPONENTS = {
    MAGNITUDE: "magnitude",
    "PHASE": "phase",
    "REAL": "real part",
    "IMAGINARY": "imaginary part",
}
"""Values of ComplexImageComponent that say what one image shows, in words; MIXED says nothing."""

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
"""What values of an image type from the third on say an image shows; all others are add-ons.

PS3.3 C.8.3.1.1.1 and C.8.13.3.1.1, and what Siemens, Philips, GE and UIH write in their place.
"""
_PHILIPS = {"M": "magnitude", "P": "phase", "R": "real part", "I": "imaginary part"}
"""As in M_FFE, P_SE and SW_P_FFE, before the name of the sequence."""


@dataclass(frozen=True, slots=True)
class Part:
    """Images of one series that may be a volume.

    frames: its images. kind: what tells it from the other parts of the series, in words. notes:
    what a user should know of how it came about. trouble: why nobody can say which volume they are;
    None mostly.
    """

    frames: tuple[Frame, ...]
    kind: str = ""
    notes: tuple[str, ...] = ()
    trouble: str | None = None


def parts_of(frames: Iterable[Frame], fewest_slices: int) -> list[Part]:
    """Images apart by what they show and their orientation, in the order in which they were made.

    Images that differ in a parameter of their acquisition besides are several parts if those of
    each value are a complete, even stack, and one part otherwise. If parts that show different
    things fill one even grid together, and one of them has fewer slices than a volume or lies
    incomplete between the slices of another, the scan was torn: they are one part with trouble.
    """
    in_order = sorted(frames, key=when_made)
    parts = [part for alike in _alike(in_order) for part in _settled(alike)]
    parts = [part for near in _by_plane(parts) for part in _torn(near, fewest_slices)]
    made = {id(frame): at for at, frame in enumerate(in_order)}
    parts.sort(key=lambda part: min(made[id(frame)] for frame in part.frames))
    return _named(parts)


def when_made(frame: Frame) -> tuple[float, float, str]:
    """A key that sorts images by when they were acquired, as far as their headers tell."""
    return frame.moment.acquisition, frame.image, str(frame.file)


def quantity_of(contrast: Contrast) -> str:
    """What an image shows, in words; empty if its header does not say.

    An image type that names a computed quantity, such as a field map, is more exact than the
    component that it was computed from, which goes before the image type otherwise.
    """
    by_type = _by_image_type(contrast)
    by_component = COMPONENTS.get(contrast.component.upper(), "")
    is_computed = by_type and by_type not in COMPONENTS.values()
    return by_type if is_computed else by_component or by_type


def component_of(contrast: Contrast) -> str:
    """Value of ComplexImageComponent for a frame; magnitude if its header names none."""
    shown = quantity_of(contrast)
    return next((value for value, words in COMPONENTS.items() if words == shown), MAGNITUDE)


def _by_image_type(contrast: Contrast) -> str:
    for flag in reversed(contrast.flags):
        if found := _QUANTITIES.get(flag):
            return found
        for part in flag.split("_")[:-1]:
            if found := _PHILIPS.get(part):
                return found
    return ""


def _alike(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Images together that show the same in one orientation, whatever they differ in besides."""
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


def _settled(frames: Sequence[Frame]) -> list[Part]:
    """One part for each value of a parameter by which these images are several volumes, or one."""
    found = list(differing(frames))
    for parameter, groups in found:
        if parameter.is_apart(groups):
            return [part for group in groups for part in _settled(group)]
    notes = [
        f"its images differ in {_told(parameter, groups, frames)}; taken as one volume"
        for parameter, groups in found
        if parameter.is_worth_a_note(groups)
    ]
    return [Part(tuple(frames), notes=tuple(notes))]


def _told(parameter: Parameter, groups: Sequence[Sequence[Frame]], frames: Sequence[Frame]) -> str:
    if parameter is not ADD_ONS:
        return parameter.described(frames)
    flags = [group[0].contrast.flags for group in groups]
    add_ons = sorted({flag for own in flags for flag in own if not all(flag in f for f in flags)})
    shares = ", ".join(str(len(group)) for group in groups)
    return f"their image type ({', '.join(add_ons)} on some, {shares} alike)"


def _echoes(frames: Iterable[Frame]) -> dict[float, float]:
    """To each echo time the smallest that is the same."""
    times = sorted({frame.contrast.echo for frame in frames})
    first = last = times[0] if times else 0.0
    found: dict[float, float] = {}
    for time in times:
        first = first if time - last <= SAME_ECHO_MS else time
        found[time], last = first, time
    return found


def _parallel(one: Frame, other: Frame) -> bool:
    return all(
        abs(a - b) <= SAME_COSINE for a, b in zip(one.orientation, other.orientation, strict=True)
    )


def _by_plane(parts: Sequence[Part]) -> Iterable[list[Part]]:
    def is_like(one: Part, other: Part) -> bool:
        a, b = one.frames[0], other.frames[0]
        return a.contrast.stack == b.contrast.stack and _angle(a, b) < TURNED_DEGREES

    return _grouped(parts, is_like)


def _grouped(all_of_them: Iterable[_T], is_like: Callable[[_T, _T], bool]) -> list[list[_T]]:
    """Each with the first group whose first it is like."""
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
    if not (is_small or is_torn) or count < max(fewest_slices, FEWEST_OF_A_GRID):
        return near
    trouble = f"its {count} slices lie on one grid, but they differ in {_differences(near)}"
    if are_complete:
        trouble += f"; setting min-slices may take them as {len(near)} volumes"
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
        f"orientation (by {angle:.2f} degrees)" if angle > degrees(SAME_COSINE) else "",
        *(each.described(firsts) for each, _ in differing(firsts) if each in SETTINGS),
    ]
    return ", ".join(filter(None, found)) or "image type"


def _named(parts: list[Part]) -> list[Part]:
    """The parts with what tells them apart, if there are several, or what the one shows."""
    if len(parts) == 1:
        shown = quantity_of(parts[0].frames[0].contrast)
        is_plain = shown == "magnitude" or parts[0].trouble
        return [replace(parts[0], kind="" if is_plain else shown)]
    firsts = [part.frames[0] for part in parts]
    words = [_words(first) for first in firsts]
    words = [(*one, *more) for one, more in zip(words, names_of(firsts, words), strict=True)]
    telling = [len(set(column)) > 1 for column in zip(*words, strict=True)]
    references = list(dict.fromkeys(part.frames[0].reference for part in parts))
    named: list[Part] = []
    for part, told in zip(parts, words, strict=True):
        kind = [word for word, tells in zip(told, telling, strict=True) if tells and word]
        if not kind and len({part.frames[0].orientation for part in parts}) > 1:
            kind.append(f"orientation {_cosines(part.frames[0])}")
        elif sum(other == told for other in words) > 1 and len(references) == 1:
            kind.append(f"from {min(depths_of(part.frames)):.2f} mm on")
        if len(references) > 1:
            kind.append(f"frame of reference {references.index(part.frames[0].reference) + 1}")
        named.append(replace(part, kind=", ".join(kind)))
    return named


def _words(frame: Frame) -> tuple[str, ...]:
    """What may tell the part of an image from others, of which only what differs is said."""
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
    """Between the rows, or the columns, of two images; the larger, in degrees."""
    pairs = [(one.orientation[at : at + 3], other.orientation[at : at + 3]) for at in (0, 3)]
    chords = [sqrt(sum((a - b) ** 2 for a, b in zip(*pair, strict=True))) for pair in pairs]
    return degrees(max(chords))  # which for small angles are the angles
