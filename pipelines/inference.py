"""A prepared array through the generator, patch by patch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..engine.card import SmallVolumePadding
from ..engine.cpu import Generator
from ..engine.graph import FloatArray
from .blending import Blender, Slab
from .settings import Blend
from .stopwatch import Stopwatch
from .tiling import Tile, Tiling


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
    on_tile: Callable[[], None],
) -> FloatArray:
    """What the generator makes of [C, D, H, W] of network intensity, one tile after another.

    on_tile: called after each tile. What the generator raises passes through, and so does an
    interrupt; nothing is left behind.
    """
    tiling = window.tiling
    if array.shape[1:] != tiling.extents:
        raise ValueError(f"a tiling of {tiling.extents} does not fit an array of {array.shape}")
    channels = generator.graph.out_channels
    translated = np.empty((channels, *tiling.extents), np.float32)
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
        on_tile()
    return translated


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
