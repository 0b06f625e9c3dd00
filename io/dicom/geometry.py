"""The grid that a stack of slices forms, from their own positions and orientations alone.

DICOM PS3.3 C.7.6.2.1.1 gives the place of a slice's pixels; slice thickness, slice location and
instance numbers are never used.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..volume import LPS_TO_RAS, Affine
from .frames import Frame

Vector: TypeAlias = npt.NDArray[np.float64]

SAME_PLACE_MM = 1e-3
"""Slices closer than this along their normal count as one place."""
_UNEVEN_SHARE, _UNEVEN_MM = 0.05, 0.1
"""Tolerance of a slice's place in an even stack: a share of the spacing, and at most so many
millimetres. Rounded positions in headers stay well below."""
_GAP_FROM = 1.5
"""Spacings of the stack between two slices from which on a slice is missing there."""
_SHIFT_NOISE_MM = 0.01
"""Sideways shift over the whole stack that comes from rounded positions; the stack is upright."""
_NEARLY = 1.05
"""Distance in spacings by which an even stack may end before the range that several share."""
_SHIFT_PIXELS = 0.5
"""Pixels that slices may shift sideways over the whole stack before that counts as tilt."""


@dataclass(frozen=True, slots=True)
class SliceGrid:
    """Place of a stack of slices.

    affine: (4, 4), RAS+, of voxels indexed [column, row, slice]. depths: each slice's place along
    the normal, in millimetres from the first. origins: (slices, 3), first pixels in LPS+.
    trouble: why the stack is not an even, upright grid, with the figures, or None.
    curable: whether resampling helps against that.
    """

    affine: Affine
    depths: Vector
    origins: Vector
    trouble: str | None
    curable: bool = True


def normal_of(frame: Frame) -> Vector:
    """Unit normal of a slice in LPS+; slices are stacked along it."""
    row, column = np.reshape(frame.orientation, (2, 3))
    normal = np.cross(row, column)
    return normal / (np.linalg.norm(normal) or 1.0)


def depth_of(frame: Frame, normal: Vector) -> float:
    """Place of a slice along a normal, in millimetres."""
    return float(np.dot(frame.position, normal))


def bad_frames(frames: Iterable[Frame]) -> str | None:
    """Return why these slices have no common geometry, in words; None if they have one."""
    for orientation in {frame.orientation for frame in frames}:
        row, column = np.reshape(orientation, (2, 3))
        if trouble := _bad_axes(row, column):
            return f"{trouble} ({', '.join(f'{cosine:g}' for cosine in orientation)})"
    for height, width in {frame.spacing for frame in frames}:
        if height <= 0 or width <= 0:
            return f"its pixels are {width:g} x {height:g} mm"
    return None


def grid_of(frames: Sequence[Frame]) -> SliceGrid:
    """Return the grid of at least two slices, sorted by depth, that share size and orientation."""
    first = frames[0]
    normal = normal_of(first)
    origins = np.array([frame.position for frame in frames], dtype=np.float64)
    depths = (origins - origins[0]) @ normal
    step = (origins[-1] - origins[0]) / (len(frames) - 1)
    upright = normal * depths[-1] / (len(frames) - 1)
    if np.linalg.norm(step - upright) * (len(frames) - 1) <= _SHIFT_NOISE_MM:
        step = upright
    affine = np.eye(4)
    row, column = np.reshape(first.orientation, (2, 3))
    between_rows, between_columns = first.spacing
    affine[:3, 0] = row * between_columns
    affine[:3, 1] = column * between_rows
    affine[:3, 2] = step
    affine[:3, 3] = origins[0]
    incurable = _bad_axes(row, column)
    trouble = incurable or _unevenness(depths) or _shift(origins, normal, first)
    return SliceGrid(LPS_TO_RAS @ affine, depths, origins, trouble, incurable is None)


def fill_a_grid(frames: Sequence[Frame]) -> bool:
    """Return whether these images are even stacks of one size, with equally many at each place."""
    sizes = {(frame.rows, frame.columns) for frame in frames}
    places = Counter(places_of(frames))
    if len(sizes) > 1 or len(set(places.values())) > 1 or len(places) < 2:
        return False
    depths = sorted(depths_of(frames))[:: places[0]]
    return are_even(depths)


def are_disjoint(stacks: Sequence[Sequence[Frame]]) -> bool:
    """Return whether no two stacks have an image at the same place."""
    places = places_of([*chain.from_iterable(stacks)])
    taken: dict[int, int] = {}
    owners = [at for at, stack in enumerate(stacks) for _ in stack]
    return all(
        taken.setdefault(place, owner) == owner for place, owner in zip(places, owners, strict=True)
    )


def cover_one_range(stacks: Sequence[Sequence[Frame]]) -> bool:
    """Return whether each even stack reaches from one end of all of them to the other."""
    spans = _spans(stacks)
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    reach = [_NEARLY * slice_distance(stack) for stack in stacks]
    return all(
        start <= first + own and end >= last - own
        for (start, end), own in zip(spans, reach, strict=True)
    )


def overlap(stacks: Sequence[Sequence[Frame]]) -> bool:
    """Return whether any two stacks share a part of their range."""
    return all(
        max(one[0], other[0]) < min(one[1], other[1])
        for one, other in combinations(_spans(stacks), 2)
    )


def slice_distance(frames: Sequence[Frame]) -> float:
    """Millimetres between the places of an even stack."""
    depths = depths_of(frames)
    return (max(depths) - min(depths)) / max(max(places_of(frames)), 1)


def places_of(frames: Sequence[Frame]) -> list[int]:
    """Return the number of each image's place along the stack, from 0."""
    depths = depths_of(frames)
    order = sorted(range(len(frames)), key=depths.__getitem__)
    places, place = [0] * len(frames), 0
    for before, at in pairwise(order):
        place += depths[at] - depths[before] > SAME_PLACE_MM
        places[at] = place
    return places


def depths_of(frames: Sequence[Frame]) -> list[float]:
    """Place of each image along the normal of the first, in millimetres."""
    normal = normal_of(frames[0])
    return [depth_of(frame, normal) for frame in frames]


def _bad_axes(row: Vector, column: Vector) -> str | None:
    lengths = np.linalg.norm(row), np.linalg.norm(column)
    if np.allclose(lengths, 1.0, atol=1e-3) and abs(np.dot(row, column)) < 1e-3:
        return None
    return "its orientation vectors are not perpendicular"


def _unevenness(depths: Vector) -> str | None:
    distances = np.diff(depths)
    spacing = float(np.median(distances))
    gaps = np.flatnonzero(distances > _GAP_FROM * spacing)
    missing = int(np.rint(distances[gaps] / spacing - 1).sum())
    if missing and _is_even(_without_gaps(distances, spacing), spacing):
        at = int(gaps[0])
        return (
            f"{missing} of {len(depths) + missing} slices are missing, the first after slice "
            f"{at + 1} (a gap of {distances[at]:.3f} mm instead of {spacing:.3f} mm)"
        )
    if not are_even(depths):
        return (
            f"its slices are unevenly spaced, {distances.min():.3f} to {distances.max():.3f} mm "
            f"apart (median {spacing:.3f} mm)"
        )
    return None


def are_even(depths: Sequence[float] | Vector) -> bool:
    """Return whether slices at these sorted places are evenly spaced."""
    distances = np.diff(depths)
    return _is_even(distances, float(distances.mean()))


def _without_gaps(distances: Vector, spacing: float) -> Vector:
    return distances - np.rint(distances / spacing - 1) * spacing


def _is_even(distances: Vector, spacing: float) -> bool:
    places = np.cumsum(distances)
    even = np.arange(1, len(distances) + 1) * (places[-1] / len(distances))
    return bool(np.abs(places - even).max() <= min(_UNEVEN_SHARE * spacing, _UNEVEN_MM))


def _shift(origins: Vector, normal: Vector, first: Frame) -> str | None:
    along = np.outer((origins - origins[0]) @ normal, normal)
    sideways = origins - origins[0] - along
    allowed = _SHIFT_PIXELS * min(first.spacing)
    total, reach = float(np.linalg.norm(sideways[-1])), float(np.linalg.norm(along[-1]))
    line = np.linspace(0.0, 1.0, len(origins))[:, None] * sideways[-1]
    off_line = float(np.linalg.norm(sideways - line, axis=1).max())
    if off_line > allowed:
        return f"its slices are shifted in-plane relative to each other by up to {off_line:.3f} mm"
    if total > allowed:
        angle = np.degrees(np.arctan2(total, reach))
        return f"its slices are tilted by {angle:.2f} degrees (gantry tilt)"
    return None


def _spans(stacks: Sequence[Sequence[Frame]]) -> list[tuple[float, float]]:
    """First and last place of each stack, in millimetres along one normal."""
    normal = normal_of(stacks[0][0])
    found = [[depth_of(frame, normal) for frame in stack] for stack in stacks]
    return [(min(depths), max(depths)) for depths in found]
