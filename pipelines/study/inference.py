"""A prepared array through the network, by patches or as a whole, and the spread over flips."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import fsum
from typing import TypeVar

import numpy as np

from ...engine.cores import in_parallel
from ...engine.errors import DeviceMemoryError
from ...engine.generator import (
    AnyGenerator,
    PatchGenerator,
    ReadyBeforehand,
    VolumeGenerator,
    WindowStreaming,
)
from ...engine.network.layers import FloatArray, Triple, triple
from ...engine.options import Blend
from ...engine.patch_grid import (
    Kept,
    PatchGrid,
    PatchPadding,
    PatchWindow,
    Phase,
    Timing,
)
from ...engine.scaling import Stored, VoxelArray
from ..errors import PreparationError
from ..stopwatch import Stage, Stopwatch
from .geometry import Slab, memory_order, slabs
from .patches import (
    UNFLIPPED,
    BlendedSlab,
    Blender,
    Flip,
    PatchLayout,
    flipped,
    flipped_in_memory,
    patch_weights,
)
from .plan import PERCENT
from .statistics import extremes, level_of

Value = TypeVar("Value")

_BLEND = "blend"
"""Name of the thread that blends patches of a generator that does not."""

_STAGES: dict[Phase, Stage] = {
    "copy in": "copy",
    "cut": "blend",
    "compute": "infer",
    "blend": "blend",
    "copy out": "copy",
}


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Cutting of patches from an array, and their blending.

    layout: positions of the patches. blend: their weights where they overlap. padding: of patches
    that extend beyond the array. flip: how each patch is mirrored before the network, and back
    after it; its position stays the same.
    """

    layout: PatchLayout
    blend: Blend
    padding: PatchPadding
    flip: Flip = UNFLIPPED


def translate_array(
    source: Stored,
    target: Stored,
    generator: PatchGenerator,
    window: SlidingWindow,
    timer: Stopwatch,
    on_patches: Callable[[int], None],
) -> tuple[str, ...]:
    """Fill `target` with the generator's output for `source`, both [C, D, H, W].

    A generator that can cut and blend on its device does so if memory suffices; others get the
    patches one by one. on_patches: called with the number just done. Returns notes for the user:
    why a device that could blend did not. Errors of the generator pass through, and so does
    an interrupt; nothing is left behind. Raises PreparationError if a generator made values that
    are not finite and did not report it.
    """
    layout = window.layout
    for array in (source.values, target.values):
        if array.shape[1:] != layout.extents:
            raise ValueError(
                f"a patch layout of {layout.extents} does not fit an array of {array.shape}"
            )
    if not isinstance(generator, WindowStreaming):
        _patch_by_patch(source, target, generator, window, timer, on_patches)
        return ()
    has_begun = False

    def on_streamed(patches: int) -> None:
        nonlocal has_begun
        has_begun = True
        on_patches(patches)

    try:
        _stream(source, target, generator, window, timer, on_streamed)
        return ()
    except DeviceMemoryError as error:
        if has_begun:
            raise
        why = str(error)
    _patch_by_patch(source, target, generator, window, timer, on_patches)
    return (f"It was cut and blended on the host, which is slower. {why}",)


def _patch_by_patch(
    source: Stored,
    target: Stored,
    generator: PatchGenerator,
    window: SlidingWindow,
    timer: Stopwatch,
    on_patches: Callable[[int], None],
) -> None:
    """Run the network patch by patch; another thread blends each result during the next patch."""
    layout = window.layout
    blender = Blender(layout, generator.graph.out_channels, window.blend)
    cutter = Cutter(source, layout, window.padding)

    def blend(origin: Triple, result: FloatArray) -> tuple[float, float]:
        """Blend a result into the array; return when that began and ended."""
        start = timer.now()
        slab = blender.add(origin, result)
        if slab is not None:
            _store(slab, target)
        return start, timer.now()

    with ThreadPoolExecutor(1, _BLEND) as other:
        blending: Future[tuple[float, float]] | None = None
        for origin in layout:
            with timer.time("blend"):
                patch = flipped_in_memory(cutter.cut(origin), window.flip)
            with timer.time("infer"):
                [result] = flipped(generator(patch), window.flip)
            if blending:
                timer.add("blend", _BLEND, *blending.result())
            blending = other.submit(blend, origin, result)
            on_patches(1)
        if blending:
            timer.add("blend", _BLEND, *blending.result())


def _stream(
    source: Stored,
    target: Stored,
    generator: WindowStreaming,
    window: SlidingWindow,
    timer: Stopwatch,
    on_patches: Callable[[int], None],
) -> None:
    grid = window_grid(source.values, window.layout)
    plan = PatchWindow(
        extents=grid.extents,
        patch=grid.patch,
        origins=grid.origins,
        axes=grid.axes,
        flips=grid.flips,
        voxel_bytes=grid.voxel_bytes,
        weights=patch_weights(window.layout, window.blend, grid.axes, grid.flips),
        padding=window.padding,
        kept=_as_kept(window.layout, window.blend, grid),
        mirrored=window.flip,
    )
    source_view, target_view = (
        replace(array, values=_as_it_lies(array.values, plan)) for array in (source, target)
    )
    for timing in generator.run_window(source_view, plan, target_view, on_patches):
        count_timing(timer, timing)


def count_timing(timer: Stopwatch, timing: Timing) -> None:
    """Record the time of a device in the stopwatch."""
    track = timing.part if "copy" in timing.part else "card"
    timer.add(_STAGES[timing.part], track, timing.start, timing.stop)


def window_grid(array: VoxelArray, layout: PatchLayout) -> PatchGrid:
    """Return the patches of an array [C, D, H, W] along its axes as they lie in memory."""
    axes = memory_order(array[0])
    flips = triple(array.strides[1 + axis] < 0 for axis in range(3))
    origins = [
        tuple(origin - before for origin in row)
        for row, before in zip(layout.origins, layout.before, strict=True)
    ]
    mirrored = [
        tuple(extent - edge - origin for origin in reversed(row)) if flip else row
        for row, extent, edge, flip in zip(
            origins, layout.extents, layout.patch, flips, strict=True
        )
    ]
    return PatchGrid(
        extents=_picked(layout.extents, axes),
        patch=_picked(layout.patch, axes),
        origins=_picked(mirrored, axes),
        axes=axes,
        flips=_picked(flips, axes),
        voxel_bytes=array.itemsize,
    )


def _as_kept(layout: PatchLayout, blend: Blend, grid: PatchGrid) -> Kept | None:
    """Return the part of each patch that is blended, along the axes of a grid."""
    kept = layout.kept(blend)
    if kept is None:
        return None
    return triple(
        tuple((edge - stop, edge - start) for start, stop in reversed(kept[axis]))
        if flip
        else kept[axis]
        for axis, edge, flip in zip(grid.axes, grid.patch, grid.flips, strict=True)
    )


def _as_it_lies(array: VoxelArray, grid: PatchGrid) -> VoxelArray:
    """View as [C, ...] along the axes of a grid, so that the host neither transposes nor flips."""
    steps = tuple(slice(None, None, -1 if flip else None) for flip in grid.flips)
    return array.transpose(0, *(1 + axis for axis in grid.axes))[:, *steps]


def _picked(values: Sequence[Value], axes: Triple) -> tuple[Value, Value, Value]:
    return triple(values[axis] for axis in axes)


def _store(slab: BlendedSlab, target: Stored) -> None:
    """Store a slab row by row, so that no second slab is needed.

    It is empty if the rows that its patches finish are all in a border around the array.
    """
    if slab.values.size and not extremes(slab.values).is_finite:
        raise PreparationError(
            "The generator made values that are not finite; "
            "check the model, or translate again with setting precision=fp32."
        )
    for row in range(slab.values.shape[1]):
        target.store(slab.values[:, row], slab.start + row)


class Cutter:
    """Copies patches out of an array; the array itself is never padded."""

    def __init__(self, source: Stored, layout: PatchLayout, padding: PatchPadding) -> None:
        self._source = source
        self._layout = layout
        self._padding = padding
        is_padded = layout.padded != layout.extents
        values = source.beyond(padding) if is_padded else None
        self._values = None if values is None else values[:, None, None, None]

    def cut(self, origin: Triple) -> FloatArray:
        """Return a patch [1, C, D, H, W] of network intensity in its own memory."""
        part = self._layout.within_patch(origin)
        stored = self._source.values[:, *self._layout.within_volume(origin)]
        inside = self._source.scaling.forward(stored, np.empty(stored.shape, np.float32))
        if inside.shape[1:] == self._layout.patch:
            return inside[None]
        if self._values is not None:
            patch = np.empty((len(inside), *self._layout.patch), np.float32)
            patch[:] = self._values
            patch[:, *part] = inside
            return patch[None]
        widths = [(p.start, e - p.stop) for p, e in zip(part, self._layout.patch, strict=True)]
        mode = "edge" if self._padding == "edge" else "reflect"
        return np.pad(inside, [(0, 0), *widths], mode=mode)[None]


def translate_at_once(
    source: Stored,
    target: Stored,
    generator: VolumeGenerator,
    flip: Flip,
    timer: Stopwatch,
    on_percent: Callable[[int], None],
) -> None:
    """Fill `target` with the output of whole-volume inference for `source`, both [C, D, H, W].

    flip: how the volume is mirrored before the network, and back after it. on_percent: called with
    the percent just done. Errors of the generator pass through.
    """
    reported = 0

    def on_share(share: float) -> None:
        nonlocal reported
        percent = min(int(share * PERCENT), PERCENT - 1)
        if percent > reported:
            more, reported = percent - reported, percent
            on_percent(more)

    source_view, target_view = (
        replace(array, values=_mirrored(array.values, flip)) for array in (source, target)
    )
    for timing in generator.translate_volume(source_view, target_view, on_share):
        count_timing(timer, timing)
    on_percent(PERCENT - reported)


def make_ready(generator: AnyGenerator, extents: Triple) -> None:
    """Let a generator that can allocate memory for a volume (D, H, W) beforehand do so."""
    if isinstance(generator, ReadyBeforehand):
        generator.make_ready(extents)


def _mirrored(array: VoxelArray, flip: Flip) -> VoxelArray:
    if flip == UNFLIPPED:
        return array
    [view] = flipped(array[None], flip)
    return view


class SpreadMoments:
    """Mean and standard deviation of arrays that come one after another, in memory for two.

    They are updated array by array (West, Comm. ACM 22, 1979): where all arrays agree, the mean is
    their value and the deviation 0 to the last bit. The deviation is that of a sample: the squares
    are divided by one less than the number of arrays.

    mean, deviation: [D, H, W], memory for them with any values.
    """

    def __init__(self, mean: FloatArray, deviation: FloatArray) -> None:
        self.mean, self.deviation = mean, deviation
        self.count = 0

    def add(self, values: FloatArray) -> None:
        """Add an array [D, H, W]; until `end`, the deviation holds sums of squares."""
        self.count += 1

        def fill(slab: Slab) -> None:
            mean, squares = self.mean[slab], self.deviation[slab]
            if self.count == 1:
                mean[...] = values[slab]
                squares[...] = 0
                return
            change = values[slab] - mean
            mean += change / np.float32(self.count)
            change *= values[slab] - mean
            squares += change

        in_parallel(fill, slabs(values))

    def end(self) -> None:
        """Finish after two or more arrays."""

        def fill(slab: Slab) -> None:
            deviation = self.deviation[slab]
            deviation /= np.float32(self.count - 1)
            np.sqrt(deviation, out=deviation)

        in_parallel(fill, slabs(self.deviation))


def mean_in_foreground(map_values: FloatArray, source: Stored) -> float:
    """Return the mean of a map [D, H, W] over the foreground of the first scan of a study.

    source: the network's input [C, D, H, W].
    """
    view = source.values[0]
    level = level_of(Stored(source.values[:1], source.scaling))

    def measure(slab: Slab) -> tuple[int, float]:
        inside = source.scaling.forward(view[slab]) > level
        return int(np.count_nonzero(inside)), float(map_values[slab][inside].sum(dtype=np.float64))

    counts, sums = zip(*in_parallel(measure, slabs(view)), strict=True)
    return fsum(sums) / max(sum(counts), 1)
