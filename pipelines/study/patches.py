"""Patches of a volume: where they are cut, how they are mirrored, how results are blended, and how
visible the borders are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...engine.model.tiling import EVEN, Tiling
from ...engine.network.layers import FloatArray, Triple, triple
from ...engine.options import Blend
from ...engine.patch_grid import Kept
from ..settings import Overlap
from .figures import SeamScore
from .tilings import CODES, Origins, cropped, window

Box: TypeAlias = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """All patches of a volume; together they cover every voxel.

    extents: of the volume. patch: of every patch. origins: one ascending row for each axis, in the
    padded volume. tiling: the code whose weights they have. shared: voxels that neighbours
    nominally share along each axis. Patches come with D changing slowest, so that slabs along D
    finish early.
    """

    extents: Triple
    patch: Triple
    origins: tuple[Origins, Origins, Origins]
    tiling: Tiling = EVEN
    shared: Triple = (0, 0, 0)

    def __len__(self) -> int:
        return prod(len(row) for row in self.origins)

    def __iter__(self) -> Iterator[Triple]:
        return product(*self.origins)

    @property
    def padded(self) -> Triple:
        """Extents of the volume after padding: at least those of the patch."""
        sizes = zip(self.extents, self.patch, self.shared, strict=True)
        return triple(_padded(*each, border=self.tiling.border) for each in sizes)

    @property
    def before(self) -> Triple:
        """Voxels of padding before the volume; an odd one goes after it, as in MONAI."""
        return triple((n - e) // 2 for n, e in zip(self.padded, self.extents, strict=True))

    def within_volume(self, origin: Triple) -> Box:
        """Return the part of the volume that a patch covers."""
        starts = [o - b for o, b in zip(origin, self.before, strict=True)]
        return triple(
            slice(max(start, 0), min(start + p, e))
            for start, p, e in zip(starts, self.patch, self.extents, strict=True)
        )

    def within_patch(self, origin: Triple) -> Box:
        """Return the part of a patch that lies in the volume; the rest is padding."""
        starts = [o - b for o, b in zip(origin, self.before, strict=True)]
        return triple(
            slice(covered.start - start, covered.stop - start)
            for covered, start in zip(self.within_volume(origin), starts, strict=True)
        )

    def kept(self, blend: Blend) -> Kept | None:
        """Return the part of each patch that is blended, along each axis; None for all of it."""
        if blend != "crop":
            return None
        sizes = zip(self.origins, self.padded, self.patch, self.shared, strict=True)
        return triple(cropped(*each, border=self.tiling.border) for each in sizes)

    def blended(self, origin: Triple, kept: Kept | None) -> tuple[Box, Box]:
        """Return where a patch is blended into the volume, and the same voxels of the patch.

        kept: of the blend.
        """
        into, part = self.within_volume(origin), self.within_patch(origin)
        if kept is None:
            return into, part
        rows = [row.index(at) for row, at in zip(self.origins, origin, strict=True)]
        found = [
            slice(max(inside.start, start), min(inside.stop, stop))
            for inside, (start, stop) in zip(
                part, (axis[at] for axis, at in zip(kept, rows, strict=True)), strict=True
            )
        ]
        moved = zip(into, part, found, strict=True)
        return triple(
            slice(a.start + f.start - p.start, a.start + f.stop - p.start) for a, p, f in moved
        ), triple(found)


def _padded(extent: int, patch: int, shared: int, *, border: bool) -> int:
    return max(extent + (shared // 2 * 2 if border else 0), patch)


def cover(
    extents: Triple,
    patch: Triple,
    overlap: Overlap,
    stride: Triple = (1, 1, 1),
    tiling: Tiling = EVEN,
) -> PatchLayout:
    """Cover a volume with patches.

    extents: of the volume (D, H, W). overlap: least share of a patch edge that neighbours share, 0
    <= overlap < 1, on all axes or on each. stride: the network's, see `Graph.stride`. tiling: code
    whose positions are taken.

    A network that shrinks its maps gives other results when its input moves by less than its stride
    (Majurski and Bajcsy, J. Res. NIST 126, 2021). So origins of this program's own tiling are
    multiples of the stride where that costs no patch and keeps the overlap; the last one, fixed by
    the volume's end, need not be.
    """
    shares = overlap if isinstance(overlap, tuple) else (overlap, overlap, overlap)
    if not all(0 <= share < 1 for share in shares):
        raise ValueError(f"overlap {overlap} is not in [0, 1)")
    if min(*extents, *patch, *stride) < 1:
        raise ValueError(f"extents {extents}, patch {patch} and stride {stride} must be positive")
    code = CODES[tiling.code]
    shared = triple(code.shared(*each) for each in zip(patch, shares, strict=True))
    padded = [
        _padded(*each, border=tiling.border) for each in zip(extents, patch, shared, strict=True)
    ]
    origins = triple(
        code.origins(n - p, p, share, s)
        for n, p, share, s in zip(padded, patch, shares, stride, strict=True)
    )
    return PatchLayout(extents, patch, origins, tiling, shared)


Flip: TypeAlias = tuple[bool, bool, bool]
"""Axes D, H and W along which a patch is mirrored."""

UNFLIPPED: Flip = (False, False, False)

_SIDES = ("LR", "AP", "SI")
"""Axes of the patient, the one with the most symmetric anatomy first."""


def flips(count: int, axes: str) -> Iterator[Flip]:
    """Yield `count` of the 8 ways to mirror a patch, unmirrored first.

    axes: anatomical directions of D, H and W, as on a model's card. Left and right change places in
    every second way, front and back in two of four, head and feet in the last four: 2 ways are
    enough for left and right, 4 mirror no patch head over heels, 8 are all.
    """
    order = [next(at for at, side in enumerate(axes) if side in pair) for pair in _SIDES]
    for number in range(count):
        yield triple(bool(number >> order.index(axis) & 1) for axis in range(3))


def flipped(patches: FloatArray, flip: Flip) -> FloatArray:
    """View patches [N, C, D, H, W] mirrored, or mirrored back."""
    steps = tuple(slice(None, None, -1 if each else None) for each in flip)
    return patches[:, :, *steps]


def flipped_in_memory(patches: FloatArray, flip: Flip) -> FloatArray:
    """Return mirrored patches in C order, as a network takes them; unmirrored ones unchanged."""
    return np.ascontiguousarray(flipped(patches, flip))


def patch_weights(
    layout: PatchLayout, blend: Blend, axes: Triple = (0, 1, 2), flips: Flip = UNFLIPPED
) -> FloatArray:
    """Return the weight of each voxel of a patch, positive and not normalised, read-only.

    gaussian: MONAI's importance map, or nnU-Net's. linear: rises over the voxels shared with the
    neighbour and is flat between. constant: the mean of all patches. axes: which of D, H and W come
    first to last, in memory too. flips: which of these run backwards. Like studies share one array.
    """
    steps = layout.patch
    if blend == "linear":
        pairs = zip(layout.patch, layout.origins, strict=True)
        steps = triple(int(max(np.diff(row), default=edge)) for edge, row in pairs)
    return _weights(layout.patch, steps, blend, axes, flips, layout.tiling)


@lru_cache(maxsize=2)
def _weights(
    patch: Triple, steps: Triple, blend: Blend, axes: Triple, flips: Flip, tiling: Tiling
) -> FloatArray:
    weights = window(tiling.code, blend, patch, steps, tiling.sigma).transpose(axes)
    laid = np.ascontiguousarray(flipped(weights[None, None], flips)[0, 0])
    laid.setflags(write=False)
    return laid


@dataclass(frozen=True, slots=True)
class BlendedSlab:
    """Finished rows of the volume: values [C, rows, H, W], the first one at `start` along D."""

    start: int
    values: FloatArray


class Blender:
    """Weighted mean of translated patches, released slab by slab along D.

    It holds as many rows as a patch is deep, never the volume. Patches come in the layout's order.

    The mean is updated patch by patch (West, Comm. ACM 22, 1979) instead of dividing a sum at the
    end: where all patches agree, the result is their value to the last bit.
    """

    def __init__(self, layout: PatchLayout, channels: int, blend: Blend) -> None:
        depth, height, width = layout.extents
        rows = min(layout.patch[0], depth)
        self._layout = layout
        self._patch_weights, self._kept = patch_weights(layout, blend), layout.kept(blend)
        self._mean = np.zeros((channels, rows, height, width), np.float32)
        self._weights = np.zeros((rows, height, width), np.float32)
        self._start = 0
        self._released = 0
        self._next_origins = iter(layout)

    def add(self, origin: Triple, patch: FloatArray) -> BlendedSlab | None:
        """Add a translated patch [C, D, H, W]; return a slab once no later patch touches it.

        The slab's values are overwritten by the next `add`.
        """
        if origin != next(self._next_origins, None):
            raise ValueError(f"patch at {origin} is out of the layout's order")
        self._forget_released()
        (depth, height, width), part = self._layout.blended(origin, self._kept)
        rows = slice(depth.start - self._start, depth.stop - self._start)
        mean, weights = self._mean[:, rows, height, width], self._weights[rows, height, width]
        weights += self._patch_weights[part]
        with np.errstate(invalid="ignore"):  # infinities become NaN, which `finish` refuses
            change = patch[:, *part] - mean
            change *= self._patch_weights[part] / weights
            mean += change
        return self._release(origin)

    def _release(self, origin: Triple) -> BlendedSlab | None:
        along_d, along_h, along_w = self._layout.origins
        depth, height, width = origin
        if (height, width) != (along_h[-1], along_w[-1]):
            return None
        following = along_d.index(depth) + 1
        if following == len(along_d):
            self._released = self._layout.extents[0] - self._start
        else:
            start = max(along_d[following] - self._layout.before[0], 0)
            self._released = start - self._start
        return BlendedSlab(self._start, self._mean[:, : self._released])

    def _forget_released(self) -> None:
        if not self._released:
            return
        kept = len(self._weights) - self._released
        for row in range(kept):  # row by row: numpy would copy an overlapping move as a whole
            self._mean[:, row] = self._mean[:, row + self._released]
            self._weights[row] = self._weights[row + self._released]
        self._mean[:, kept:] = 0
        self._weights[kept:] = 0
        self._start += self._released
        self._released = 0


_PerPlane: TypeAlias = npt.NDArray[np.float64]
"""A figure for each plane, or for each pair of neighbouring planes, along an axis."""


def seam_score(
    source: FloatArray, translated: FloatArray, layout: PatchLayout, blend: Blend
) -> SeamScore:
    """Compare steps between neighbouring voxels across patch borders with those elsewhere.

    source, translated: [C, D, H, W] in network intensity on the same grid; channels may differ.

    As in metrics of block artefacts (Wu and Yuen, IEEE Signal Process. Lett. 4, 1997), mean
    absolute steps between neighbouring planes are compared at the borders and elsewhere. Two things
    are our own. A blend may pass from patch to patch at once or gradually, so a step counts as
    border by the share of the mix that changes across it, and as elsewhere by the rest. And anatomy
    steps too, so the same ratio of the input, which has no seams, divides that of the output.

    Below 1.0 the overlaps are smoother than the rest, since a mean of patches has less noise.
    """
    weights = patch_weights(layout, blend)
    scores = triple(
        _ratio(change, after, before)
        for change, after, before in zip(
            (_change_of_mix(layout, weights, blend, axis) for axis in range(3)),
            _steps(translated),
            _steps(source),
            strict=True,
        )
    )
    return SeamScore(scores)


def _change_of_mix(layout: PatchLayout, weights: FloatArray, blend: Blend, axis: int) -> _PerPlane:
    """Return the share of the mix of patches, 0 to 1, that changes from each voxel of an axis to
    the next, along a line through the middle of the patches.
    """
    origins, extent, before = layout.origins[axis], layout.extents[axis], layout.before[axis]
    if len(origins) == 1:
        return np.zeros(extent - 1)
    middle = [edge // 2 for edge in layout.patch]
    line = weights[tuple(slice(None) if n == axis else m for n, m in enumerate(middle))]
    kept = layout.kept(blend)
    parts = kept[axis] if kept else [(0, len(line))] * len(origins)
    mix = np.zeros((len(origins), layout.padded[axis]))
    for row, origin, (start, stop) in zip(mix, origins, parts, strict=True):
        row[origin + start : origin + stop] = line[start:stop]
    mix = mix[:, before : before + extent]
    mix /= mix.sum(axis=0)
    return np.abs(np.diff(mix, axis=1)).sum(axis=0) / 2


def _steps(array: FloatArray) -> tuple[_PerPlane, _PerPlane, _PerPlane]:
    """Sum absolute steps from each plane to the next, along D, H and W."""
    _, depth, height, width = array.shape
    d, h, w = np.zeros(depth - 1), np.zeros(height - 1), np.zeros(width - 1)
    for channel in array:
        for index, rows in enumerate(channel):
            if index:
                d[index - 1] += np.abs(rows - channel[index - 1]).sum(dtype=np.float64)
            h += np.abs(np.diff(rows, axis=0)).sum(axis=1, dtype=np.float64)
            w += np.abs(np.diff(rows, axis=1)).sum(axis=0, dtype=np.float64)
    return d, h, w


def _ratio(change: _PerPlane, after: _PerPlane, before: _PerPlane) -> float | None:
    if not change.any():
        return None
    rest = 1 - change
    sums = change @ after, rest @ before, rest @ after, change @ before
    if not all(sums):
        return None
    at_borders, elsewhere = sums[0] / sums[3], sums[2] / sums[1]
    return float(at_borders / elsewhere)
