"""A prepared array through the generator at once, without tiles."""

from collections.abc import Callable
from dataclasses import replace

from ...engine.generator import AnyGenerator, ReadyBeforehand, VolumeGenerator
from ...engine.network.layers import Triple
from ...engine.scaling import Stored, VoxelArray
from ..stopwatch import Stopwatch
from .maps.flips import UNFLIPPED, Flip, flipped
from .plan import PERCENT
from .sliding_window import count_timing


def translate_at_once(
    source: Stored,
    target: Stored,
    generator: VolumeGenerator,
    flip: Flip,
    watch: Stopwatch,
    on_percent: Callable[[int], None],
) -> None:
    """Fill `target` with what the generator makes of `source`, both [C, D, H, W].

    flip: how the volume is mirrored before the network, and back after it. on_percent: told how
    many more percent are done. What the generator raises passes through.
    """
    told = 0

    def on_share(share: float) -> None:
        nonlocal told
        percent = min(int(share * PERCENT), PERCENT - 1)
        if percent > told:
            more, told = percent - told, percent
            on_percent(more)

    seen, made = (
        replace(array, values=_mirrored(array.values, flip)) for array in (source, target)
    )
    for timing in generator.translate_volume(seen, made, on_share):
        count_timing(watch, timing)
    on_percent(PERCENT - told)


def make_ready(generator: AnyGenerator, extents: Triple) -> None:
    """Let a generator that can take the memory for a volume (D, H, W) before that is there."""
    if isinstance(generator, ReadyBeforehand):
        generator.make_ready(extents)


def _mirrored(array: VoxelArray, flip: Flip) -> VoxelArray:
    if flip == UNFLIPPED:
        return array
    [view] = flipped(array[None], flip)
    return view
