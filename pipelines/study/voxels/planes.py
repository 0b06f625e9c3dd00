"""Large arrays a few planes at a time."""

from collections.abc import Iterator
from typing import TypeAlias

from ....engine.network.layers import Triple
from ....io.volume import AnyArray
from .orientation import memory_order

Slab: TypeAlias = tuple[slice, ...]

_VOXELS = 1 << 19
"""Handled at once; a few times their float64 copy is all the memory that a step takes, and that
stays near a processor's caches."""


def slabs(source: AnyArray) -> Iterator[Slab]:
    """Parts of what is read, along whichever of its axes is the slowest in memory."""
    axis = memory_order(source)[0]
    extent = source.shape[axis]
    count = max(_VOXELS * extent // source.size, 1)
    for start in range(0, extent, count):
        yield (slice(None),) * axis + (slice(start, start + count),)


def rows(extents: Triple, voxels: int = _VOXELS) -> Iterator[tuple[int, int]]:
    """First plane along the first axis, and the one behind the last, of each part of a volume.

    voxels: of a part, unless a plane has more.
    """
    depth, height, width = extents
    count = max(voxels // max(height * width, 1), 1)
    return ((start, min(start + count, depth)) for start in range(0, depth, count))
