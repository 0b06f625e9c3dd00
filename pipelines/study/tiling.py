"""Where patches are cut from a volume."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

from ...engine.network.layers import Triple, triple

Box: TypeAlias = tuple[slice, slice, slice]
Origins: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """One place of the patch; origin (D, H, W) is that of its first voxel in the padded volume."""

    origin: Triple


@dataclass(frozen=True, slots=True)
class Tiling:
    """All tiles of a volume; together they cover every voxel.

    extents: of the volume. patch: of every tile. origins: one ascending row for each axis, in the
    padded volume. Tiles come with D changing slowest, so that slabs along D finish early.
    """

    extents: Triple
    patch: Triple
    origins: tuple[Origins, Origins, Origins]

    def __len__(self) -> int:
        return prod(len(row) for row in self.origins)

    def __iter__(self) -> Iterator[Tile]:
        return (Tile(origin) for origin in product(*self.origins))

    @property
    def padded(self) -> Triple:
        """Extents of the volume after padding: at least those of the patch."""
        return triple(max(e, p) for e, p in zip(self.extents, self.patch, strict=True))

    @property
    def before(self) -> Triple:
        """Voxels of padding before the volume; an odd one goes behind, as in MONAI."""
        return triple((n - e) // 2 for n, e in zip(self.padded, self.extents, strict=True))

    def within_volume(self, tile: Tile) -> Box:
        """The part of the volume that a tile covers."""
        starts = [o - b for o, b in zip(tile.origin, self.before, strict=True)]
        return triple(
            slice(max(start, 0), min(start + p, e))
            for start, p, e in zip(starts, self.patch, self.extents, strict=True)
        )

    def within_patch(self, tile: Tile) -> Box:
        """The part of a tile's patch that lies in the volume; the rest is padding."""
        starts = [o - b for o, b in zip(tile.origin, self.before, strict=True)]
        return triple(
            slice(covered.start - start, covered.stop - start)
            for covered, start in zip(self.within_volume(tile), starts, strict=True)
        )


def tile(extents: Triple, patch: Triple, overlap: float, stride: Triple = (1, 1, 1)) -> Tiling:
    """Tiles that cover a volume, as few as the overlap demands and evenly spread.

    extents: of the volume (D, H, W). overlap: least share of a patch edge that neighbours share,
    0 <= overlap < 1. stride: the network's, see `Graph.stride`.

    The count is that of MONAI's `sliding_window_inference`. Where its regular grid fits the volume
    the origins, and so the result, are its own; elsewhere it pulls the last tile back onto the one
    before, and this spreads all of them. (Given MONAI's own origins, a `Tiling` gives its result.)

    A network that shrinks its maps gives other results when its input moves by less than its
    stride (Majurski and Bajcsy, J. Res. NIST 126, 2021). So origins are multiples of the stride
    where that costs no tile and keeps the overlap; the last one, fixed by the volume's end, need
    not be.
    """
    if not 0 <= overlap < 1:
        raise ValueError(f"overlap {overlap} is not in [0, 1)")
    if min(*extents, *patch, *stride) < 1:
        raise ValueError(f"extents {extents}, patch {patch} and stride {stride} must be positive")
    origins = triple(
        _origins(e, p, max(int(p * (1 - overlap)), 1), s)
        for e, p, s in zip(extents, patch, stride, strict=True)
    )
    return Tiling(extents, patch, origins)


def _origins(extent: int, patch: int, interval: int, stride: int) -> Origins:
    """Origins from 0 to the last that fits, neighbours at most `interval` apart."""
    last = max(extent - patch, 0)
    gaps = _ceil_div(last, interval)
    aligned = interval // stride * stride
    if not aligned or _ceil_div(last, aligned) > gaps:
        stride = 1
    inner = [_ceil_div(i * last, gaps * stride) * stride for i in range(gaps)]
    return (*inner, last)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
