"""Slices that are tilted, uneven or incomplete, brought onto an upright grid of even spacing.

Linear, first within a slice, which takes the tilt out, then between the slices on both sides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...volume import AnyArray
from ..frames import Frame
from ..geometry import SliceGrid, Vector, normal_of

_MOST_GROWTH = 100
"""Limit of the pixels of an even grid, as a multiple of its slices' pixels: tilt may double them,
and a gap is filled, but a damaged position may give any distance."""

_UNMOVED = 0.01
"""Sideways offset in pixels that rounding of positions alone may cause."""


@dataclass(frozen=True, slots=True)
class EvenGrid:
    """An upright grid over a stack.

    frames: its slices in their new places; each has the instance of the source slice nearest to
    it. nearest: their indices. depths: of its slices, as in `SliceGrid`. shifts: (source slices,
    2), rows and columns by which the pixels of each source slice lie further along in it.
    """

    frames: tuple[Frame, ...]
    nearest: tuple[int, ...]
    depths: Vector
    shifts: Vector


def even_grid(frames: Sequence[Frame], grid: SliceGrid) -> EvenGrid:
    """Return the grid that covers all slices, spaced by their median distance.

    Raises ValueError if that has many times the pixels of the slices.
    """
    first, normal = frames[0], normal_of(frames[0])
    spacing = float(np.median(np.diff(grid.depths)))
    last = float(grid.depths[-1])
    along_columns, along_rows = np.reshape(first.orientation, (2, 3))
    between_rows, between_columns = first.spacing
    sideways = grid.origins - grid.origins[0] - np.outer(grid.depths, normal)
    shifts = np.stack(
        [sideways @ along_rows / between_rows, sideways @ along_columns / between_columns], axis=1
    )
    whole = np.rint(shifts)
    shifts = np.where(np.abs(shifts - whole) < _UNMOVED, whole, shifts)
    base = np.floor(shifts.min(axis=0))
    shifts -= base
    extra_rows, extra_columns = (float(extra) for extra in np.ceil(shifts.max(axis=0)))
    pixels = (first.rows + extra_rows) * (first.columns + extra_columns) * (last / spacing + 1)
    if not pixels <= _MOST_GROWTH * first.rows * first.columns * len(frames):
        raise ValueError(f"an even grid would have {pixels:.3g} pixels")
    depths: Vector = np.linspace(0.0, last, round(last / spacing) + 1, dtype=np.float64)
    origin = (
        grid.origins[0]
        + base[0] * between_rows * along_rows
        + base[1] * between_columns * along_columns
    )
    nearest = [int(np.abs(grid.depths - depth).argmin()) for depth in depths]
    placed = tuple(
        replace(
            frames[at],
            rows=first.rows + int(extra_rows),
            columns=first.columns + int(extra_columns),
            position=tuple(float(place) for place in origin + depth * normal),
        )
        for at, depth in zip(nearest, depths, strict=True)
    )
    return EvenGrid(placed, tuple(nearest), depths, shifts)


def resampled(slices: AnyArray, depths: Vector, even: EvenGrid) -> AnyArray:
    """Return slices [slice, row, column] at given depths on the even grid, in their own voxel type.

    Areas that no slice covers get the lowest value.
    """
    fill = slices.min()
    first = even.frames[0]
    result = np.full((len(even.frames), first.rows, first.columns), fill, slices.dtype)
    for values, out in zip(_interpolated(slices, depths, even, float(fill)), result, strict=True):
        if out.dtype.kind in "iu":
            np.rint(values, out=values)
        out[...] = values
    return result


def _interpolated(
    slices: AnyArray, depths: Vector, even: EvenGrid, fill: float
) -> Iterator[npt.NDArray[np.float32]]:
    first = even.frames[0]
    extents = first.rows, first.columns
    upright: dict[int, npt.NDArray[np.float32]] = {}
    for depth in map(float, even.depths):
        above = min(max(int(np.searchsorted(depths, depth)), 1), len(depths) - 1)
        for at in (above - 1, above):
            if at not in upright:
                upright[at] = _shifted(slices[at], even.shifts[at], extents, fill)
        upright = {at: pixels for at, pixels in upright.items() if at >= above - 1}
        share = (depth - depths[above - 1]) / (depths[above] - depths[above - 1])
        below = upright[above - 1]
        yield np.asarray(below + (upright[above] - below) * share, np.float32)


def _shifted(
    pixels: AnyArray, shift: Vector, extents: tuple[int, int], fill: float
) -> npt.NDArray[np.float32]:
    """Pixels moved by rows and columns, not below zero, within an array of these extents."""
    rows, columns = (int(whole) for whole in np.floor(shift))
    canvas = np.full(extents, fill, np.float32)
    canvas[rows : rows + pixels.shape[0], columns : columns + pixels.shape[1]] = pixels
    for axis, part in enumerate(shift - np.floor(shift)):
        if part:
            moved = np.roll(canvas, 1, axis)
            moved[(slice(None),) * axis + (0,)] = fill
            canvas += np.float32(part) * (moved - canvas)
    return canvas
