"""A prepared array through the generator, patch by patch."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..engine.card import SmallVolumePadding
from ..engine.cpu import Generator, Sweeping
from ..engine.errors import DeviceMemoryError
from ..engine.graph import FloatArray, Triple
from ..engine.window import Grid, Part, Window
from ..io.volume import Empty
from .blending import Blender, Slab, patch_weights
from .orientation import memory_order
from .settings import Blend
from .stopwatch import Stage, Stopwatch
from .tiling import Tile, Tiling

Value = TypeVar("Value")

_STAGES: dict[Part, Stage] = {
    "copy in": "copy",
    "cut": "blend",
    "compute": "infer",
    "blend": "blend",
    "copy out": "copy",
}


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """How an array is gone over; padding: how one smaller than the patch grows."""

    tiling: Tiling
    blend: Blend
    padding: SmallVolumePadding


def translate_array(
    array: FloatArray,
    generator: Generator,
    window: SlidingWindow,
    watch: Stopwatch,
    on_tiles: Callable[[int], None],
    empty: Empty = np.empty,
) -> FloatArray:
    """What the generator makes of [C, D, H, W] of network intensity.

    A generator that can cut and blend on its device does so where there is room for it; to others
    the tiles are handed one by one. on_tiles: told how many more tiles are done. What the generator
    raises passes through, and so does an interrupt; nothing is left behind. empty: makes the array
    of the result.
    """
    tiling = window.tiling
    if array.shape[1:] != tiling.extents:
        raise ValueError(f"a tiling of {tiling.extents} does not fit an array of {array.shape}")
    channels = generator.graph.out_channels

    def new(extents: Triple) -> FloatArray:
        return empty((channels, *extents), np.float32)

    if isinstance(generator, Sweeping):
        with suppress(DeviceMemoryError):
            return _sweep(array, generator, window, watch, on_tiles, new)
    translated = new(tiling.extents)
    blender = Blender(tiling, channels, window.blend)
    cutter = _Cutter(array, tiling, window.padding)
    for tile in tiling:
        with watch.time("blend"):
            patch = cutter.cut(tile)
        with watch.time("infer"):
            [result] = generator(patch)
        with watch.time("blend"):
            slab = blender.add(tile, result)
            if slab is not None:
                _place(slab, translated)
        on_tiles(1)
    return translated


def _sweep(
    array: FloatArray,
    generator: Sweeping,
    window: SlidingWindow,
    watch: Stopwatch,
    on_tiles: Callable[[int], None],
    new: Callable[[Triple], FloatArray],
) -> FloatArray:
    """The result lies in memory as the array does, so neither is ever transposed there."""
    plan = _sweep_window(array, window)
    translated = new(plan.extents)
    seen = array.transpose(0, *(1 + axis for axis in plan.axes))
    for timing in generator.sweep(seen, plan, translated, on_tiles):
        lane = timing.part if "copy" in timing.part else "card"
        watch.add(_STAGES[timing.part], lane, timing.start, timing.stop)
    return translated.transpose(0, *(1 + plan.axes.index(axis) for axis in range(3)))


def _sweep_window(array: FloatArray, window: SlidingWindow) -> Window:
    grid = sweep_grid(array, window.tiling)
    return Window(
        extents=grid.extents,
        patch=grid.patch,
        origins=grid.origins,
        axes=grid.axes,
        weights=patch_weights(window.tiling, window.blend, grid.axes),
        padding=window.padding,
    )


def sweep_grid(array: FloatArray, tiling: Tiling) -> Grid:
    """Tiles of an array [C, D, H, W] along its axes as they lie in memory."""
    axes = memory_order(array[0])
    origins = [
        tuple(origin - before for origin in row)
        for row, before in zip(tiling.origins, tiling.before, strict=True)
    ]
    return Grid(
        extents=_picked(tiling.extents, axes),
        patch=_picked(tiling.patch, axes),
        origins=_picked(origins, axes),
        axes=axes,
    )


def _picked(values: Sequence[Value], axes: Triple) -> tuple[Value, Value, Value]:
    first, second, third = (values[axis] for axis in axes)
    return first, second, third


def _place(slab: Slab, translated: FloatArray) -> None:
    translated[:, slab.start : slab.start + slab.values.shape[1]] = slab.values


class _Cutter:
    """Copies patches out of an array; the array itself is never padded."""

    def __init__(self, array: FloatArray, tiling: Tiling, padding: SmallVolumePadding) -> None:
        self._array = array
        self._tiling = tiling
        self._padding = padding
        self._lowest = (
            array.min(axis=(1, 2, 3), keepdims=True)
            if padding == "minimum" and tiling.padded != tiling.extents
            else None
        )

    def cut(self, tile: Tile) -> FloatArray:
        """A patch [1, C, D, H, W] of its own memory."""
        inside = self._array[:, *self._tiling.within_volume(tile)]
        part = self._tiling.within_patch(tile)
        if inside.shape[1:] == self._tiling.patch:
            return inside.copy()[None]
        if self._lowest is not None:
            patch = np.empty((len(inside), *self._tiling.patch), np.float32)
            patch[:] = self._lowest
            patch[:, *part] = inside
            return patch[None]
        widths = [(p.start, e - p.stop) for p, e in zip(part, self._tiling.patch, strict=True)]
        mode = "edge" if self._padding == "edge" else "reflect"
        return np.pad(inside, [(0, 0), *widths], mode=mode)[None]
