"""What a kernel launch consists of."""

from collections.abc import Callable
from ctypes import Structure
from dataclasses import dataclass
from typing import TypeAlias

from ...network.layers import Triple
from ...options import Precision
from ..card_properties import CardProperties
from ..tensors import NUMBER_BYTES, VECTOR_BYTES

BLOCK = 256
"""Threads of a block where nothing speaks for another number."""

WARP = 32
"""Threads of a warp."""

_MOST_SHARED = 99 << 10
"""Bytes of shared memory that a block takes at most, whatever more a card would give, so that a
layer has the same form on all cards with matrix units of m16n8k16: each gives as much.
"""

MOST_WALKS = 2
"""Walks through the depth at once on a multiprocessor at most, of a block of the outer layers."""

OVERFLOW = "overflow"
"""Name of the int32 that is not 0 once a result was not finite."""


Addresses: TypeAlias = Callable[[str], int]
"""Device address of a tensor, table, constant, or one of the names above."""


def anywhere(_: str) -> int:
    """Address of everything in launches that are looked at, and not queued."""
    return 1 << 12


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; source names the .cu file.

    cooperative: its blocks wait for each other, so all must run at once: the grid is cut to what
    the card has room for, along its first axis rather than its second. source, kernel: file and
    function. grid, block: blocks and threads along x, y and z. shared: bytes of dynamic shared
    memory a block. arguments: the kernel's one parameter. in_blocks: whether the patches are blocks
    of one volume, of which the arguments tell more.
    """

    source: str
    kernel: str
    grid: Triple
    block: Triple
    shared: int
    arguments: Structure
    cooperative: bool = False
    in_blocks: bool = False


def most_shared(card: CardProperties) -> int:
    """Bytes of shared memory that a block of the outermost layers takes at most."""
    return min(_MOST_SHARED, card.shared_per_block)


WARP_GROUP_COLUMNS = (128, 96, 64)
"""Columns of a block of the wgmma kernels of the outer layers."""


def warp_group_columns(width: int) -> int:
    """Columns of a block that leave the least of its last one empty; the wider costs less."""
    return min(WARP_GROUP_COLUMNS, key=lambda columns: -(-width // columns) * columns)


def vectors(channels: int, precision: Precision) -> int:
    """Vectors of a voxel."""
    return channels * NUMBER_BYTES[precision] // VECTOR_BYTES


def block_shape(channels: int, precision: Precision) -> tuple[int, int]:
    """Threads of a block along the channels, and beside each other."""
    across = min(vectors(channels, precision), 32)
    return across, BLOCK // across
