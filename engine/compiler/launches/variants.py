"""Variants of cutting the launch of a step into blocks, all of which come to the same bits.

Sums over voxels, as those of statistics, are taken in an order that follows the blocks: they have
no other variant.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..card_properties import CardProperties
from ..steps import Convolve, ConvTransposeToPatches, Pointwise, Step
from .convolutions import default_outputs
from .launch import Launch
from .passes import default_tile, other_tiles
from .steps import launches

_NARROWEST = 32
"""Channels that a block of a convolution makes at least."""

_SOMEWHERE = 1 << 12


@dataclass(frozen=True, slots=True)
class LaunchVariants:
    """The same step in several variants.

    source: the .cu file. key: by which the launch is known on a card. steps: by names that tell the
    variants apart; the first is the step as it was, launched by the card's default.
    """

    source: str
    key: str
    steps: Mapping[str, Step]

    @property
    def default(self) -> str:
        """Name of the first variant."""
        return next(iter(self.steps))


def launch_variants(step: Step, card: CardProperties) -> LaunchVariants | None:
    """The variants of a step that is not done by a plan of cuDNN's; None where there is but one."""
    variants = {variant_name(variant): variant for variant in _variants(step, card)}
    if len(variants) < 2:
        return None
    [launch] = launches(step, anywhere, card)
    variants[next(iter(variants))] = step
    return LaunchVariants(launch.source, _key(launch), variants)


def variant_name(step: Step) -> str:
    """What is chosen of a step's launch; nothing where it is the default."""
    match step:
        case Pointwise(tile=tile) if tile:
            runs = f", runs of {tile.run}" if tile.run > 1 else ""
            return f"{tile.rows} rows, {tile.columns} columns{runs}"
        case ConvTransposeToPatches(rows=rows) if rows:
            return f"{rows} rows"
        case Convolve(outputs=outputs) if outputs:
            return f"{outputs} channels"
        case _:
            return ""


def _variants(step: Step, card: CardProperties) -> Iterator[Step]:
    match step:
        case Pointwise():
            for tile in (default_tile(step, card), *other_tiles(step, card)):
                yield replace(step, tile=tile)
        case ConvTransposeToPatches():
            default = launches(step, anywhere, card)[0].arguments.rows
            for rows in (default, default // 2, 2 * default, 4 * default):
                if 0 < rows <= step.parts[0].source.extents[1] + 1:
                    yield replace(step, rows=rows)
        case Convolve(shape=shape) if not shape.is_depthwise:
            outputs = default_outputs(step)
            while outputs >= _NARROWEST:
                yield replace(step, outputs=outputs)
                outputs //= 2
        case _:
            pass


def anywhere(_: str) -> int:
    """The address of everything in launches that are looked at, and not queued."""
    return _SOMEWHERE


def _key(launch: Launch) -> str:
    parts = launch.kernel, launch.grid, launch.block, bytes(launch.arguments)
    return f"{launch.source} {hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"
