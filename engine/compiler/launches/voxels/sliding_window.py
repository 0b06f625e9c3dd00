"""The kernels of a sliding window: cut a patch out of a ring of rows, blend one in, store rows."""

from ctypes import Structure, c_double, c_float, c_int, c_longlong, c_void_p
from math import prod

import numpy as np

from ....network.layers import Triple
from ....patch_grid import PatchWindow, SmallVolumePadding
from ....scaling import VOXEL_TYPES, Stored
from ...ring_buffers import RingLayout
from ..launch import BLOCK, Launch
from ..tensor_arguments import Three

_FILLS: dict[SmallVolumePadding, int] = {"reflect": 0, "edge": 1, "minimum": 2}


class ScalingArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("centre", c_double),
        ("radius", c_double),
        ("lowest", c_double),
        ("clips", c_int),
        ("voxel", c_int),
    )


class CutArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("ring", c_void_p),
        ("lowest", c_void_p),
        ("patch", c_void_p),
        ("extents", Three),
        ("patch_extents", Three),
        ("patch_steps", Three),
        ("origin", Three),
        ("rows", c_int),
        ("fill", c_int),
        ("scaling", ScalingArguments),
    )


def cut(
    window: PatchWindow, places: RingLayout, source: Stored, origin: Triple, patch: int
) -> Launch:
    """The patch at `origin`, below 0 where the array is smaller, to the address `patch`."""
    depth, height, width = window.patch
    values = CutArguments(
        ring=places.source,
        lowest=places.lowest,
        patch=patch + window.patch_start * 4,
        extents=Three(*window.extents),
        patch_extents=Three(*window.patch),
        patch_steps=Three(*window.patch_steps),
        origin=Three(*origin),
        rows=places.rows,
        fill=_FILLS[window.padding],
        scaling=scaling_of(source),
    )
    grid = -(-height * width // BLOCK), depth, len(source.values)
    return Launch("sliding_window", "cut", grid, (BLOCK, 1, 1), 0, values)


class BlendArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patch", c_void_p),
        ("weights", c_void_p),
        ("mean", c_void_p),
        ("total", c_void_p),
        ("overflow", c_void_p),
        ("overflowed", c_void_p),
        ("extents", Three),
        ("patch_extents", Three),
        ("patch_steps", Three),
        ("first", Three),
        ("count", Three),
        ("place", Three),
        ("rows", c_int),
        ("channels", c_int),
    )


def blend(
    window: PatchWindow,
    places: RingLayout,
    channels: int,
    origin: Triple,
    patch: int,
    overflow: int,
) -> Launch:
    """The patch at the address `patch` into the mean; overflow: address of its run's flag."""
    place = [max(o, 0) for o in origin]
    first = [p - o for p, o in zip(place, origin, strict=True)]
    ends = [min(o + p, e) for o, p, e in zip(origin, window.patch, window.extents, strict=True)]
    count = [end - start for end, start in zip(ends, place, strict=True)]
    values = BlendArguments(
        patch=patch + window.patch_start * 4,
        weights=places.weights,
        mean=places.mean,
        total=places.total,
        overflow=overflow,
        overflowed=places.overflowed,
        extents=Three(*window.extents),
        patch_extents=Three(*window.patch),
        patch_steps=Three(*window.patch_steps),
        first=Three(*first),
        count=Three(*count),
        place=Three(*place),
        rows=places.rows,
        channels=channels,
    )
    grid = -(-count[1] * count[2] // BLOCK), count[0], 1
    return Launch("sliding_window", "blend", grid, (BLOCK, 1, 1), 0, values)


class StoreVoxelsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("mean", c_void_p),
        ("stored", c_void_p),
        ("overflowed", c_void_p),
        ("count", c_longlong),
        ("lowest", c_float),
        ("highest", c_float),
        ("scaling", ScalingArguments),
    )


def store_voxels(mean: int, count: int, target: Stored, address: int, overflowed: int) -> Launch:
    """So many blended intensities at the address `mean`, as the target holds them, to `address`.

    overflowed: address of the flag of what is not finite.
    """
    kind = target.values.dtype
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    values = StoreVoxelsArguments(
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
    """Bytes of a patch as the program takes and gives it."""
    return channels * prod(window.patch) * 4


def scaling_of(array: Stored) -> ScalingArguments:
    """An array's map of intensities, and its voxel type, as kernels take them."""
    scaling, voxel = array.scaling, VOXEL_TYPES.index(array.values.dtype.name)
    return ScalingArguments(
        centre=scaling.centre,
        radius=scaling.radius,
        lowest=scaling.lowest,
        clips=scaling.clips,
        voxel=voxel,
    )
