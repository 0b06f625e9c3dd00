"""The kernels of a sweep: a patch cut out of a ring of rows, blended into one, and rows stored."""

from math import prod

import numpy as np

from ...network.graph import Triple
from ...scaling import VOXEL_TYPES, Stored
from ...sliding_window import SmallVolumePadding, Window
from ..ring_buffers import Places
from . import arguments
from .launch import BLOCK, Launch

_FILLS: dict[SmallVolumePadding, int] = {"reflect": 0, "edge": 1, "minimum": 2}


def cut(window: Window, places: Places, source: Stored, origin: Triple, patch: int) -> Launch:
    """The patch at `origin`, below 0 where the array is smaller, to the address `patch`."""
    depth, height, width = window.patch
    values = arguments.Cut(
        places.source,
        places.lowest,
        patch + window.patch_start * 4,
        arguments.Three(*window.extents),
        arguments.Three(*window.patch),
        arguments.Three(*window.patch_steps),
        arguments.Three(*origin),
        places.rows,
        _FILLS[window.padding],
        _scaling(source),
    )
    grid = -(-height * width // BLOCK), depth, len(source.values)
    return Launch("sweep", "cut", grid, (BLOCK, 1, 1), 0, values)


def blend(
    window: Window, places: Places, channels: int, origin: Triple, patch: int, overflow: int
) -> Launch:
    """The patch at the address `patch` into the mean; overflow: address of its run's flag."""
    place = [max(o, 0) for o in origin]
    first = [p - o for p, o in zip(place, origin, strict=True)]
    ends = [min(o + p, e) for o, p, e in zip(origin, window.patch, window.extents, strict=True)]
    count = [end - start for end, start in zip(ends, place, strict=True)]
    values = arguments.Blend(
        patch + window.patch_start * 4,
        places.weights,
        places.mean,
        places.total,
        overflow,
        places.overflowed,
        arguments.Three(*window.extents),
        arguments.Three(*window.patch),
        arguments.Three(*window.patch_steps),
        arguments.Three(*first),
        arguments.Three(*count),
        arguments.Three(*place),
        places.rows,
        channels,
    )
    grid = -(-count[1] * count[2] // BLOCK), count[0], 1
    return Launch("sweep", "blend", grid, (BLOCK, 1, 1), 0, values)


def store_voxels(mean: int, count: int, target: Stored, address: int, overflowed: int) -> Launch:
    """So many blended intensities at the address `mean`, as the target holds them, to `address`.

    overflowed: address of the flag of what is not finite.
    """
    kind = target.values.dtype
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    low, high = float(limits.min), float(limits.max)
    values = arguments.StoreVoxels(mean, address, overflowed, count, low, high, _scaling(target))
    return Launch("sweep", "store_voxels", (-(-count // BLOCK), 1, 1), (BLOCK, 1, 1), 0, values)


def patch_bytes(window: Window, channels: int) -> int:
    """Bytes of a patch as the program takes and gives it."""
    return channels * prod(window.patch) * 4


def _scaling(array: Stored) -> arguments.Scaling:
    scaling, voxel = array.scaling, VOXEL_TYPES.index(array.values.dtype.name)
    return arguments.Scaling(scaling.centre, scaling.radius, scaling.clips, voxel)
