"""A volume cut into blocks of one size, which the compiler takes for the patches of a batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm, prod

from ..network.layers import Triple, triple

_LONGEST, _STEPS = 128, (16, 20)
"""Extent of a block at most, and of which of two it is a multiple, unless the network's stride is
more. What blocks reach past a volume is computed for nothing: with both, a few percent of it.
"""

_SHORTEST = 32
"""Of a block, where the volume is not shorter itself; smaller ones do not fill a card."""

_BORDER = 8
"""Voxels by which a block costs more than it holds: those around it that are read again."""


_RUN, _MOST = 450_000, 8 << 20
"""What a run costs besides its blocks, in voxels of them, and voxels of a run at most: what lies
between two steps of a run then stays in the cache. Measured on an H200.
"""


_MOST_UNDIVIDED = 24 << 20
"""Voxels of a volume at most whose low resolutions are undivided."""


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Blocks that cover a volume, side by side from its first voxel on, in C order.

    The last ones along an axis may reach past the volume. extents: (D, H, W) of the volume, a
    multiple of the network's stride. block: of each block, as well.
    """

    extents: Triple
    block: Triple

    @property
    def counts(self) -> Triple:
        """Blocks along D, H and W."""
        sizes = zip(self.extents, self.block, strict=True)
        return triple(-(-extent // block) for extent, block in sizes)

    @property
    def blocks(self) -> int:
        """All of them."""
        return prod(self.counts)

    @property
    def batch(self) -> int:
        """Blocks in one run, which no limit of memory changes; the last run is filled up."""
        voxels = prod(self.block)
        offered = [batch for batch in (1, 2, 4, 8) if batch == 1 or batch * voxels <= _MOST]
        return min(offered, key=lambda batch: -(-self.blocks // batch) * (batch * voxels + _RUN))

    @property
    def undivided(self) -> "BlockGrid | None":
        """One block that holds all of them, for maps small enough to be left undivided.

        None for a large volume, and for one of a single block.
        """
        sizes = zip(self.counts, self.block, strict=True)
        block = triple(count * size for count, size in sizes)
        is_one = self.blocks > 1 and prod(block) <= _MOST_UNDIVIDED
        return BlockGrid(self.extents, block) if is_one else None

    def volume_at(self, block: Triple) -> Triple:
        """Extents of the volume at the resolution at which a block has these."""
        sizes = zip(self.extents, block, self.block, strict=True)
        return triple(extent * own // base for extent, own, base in sizes)

    def runs(self, batch: int, slowest: int = 0) -> "Iterator[BlockRun]":
        """All blocks, so many at once, from one end of the axis `slowest` to the other."""
        for row in self._rows(slowest):
            for first in range(0, len(row), batch):
                blocks = row[first : first + batch]
                yield BlockRun(blocks[0], len(blocks), row.step)

    def _rows(self, slowest: int) -> "Iterator[range]":
        """Numbers of all blocks, of which those along W follow each other."""
        planes, height, width = self.counts
        match slowest:
            case 0:
                yield range(self.blocks)
            case 1:
                for row in range(height):
                    for plane in range(planes):
                        first = (plane * height + row) * width
                        yield range(first, first + width)
            case _:
                for column in range(width):
                    yield range(column, self.blocks, width)

    def stored_blocks(self, batch: int) -> int:
        """Blocks in whole runs, of which the last may have some that are none of the volume."""
        return -(-self.blocks // batch) * batch


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks of a grid. first: number of the first one. count: how many.

    apart: from each number to the next one.
    """

    first: int
    count: int
    apart: int = 1

    @property
    def numbers(self) -> range:
        """Of its blocks."""
        return range(self.first, self.first + self.count * self.apart, self.apart)


def grid_of(extents: Triple, stride: Triple) -> BlockGrid:
    """The blocks of a volume (D, H, W) of multiples of the network's stride.

    They depend on nothing else, so that a result does not, either. Few sizes serve all volumes:
    convolutions are tuned for each.
    """
    sizes = zip(extents, stride, strict=True)
    return BlockGrid(extents, triple(_block_extent(extent, step) for extent, step in sizes))


def _block_extent(extent: int, stride: int) -> int:
    steps = [lcm(stride, step) for step in _STEPS]
    longest = max(_LONGEST, steps[0])
    offered = {block for step in steps for block in range(step, longest + 1, step)}

    def cost(block: int) -> tuple[int, int]:
        return -(-extent // block) * (block + _BORDER), -block

    return min((block for block in offered if block >= min(_SHORTEST, extent)), key=cost)
