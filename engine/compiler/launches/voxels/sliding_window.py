"""The kernels of a sliding window: cut a patch out of a ring of rows, blend one in, store rows."""

from ctypes import Structure
from math import prod

import numpy as np

from ....network.layers import Triple
from ....patch_grid import PatchWindow
from ....scaling import VOXEL_TYPES, Stored
from ...kernel_source import constants, structure
from ...kernels.launch import BLOCK, Launch
from ...ring_buffers import RingLayout


def cut(
    window: PatchWindow, places: RingLayout, source: Stored, origin: Triple, patch: int
) -> Launch:
    """Cut the patch at `origin`, below 0 if the array is smaller, to the address `patch`."""
    depth, height, width = window.patch
    values = structure("sliding_window.cu", "Cut")(
        ring=places.source,
        lowest=places.lowest,
        patch=patch + window.patch_start * 4,
        extents=window.extents,
        patch_extents=window.patch,
        patch_steps=window.patch_steps,
        origin=origin,
        rows=places.rows,
        fill=constants("sliding_window.cu")[f"FILL_{window.padding.upper()}"],
        scaling=scaling_of(source),
    )
    grid = -(-height * width // BLOCK), depth, len(source.values)
    return Launch("sliding_window", "cut", grid, (BLOCK, 1, 1), 0, values)


def blend(
    window: PatchWindow,
    places: RingLayout,
    channels: int,
    origin: Triple,
    patch: int,
    overflow: int,
) -> Launch:
    """Blend the patch at the address `patch` into the mean; overflow: address of its run's flag."""
    place = tuple(max(o, 0) for o in origin)
    first = tuple(p - o for p, o in zip(place, origin, strict=True))
    ends = [min(o + p, e) for o, p, e in zip(origin, window.patch, window.extents, strict=True)]
    count = tuple(end - start for end, start in zip(ends, place, strict=True))
    values = structure("sliding_window.cu", "Blend")(
        patch=patch + window.patch_start * 4,
        weights=places.weights,
        mean=places.mean,
        total=places.total,
        overflow=overflow,
        overflowed=places.overflowed,
        extents=window.extents,
        patch_extents=window.patch,
        patch_steps=window.patch_steps,
        first=first,
        count=count,
        place=place,
        rows=places.rows,
        channels=channels,
    )
    grid = -(-count[1] * count[2] // BLOCK), count[0], 1
    return Launch("sliding_window", "blend", grid, (BLOCK, 1, 1), 0, values)


def store_voxels(mean: int, count: int, target: Stored, address: int, overflowed: int) -> Launch:
    """Store `count` blended intensities from the address `mean` at `address`, as the target's type.

    overflowed: address of the flag for values that are not finite.
    """
    kind = target.values.dtype
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    values = structure("sliding_window.cu", "StoreVoxels")(
        mean=mean,
        stored=address,
        overflowed=overflowed,
        count=count,
        lowest=float(limits.min),
        highest=float(limits.max),
        scaling=scaling_of(target),
    )
    return Launch(
        "sliding_window", "store_voxels", (-(-count // BLOCK), 1, 1), (BLOCK, 1, 1), 0, values
    )


def patch_bytes(window: PatchWindow, channels: int) -> int:
    """Return the bytes of an input or output patch of the program."""
    return channels * prod(window.patch) * 4


def scaling_of(array: Stored) -> Structure:
    """Return an array's intensity mapping and voxel type as a kernel argument."""
    scaling, voxel = array.scaling, VOXEL_TYPES.index(array.values.dtype.name)
    return structure("sliding_window.cu", "Scaling")(
        centre=scaling.centre,
        radius=scaling.radius,
        lowest=scaling.lowest,
        clips=scaling.clips,
        voxel=voxel,
    )
