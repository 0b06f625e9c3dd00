"""Description of a kernel launch."""

from collections.abc import Callable
from ctypes import Structure
from dataclasses import dataclass
from typing import TypeAlias

from ...network.layers import Triple
from ...options import Precision
from ..card_properties import CardProperties
from ..tensors import NUMBER_BYTES, VECTOR_BYTES

BLOCK = 256
"""Threads of a block unless there is a reason for another number."""

WARP = 32
"""Threads of a warp."""

_MOST_SHARED = 99 << 10
"""Most bytes of shared memory that a block takes, even if a GPU offers more, so that a layer has
the same form on all GPUs with Tensor Core instruction m16n8k16: each offers as much.
"""

MOST_WALKS = 2
"""Most concurrent depth loops per multiprocessor, for a block of the outer layers."""

OVERFLOW = "overflow"
"""Name of the int32 that becomes nonzero once a result was not finite."""


Addresses: TypeAlias = Callable[[str], int]
"""Device address of a tensor, table, constant, or one of the names above."""


def anywhere(_: str) -> int:
    """Return a dummy address, for launches that are only inspected and not queued."""
    return 1 << 12


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; source names the .cu file.

    cooperative: its blocks wait for each other, so all must be resident: the grid is cut to what
    fits on the GPU, along its first axis rather than its second. source, kernel: file and function.
    grid, block: blocks and threads along x, y and z. shared: bytes of dynamic shared memory per
    block. arguments: the kernel's one parameter. in_blocks: whether the patches are blocks of one
    volume, which further arguments describe.
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
    """Return the most bytes of shared memory that a block of the outermost layers takes."""
    return min(_MOST_SHARED, card.shared_per_block)


WARP_GROUP_COLUMNS = (128, 96, 64)
"""Columns of a block of the wgmma kernels of the outer layers."""


def warp_group_columns(width: int) -> int:
    """Return the columns of a block that leave its last block least empty; the wider on a tie."""
    return min(WARP_GROUP_COLUMNS, key=lambda columns: -(-width // columns) * columns)


def vectors(channels: int, precision: Precision) -> int:
    """Return the number of vectors per voxel."""
    return channels * NUMBER_BYTES[precision] // VECTOR_BYTES


def block_shape(channels: int, precision: Precision) -> tuple[int, int]:
    """Return the threads of a block along the channels, and along voxels."""
    across = min(vectors(channels, precision), 32)
    return across, BLOCK // across
