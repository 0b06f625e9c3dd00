"""Where each tensor of a program lies in the one block of memory it lives in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A block needed from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Offset of each block, and bytes of the whole."""

    offsets: Mapping[str, int]
    bytes: int


def aligned(size: int) -> int:
    """Bytes rounded up to what every block starts at."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def arrange(lifetimes: Iterable[Lifetime]) -> Arena:
    """Offsets such that no two blocks that live at the same time overlap.

    Large blocks are placed first, each at the lowest offset free for all of its life: the greedy
    scheme of Pisarchyk and Lee, 2020, "Efficient memory management for deep neural net inference".
    """
    placed: list[tuple[int, Lifetime]] = []
    for block in sorted(lifetimes, key=lambda block: (-block.bytes, block.first, block.name)):
        at_once = (
            (offset, offset + aligned(other.bytes))
            for offset, other in placed
            if other.first <= block.last and block.first <= other.last
        )
        offset = 0
        for start, end in sorted(at_once):
            if offset + aligned(block.bytes) <= start:
                break
            offset = max(offset, end)
        placed.append((offset, block))
    offsets = {block.name: offset for offset, block in placed}
    return Arena(offsets, max((offset + aligned(b.bytes) for offset, b in placed), default=0))
