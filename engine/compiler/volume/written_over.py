"""Maps in host memory that are written over those that the same pass is the last to read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..blocks import BlockGrid
from ..memory.plan import Lifetime, aligned
from .rolling import blocks_before_lost


@dataclass(frozen=True, slots=True)
class WrittenOver:
    """A map in the memory of another. before, after: their names. shift: bytes between places."""

    before: str
    after: str
    shift: int


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """How a pass goes through the blocks of a grid.

    grid: the volume's. batch: blocks in a run. backward: whether it begins with the last one.
    """

    grid: BlockGrid
    batch: int
    backward: bool


def written_over(
    before: Lifetime, after: Lifetime, order: BlockOrder, *, by_copies: bool
) -> WrittenOver | None:
    """Where a map may be written that a pass makes of another block by block.

    by_copies: whether each run reads copies of its own blocks; else it may read those around, too.
    None where memory of its own takes no more.
    """
    if by_copies and before.bytes == after.bytes:
        return WrittenOver(before.name, after.name, 0)
    stored = order.grid.stored_blocks(order.batch)
    each, other = before.bytes // stored, after.bytes // stored
    # What is written stays, up to the last block, behind the first one that is still to be read.
    ahead = stored * max(0, each - other if order.backward else other - each)
    shift = aligned(blocks_before_lost(order.grid, order.batch) * each + ahead)
    if shift >= min(before.bytes, after.bytes):
        return None
    return WrittenOver(before.name, after.name, shift if order.backward else -shift)


@dataclass(frozen=True, slots=True)
class HostRow:
    """Maps that are written over each other.

    lifetime: of the memory of all. offsets: of each map in it.
    """

    lifetime: Lifetime
    offsets: dict[str, int]


def rows_of(away: Sequence[Lifetime], over: Sequence[WrittenOver]) -> Iterator[HostRow]:
    """All maps in host memory, those by themselves as rows of one."""
    followers = {one.before: one for one in over}
    firsts = {one.name for one in away} - {one.after for one in over}
    lifetimes = {one.name: one for one in away}
    for name in sorted(firsts):
        places = {name: 0}
        last = name
        while last in followers:
            link = followers[last]
            places[link.after] = places[last] + link.shift
            last = link.after
        lowest = min(places.values())
        row = [lifetimes[each] for each in places]
        size = max(places[one.name] + one.bytes for one in row) - lowest
        yield HostRow(
            Lifetime(name, size, row[0].first, row[-1].last),
            {each: place - lowest for each, place in places.items()},
        )
