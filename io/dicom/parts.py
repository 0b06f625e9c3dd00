"""Which images of a series belong to one volume, by what they show and how they are turned."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, pairwise
from math import degrees, sqrt
from typing import TypeVar

from .geometry import SAME_PLACE_MM, are_even, depth_of, normal_of
from .instance import Contrast, Frame

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
"""As in M_FFE and P_SE, before the name of the sequence."""


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

    Parts whose slices fill one even grid together, and differ in add-ons of their image type only,
    are one. If they differ in more, and one of them would have fewer slices than a volume or lies
    between the slices of another, the scan was torn, and all of them are one part with trouble.
    """
    in_order = sorted(frames, key=when_made)
    parts = [part for alike in _by_add_ons(_split(in_order)) for part in _joined(alike)]
    parts = [part for near in _by_plane(parts) for part in _torn(near, fewest_slices)]
    made = {id(frame): at for at, frame in enumerate(in_order)}
    parts.sort(key=lambda part: min(made[id(frame)] for frame in part.frames))
    return _named(parts)


def when_made(frame: Frame) -> tuple[float, float, str]:
    """A key that sorts images by when they were acquired, as far as their headers tell."""
    return frame.moment.acquisition, frame.image, str(frame.file)


def quantity_of(contrast: Contrast) -> str:
    """What an image shows by its image type, in words; nothing where that is not told."""
    for flag in reversed(contrast.flags):
        first, _, rest = flag.partition("_")
        found = _QUANTITIES.get(flag) or (rest and _PHILIPS.get(first))
        if found:
            return found
    return ""


def _split(frames: Sequence[Frame]) -> list[Part]:
    echoes = _echoes(frames)
    classes: dict[object, list[Frame]] = defaultdict(list)
    for frame in frames:
        contrast = frame.contrast
        key = (
            *(contrast.modality, contrast.flags, echoes[contrast.echo], contrast.echo_number),
            *(contrast.stack, frame.reference),
        )
        classes[key].append(frame)
    return [Part(tuple(alike)) for same in classes.values() for alike in _grouped(same, _parallel)]


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


def _by_add_ons(parts: Sequence[Part]) -> Iterable[list[Part]]:
    """Parts together that differ in nothing but add-ons of their image type."""
    echoes = _echoes(part.frames[0] for part in parts)

    def is_like(one: Part, other: Part) -> bool:
        a, b = one.frames[0], other.frames[0]
        return (
            a.contrast.modality == b.contrast.modality
            and quantity_of(a.contrast) == quantity_of(b.contrast)
            and echoes[a.contrast.echo] == echoes[b.contrast.echo]
            and a.contrast.echo_number == b.contrast.echo_number
            and a.contrast.stack == b.contrast.stack
            and a.reference == b.reference
            and _parallel(a, b)
        )

    return _grouped(parts, is_like)


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


def _joined(alike: list[Part]) -> list[Part]:
    """One part if the parts fill a grid together that one of them alone does not."""
    frames = tuple(chain.from_iterable(part.frames for part in alike))
    if len(alike) == 1 or not _fill_a_grid(frames):
        return alike
    if not _apart(alike) and all(_fill_a_grid(part.frames) for part in alike):
        return alike
    flags = [part.frames[0].contrast.flags for part in alike]
    add_ons = sorted({flag for own in flags for flag in own if not all(flag in f for f in flags)})
    shares = ", ".join(str(len(part.frames)) for part in alike)
    note = f"its images differ in their image type ({', '.join(add_ons)} on some, {shares} alike)"
    return [Part(frames, notes=(f"{note}; taken as one volume",))]


def _torn(near: list[Part], fewest_slices: int) -> list[Part]:
    frames = tuple(chain.from_iterable(part.frames for part in near))
    if len(near) == 1 or not _apart(near) or not _fill_a_grid(frames):
        return near
    count = max(_places(frames)) + 1
    is_small = any(len(part.frames) < fewest_slices for part in near)
    is_torn = is_small or any(_interleave(*pair) for pair in combinations(near, 2))
    if not is_torn or count < max(fewest_slices, FEWEST_OF_A_GRID):
        return near
    trouble = f"its {count} slices lie on one grid, but they differ in {_differences(near)}"
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
    ]
    return ", ".join(filter(None, found)) or "image type"


def _named(parts: list[Part]) -> list[Part]:
    """The parts with what tells them apart, if there are several, or what the one shows."""
    if len(parts) == 1:
        shown = quantity_of(parts[0].frames[0].contrast)
        return [replace(parts[0], kind="" if shown == "magnitude" else shown)]
    words = [_words(part.frames[0]) for part in parts]
    telling = [len(set(column)) > 1 for column in zip(*words, strict=True)]
    references = list(dict.fromkeys(part.frames[0].reference for part in parts))
    named: list[Part] = []
    for part, told in zip(parts, words, strict=True):
        kind = [word for word, tells in zip(told, telling, strict=True) if tells and word]
        if not kind and len({part.frames[0].orientation for part in parts}) > 1:
            kind.append(f"orientation {_cosines(part.frames[0])}")
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


def _apart(parts: Sequence[Part]) -> bool:
    """Whether no two parts have an image at the same place."""
    places = _places([frame for part in parts for frame in part.frames])
    taken: dict[int, int] = {}
    owners = [at for at, part in enumerate(parts) for _ in part.frames]
    return all(
        taken.setdefault(place, owner) == owner for place, owner in zip(places, owners, strict=True)
    )


def _interleave(one: Part, other: Part) -> bool:
    places = _places([*one.frames, *other.frames])
    ours, theirs = places[: len(one.frames)], places[len(one.frames) :]
    return min(ours) < max(theirs) and min(theirs) < max(ours)


def _fill_a_grid(frames: Sequence[Frame]) -> bool:
    """Whether these images are even stacks of one size, with equally many at each place."""
    sizes = {(frame.rows, frame.columns) for frame in frames}
    places = Counter(_places(frames))
    if len(sizes) > 1 or len(set(places.values())) > 1 or len(places) < 2:
        return False
    depths = sorted(_depths(frames))[:: places[0]]
    return are_even(depths)


def _places(frames: Sequence[Frame]) -> list[int]:
    """To each image the number of its place along the stack, from 0."""
    depths = _depths(frames)
    order = sorted(range(len(frames)), key=depths.__getitem__)
    places, place = [0] * len(frames), 0
    for before, at in pairwise(order):
        place += depths[at] - depths[before] > SAME_PLACE_MM
        places[at] = place
    return places


def _depths(frames: Sequence[Frame]) -> list[float]:
    normal = normal_of(frames[0])
    return [depth_of(frame, normal) for frame in frames]


def _angle(one: Frame, other: Frame) -> float:
    """Between the rows, or the columns, of two images; the larger, in degrees."""
    pairs = [(one.orientation[at : at + 3], other.orientation[at : at + 3]) for at in (0, 3)]
    chords = [sqrt(sum((a - b) ** 2 for a, b in zip(*pair, strict=True))) for pair in pairs]
    return degrees(max(chords))  # which for small angles are the angles
