"""Maps that take over each other's memory block by block, in place of a second map.

A pass reads a block and those around it, and writes the block's result where it has read before: a
few blocks further on, so that nothing is lost that a later run reads. The next pass goes the other
way, and ends where the first began.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..blocks import BlockGrid
from ..memory.plan import aligned
from ..steps import Pointwise
from ..tensors import Tensor
from .block_convolutions import BlockConvolution, target_of
from .passes import Pass


@dataclass(frozen=True, slots=True)
class RollingMaps:
    """Maps of blocks of one size, each of which is written over the one before it.

    names: in order. apart: bytes between the places of every other one. bytes: of all of them.
    """

    names: tuple[str, ...]
    apart: int
    bytes: int

    def offset(self, name: str) -> int:
        """Of a map in the memory of all; the pass that makes it starts at that end."""
        return 0 if self.names.index(name) % 2 else self.apart

    def starts_at_the_end(self, name: str) -> bool:
        """Whether the pass that makes a map goes through its blocks from the last one on."""
        number = self.names.index(name)
        return number > 0 and not number % 2


def rolling_maps(
    passes: Sequence[Pass], maps: Mapping[str, Tensor], grid: BlockGrid, batch: int
) -> list[RollingMaps]:
    """Those between whose first and last one all passes do nothing else with them.

    The first map of a row stands for itself, as the pass that makes it needs memory besides, so
    that it may have to leave; so does the last one, unless the pass that reads it needs none.
    """
    followers: dict[str, str] = {}
    for before, after in _followers(passes, maps):
        if after not in followers.values():
            followers[before] = after
    found: list[RollingMaps] = []
    for first in followers.keys() - set(followers.values()):
        row = [first]
        while row[-1] in followers:
            row.append(followers[row[-1]])
        if len(row) > 3:
            last = None if _is_read_alone(row[-1], passes, maps) else -1
            found += _with_memory(row[1:last], maps, grid, batch)
    return sorted(found, key=lambda one: one.names)


def _is_read_alone(name: str, passes: Sequence[Pass], maps: Mapping[str, Tensor]) -> bool:
    """Whether one pass reads a map, and no convolution makes another one there."""
    readers = [
        one
        for one in passes
        if name not in one.made and any(name in step.flow.read_names for step in one.steps)
    ]
    made = [
        target_of(step).name
        for one in readers
        for step in one.steps
        if isinstance(step, BlockConvolution)
    ]
    return len(readers) == 1 and not maps.keys() & set(made)


def _with_memory(
    names: Sequence[str], maps: Mapping[str, Tensor], grid: BlockGrid, batch: int
) -> Iterator[RollingMaps]:
    tensor = maps[names[0]]
    each = tensor.bytes // tensor.batch
    lag = blocks_before_lost(grid, batch)
    stored = grid.stored_blocks(batch)
    if 2 * lag < stored:
        apart = aligned(lag * each)
        yield RollingMaps(tuple(names), apart, apart + stored * each)


def blocks_before_lost(grid: BlockGrid, batch: int) -> int:
    """By how many blocks a pass that reads those around each may write behind what it reads.

    These are at most so many before and behind it; a run reads before it writes.
    """
    return grid.counts[1] * grid.counts[2] + grid.counts[2] + 1 + batch


def _followers(passes: Sequence[Pass], maps: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Maps with the one that the last pass to read them writes in the same blocks."""
    for number, one in enumerate(passes):
        if one.block is not None or one.is_whole:
            continue
        later = {
            name
            for other in passes[number + 1 :]
            for step in other.steps
            for name in step.flow.read_names
        }
        made = [maps[name] for name in one.made if name in maps]
        for step in one.steps:
            if not isinstance(step, Pointwise) or step.sampling is not None:
                continue
            source = step.source.tensor
            readers = [other for other in one.steps if source.name in other.flow.read_names]
            if source.name not in maps or source.name in later or readers != [step]:
                continue
            alike = [other for other in made if _alike(other, source) and other != step.target]
            if len(alike) == 1:
                yield source.name, alike[0].name


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.extents, one.channels, one.bytes) == (other.extents, other.channels, other.bytes)
