"""The two kernels of a sweep: cutting a patch out of a ring of rows, and blending one into it."""

from math import prod

from . import kernel_arguments as arguments
from .card import SmallVolumePadding
from .graph import Triple
from .launch import BLOCK, Launch
from .places import Places
from .window import Window

_FILLS: dict[SmallVolumePadding, int] = {"reflect": 0, "edge": 1, "minimum": 2}


def cut(window: Window, places: Places, channels: int, origin: Triple, patch: int) -> Launch:
    """The patch at `origin`, below 0 where the array is smaller, to the address `patch`."""
    depth, height, width = window.patch
    values = arguments.Cut(
        places.source,
        places.lowest,
        patch,
        arguments.Three(*window.extents),
        arguments.Three(*window.patch),
        arguments.Three(*window.patch_steps),
        arguments.Three(*origin),
        places.rows,
        _FILLS[window.padding],
    )
    grid = -(-height * width // BLOCK), depth, channels
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
        patch,
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


def patch_bytes(window: Window, channels: int) -> int:
    """Bytes of a patch as the program takes and gives it."""
    return channels * prod(window.patch) * 4
