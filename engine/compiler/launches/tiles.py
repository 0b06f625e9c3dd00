"""How a pass over voxels is cut into blocks: as is usual on a card, and otherwise."""

from collections.abc import Iterator

from ...network.layers import Downsample, Upsample
from ..card_properties import CardProperties
from ..steps import PassTile, Pointwise
from .launch import block_shape, vectors

_ROW_BLOCKS = 32
"""Blocks for each multiprocessor that the rows of a pass are spread over, at most."""

_WIDE_BLOCK, _NARROW_BLOCK, _AT_ONCE = 320, 64, 2
"""Of pointwise.cu: threads of a block at most and at least, and voxels that each reads at once."""

_LONGEST_RUN, _THREADS = 8, 1024
"""Voxels of a run, as long as each multiprocessor has so many threads by that."""


def usual_tile(step: Pointwise, card: CardProperties) -> PassTile:
    """As is good on most cards."""
    depth, height, width = step.target_extents
    rows = -(-depth * height // (_ROW_BLOCKS * card.multiprocessors))
    run = _run(step, card) if is_blended(step) else 1
    across, _ = block_shape(step.source.channels, step.target.precision)
    return PassTile(rows, _columns(across, width, run if is_blended(step) else _AT_ONCE), run)


def other_tiles(step: Pointwise, card: CardProperties) -> Iterator[PassTile]:
    """What may be faster, not all of it different."""
    usual, width = usual_tile(step, card), step.target_extents[2]
    across, _ = block_shape(step.source.channels, step.target.precision)

    def tile(rows: float, columns: float, run: float = 1) -> PassTile:
        run = max(1, int(usual.run * run))
        most = min(_WIDE_BLOCK // across, -(-width // run))
        wanted = max(int(usual.columns * columns), _NARROW_BLOCK // across)
        return PassTile(max(1, int(usual.rows * rows)), min(most, wanted), run)

    yield from (tile(2, 1), tile(0.5, 1), tile(1, 0.5), tile(1, 2))
    if is_blended(step):
        yield from (tile(1, 2, 0.5), tile(1, 1, 2))
    else:
        yield from (tile(4, 1), tile(2, 0.5), tile(2, 2))


def is_blended(step: Pointwise) -> bool:
    """Whether a voxel of the target lies between those that it is made of."""
    match step.sampling:
        case Downsample():
            return True
        case Upsample(mode):
            return mode == "trilinear"
        case _:
            return False


def _run(step: Pointwise, card: CardProperties) -> int:
    depth, height, width = step.target_extents
    beside = depth * height * step.patches.count
    beside *= vectors(step.source.channels, step.target.precision)
    run = _LONGEST_RUN
    while run > 1 and beside * -(-width // run) < _THREADS * card.multiprocessors:
        run //= 2
    return run


def _columns(across: int, width: int, each: int) -> int:
    """Columns of a block such that whole blocks cover a row with little to spare."""
    turns = 1
    while (columns := -(-width // (each * turns))) * across > _WIDE_BLOCK:
        turns += 1
    return max(columns, _NARROW_BLOCK // across)
