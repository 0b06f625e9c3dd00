"""A volume divided into blocks of one size, which the compiler treats as the patches of a batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm, prod

from ..network.layers import Triple, divided_up, multiplied, triple

_LONGEST, _STEPS = 128, (16, 20)
"""Largest extent of a block, and the two steps of one of which its extent is a multiple, unless the
network's stride is larger. Voxels of blocks past the end of a volume are wasted work: with
both steps, a few percent.
"""

_SHORTEST = 32
"""Smallest extent of a block unless the volume itself is shorter; smaller blocks do not fill a GPU.
"""

_BORDER = 8
"""Voxels added to a block's extent in its estimated cost, for the halo that is read again."""


_RUN, _MOST = 450_000, 8 << 20
"""Overhead of a run in voxels, and most voxels of a run: data between two steps of a run then stays
in the cache. Measured on an H200.
"""


_MOST_UNDIVIDED = 24 << 20
"""Most voxels of a volume whose low resolutions are processed undivided."""


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Blocks that cover a volume, next to each other from its first voxel on, in C order.

    The last ones along an axis may reach past the volume. extents: (D, H, W) of the volume, a
    multiple of the network's stride. block: extents of each block, also a multiple of it.
    """

    extents: Triple
    block: Triple

    @property
    def counts(self) -> Triple:
        """Blocks along D, H and W."""
        return divided_up(self.extents, self.block)

    @property
    def blocks(self) -> int:
        """Number of all blocks."""
        return prod(self.counts)

    @property
    def batch(self) -> int:
        """Blocks in one run, independent of any memory limit; the last run is filled up."""
        voxels = prod(self.block)
        offered = [batch for batch in (1, 2, 4, 8) if batch == 1 or batch * voxels <= _MOST]
        return min(offered, key=lambda batch: -(-self.blocks // batch) * (batch * voxels + _RUN))

    @property
    def undivided(self) -> "BlockGrid | None":
        """One block that covers the volume, for maps small enough to be left undivided."""
        block = multiplied(self.counts, self.block)
        is_one = self.blocks > 1 and prod(block) <= _MOST_UNDIVIDED
        return BlockGrid(self.extents, block) if is_one else None

    def volume_at(self, block: Triple) -> Triple:
        """Return the volume's extents at the resolution at which a block has extents `block`."""
        sizes = zip(self.extents, block, self.block, strict=True)
        return triple(extent * own // base for extent, own, base in sizes)

    def runs(self, batch: int, slowest: int = 0) -> "Iterator[BlockRun]":
        """Yield all blocks in runs of `batch`, from one end of the axis `slowest` to the other."""
        for row in self._rows(slowest):
            for first in range(0, len(row), batch):
                blocks = row[first : first + batch]
                yield BlockRun(blocks[0], len(blocks), row.step)

    def _rows(self, slowest: int) -> "Iterator[range]":
        """Yield the numbers of all blocks in rows, the blocks of a row adjacent along W."""
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
        """Return the blocks in whole runs, including those of the last run outside the volume."""
        return -(-self.blocks // batch) * batch


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks of a grid. first: number of the first one. count: how many.

    apart: difference between consecutive numbers.
    """

    first: int
    count: int
    apart: int = 1

    @property
    def numbers(self) -> range:
        """Numbers of the run's blocks."""
        return range(self.first, self.first + self.count * self.apart, self.apart)


@dataclass(frozen=True, slots=True)
class Margins:
    """Largest distances of the ends of a network's maps from the volume's end, in its voxels.

    beyond: of maps that end past it. short: of maps that end before it.
    """

    beyond: Triple = (0, 0, 0)
    short: Triple = (0, 0, 0)


_NO_MARGINS = Margins()


def grid_of(extents: Triple, stride: Triple, margins: Margins = _NO_MARGINS) -> BlockGrid:
    """Return the blocks of a volume (D, H, W) whose extents are multiples of the network's stride.

    They depend on nothing else but the margins of the network's maps, so results do not, either. A
    few sizes cover all volumes, because convolutions are tuned for each size. Blocks cover every
    map, and each of them holds voxels of every map.
    """
    sizes = zip(extents, stride, margins.beyond, margins.short, strict=True)
    block = triple(_block_extent(*along) for along in sizes)
    return BlockGrid(extents, block)


def _block_extent(extent: int, stride: int, beyond: int, short: int) -> int:
    steps = [lcm(stride, step) for step in _STEPS]
    longest = max(_LONGEST, steps[0])
    usual = {block for step in steps for block in range(step, longest + 1, step)}
    others = range(stride, longest + extent + beyond + stride, stride)  # of which one fits

    def count(block: int) -> int:
        return -(-(extent + beyond) // block)

    def cost(block: int) -> tuple[int, int]:
        return count(block) * (block + _BORDER), -block

    def fits(block: int) -> bool:
        is_long = block >= min(_SHORTEST, extent)
        return is_long and count(block) == -(-max(1, extent - short) // block)

    return min(filter(fits, usual), key=cost, default=0) or min(filter(fits, others), key=cost)
