"""Window on the model's grid: what is cropped off it and padded around it, and the way back."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...engine.model.grid_window import GridWindow, WindowRule, WindowStep
from ...engine.network.graph import times
from ...engine.network.layers import FloatArray, Triple, triple
from ...engine.patch_grid import PatchPadding
from ..errors import PreparationError
from .patches import Box

Edges: TypeAlias = tuple[int, int]
"""First and last voxel (exclusive) along an axis."""

Foreground: TypeAlias = Callable[["PlacedWindow"], npt.NDArray[np.bool_]]
"""Callback that returns which voxels [D, H, W] of a window are above 0."""


@dataclass(frozen=True, slots=True)
class PlacedWindow:
    """Window on a grid, which it may crop and extend.

    grid: extents of the grid [D, H, W]. inside: part of the grid that is within the window. before,
    after: voxels of padding on both sides of that part. padding: their value. depends_on_rounding:
    whether rounding in the training code decides about a voxel more or less.
    """

    grid: Triple
    inside: tuple[Edges, Edges, Edges]
    before: Triple = (0, 0, 0)
    after: Triple = (0, 0, 0)
    padding: PatchPadding = 0.0
    depends_on_rounding: bool = False

    @property
    def extents(self) -> Triple:
        """Extents of the window."""
        sides = zip(self.inside, self.before, self.after, strict=True)
        return triple(before + stop - start + after for (start, stop), before, after in sides)

    @property
    def box(self) -> Box:
        """Part of the grid that is within the window."""
        return triple(slice(*edges) for edges in self.inside)

    @property
    def place(self) -> Box:
        """Part of the window that is within the grid."""
        sides = zip(self.inside, self.before, strict=True)
        return triple(slice(at, at + stop - start) for (start, stop), at in sides)

    @property
    def keeps_all(self) -> bool:
        """Whether nothing of the grid is cropped off."""
        return self.inside == triple((0, extent) for extent in self.grid)

    def cut(self, values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Fill an array [D, H, W] of the window's extents with values on the whole grid."""
        out[self.place] = values[self.box]
        sides = zip(self.before, self.after, strict=True)
        for axis, (before, after) in enumerate(sides):
            along = np.moveaxis(out, axis, 0)
            stop = len(along) - after
            is_edge = self.padding == "edge"
            along[:before] = along[before].copy() if is_edge else self.padding
            along[stop:] = along[stop - 1].copy() if is_edge else self.padding

    def rows(self, values: FloatArray, start: int, stop: int, fill: float) -> FloatArray:
        """Return rows [start, stop) along D of the whole grid, from values [D, H, W] in the window.

        fill: value outside the window.
        """
        made = np.full((stop - start, *self.grid[1:]), fill, np.float32)
        (first, last), *_ = self.inside
        low, high = max(start, first), min(stop, last)
        if low < high:
            _, height, width = self.box
            here = self.before[0] - first
            part = values[(slice(low + here, high + here), *self.place[1:])]
            made[low - start : high - start, height, width] = part
        return made

    def moved(self, edges: tuple[Edges, Edges, Edges]) -> "PlacedWindow":
        """Return the window from and to places in this one; beyond its ends it is padded.

        Raises PreparationError if nothing of the grid is left.
        """
        sides = zip(self.inside, self.before, self.after, edges, strict=True)
        each = [_moved(*side) for side in sides]
        if not all(start < stop for (start, stop), _, _ in each):
            raise PreparationError(
                f"The model crops the scan's grid of {times(self.grid)} voxels to its padding "
                "alone; check that the scan suits the model."
            )
        inside, before, after = zip(*each, strict=True)
        return replace(self, inside=triple(inside), before=triple(before), after=triple(after))


def _moved(inside: Edges, before: int, after: int, edges: Edges) -> tuple[Edges, int, int]:
    (start, stop), (low, high) = inside, edges
    length = before + stop - start + after
    kept = start + max(low - before, 0), stop - max(length - high - after, 0)
    return kept, max(before - low, 0), max(high - (length - after), 0)


def placed(window: GridWindow, grid: Triple, foreground: Foreground | None = None) -> PlacedWindow:
    """Return where a card's window lies on a grid [D, H, W].

    foreground: voxels above 0 of a window; None takes all, which gives the largest window that a
    scan can have. Raises PreparationError if nothing of a scan would be left.
    """
    made = PlacedWindow(grid, triple((0, extent) for extent in grid), padding=window.padding)
    for step in window.steps:
        boxes = triple((0, extent) for extent in made.extents)
        if step.is_measured and foreground is not None:
            boxes = _box(foreground(made))
        each = zip(made.extents, step.voxels, boxes, strict=True)
        made = made.moved(triple(_edges(step, *axis) for axis in each))
    return made


def _edges(step: WindowStep, extent: int, count: int, box: Edges) -> Edges:
    if step.is_measured:
        low, high = box[0] - count, box[1] + count
        return (low, high) if step.rule == "positive-padded" else (max(low, 0), min(high, extent))
    return RULES[step.rule](extent, count) if count else (0, extent)


def _centred(extent: int, wanted: int) -> Edges:
    """Return MONAI's centre: padding has its odd voxel behind, cropping keeps voxel extent // 2."""
    lacking = wanted - extent
    low = -(lacking // 2) if lacking > 0 else extent // 2 - wanted // 2
    return low, low + wanted


RULES: dict[WindowRule, Callable[[int, int], Edges]] = {
    "extents": _centred,
    "at-least": lambda extent, count: _centred(extent, max(extent, count)),
    "at-most": lambda extent, count: _centred(extent, min(extent, count)),
    "multiple": lambda extent, count: _centred(extent, -(-extent // count) * count),
    "before": lambda extent, count: (-count, extent),
    "after": lambda extent, count: (0, extent + count),
}
"""Edges of the next window within one of an extent, by the number of the rule along an axis."""


def _box(inside: npt.NDArray[np.bool_]) -> tuple[Edges, Edges, Edges]:
    if not inside.any():
        raise PreparationError(
            "The model crops scans to values above 0 on its grid, and the scan has none; check how "
            "it was saved."
        )
    found = [np.flatnonzero(inside.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    return triple((int(planes[0]), int(planes[-1]) + 1) for planes in found)
