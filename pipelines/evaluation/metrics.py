"""Metrics of a pair: voxel by voxel (errors, peak signal-to-noise ratio, Pearson's r), and
structural similarity: in a 7 x 7 x 7 box, at one scale (SSIM) and at five (MS-SSIM), and in a
Gaussian window.

Wang et al., Image quality assessment, 2004; Wang et al., Multiscale structural similarity, 2003.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import fsum, inf, isfinite, log10, prod, sqrt
from typing import Protocol

import numpy as np

from ...io.volume import AnyArray, DoubleArray
from ..study.geometry import rows
from ..study.statistics import Range
from .images import BLOCK_VOXELS, Flags, Images, Planes, StoredImage

STANDS_OUT = 1.5
"""Factor by which a plane's error must exceed the middle plane's for it to be shown instead."""


@dataclass(frozen=True, slots=True)
class Census:
    """Statistics of truth and result before they are compared.

    voxels: number of voxels that count. unusable: number of these that are not finite, in the
    truth and in the result. within: least and greatest truth among voxels that count; None if none
    does. lowest: least truth anywhere.
    """

    voxels: int
    unusable: tuple[int, int]
    within: Range | None
    lowest: float


def census(images: Images) -> Census:
    """Collect the statistics of the images to compare."""
    voxels, bad_truth, bad_result = 0, 0, 0
    low, high = inf, -inf
    for _, _, truth, result in images.counted():
        voxels += truth.size
        bad_truth += truth.size - int(np.isfinite(truth).sum())
        bad_result += result.size - int(np.isfinite(result).sum())
        if truth.size:
            low, high = min(low, float(truth.min())), max(high, float(truth.max()))
    within = Range(low, high) if isfinite(low) and isfinite(high) else None
    return Census(voxels, (bad_truth, bad_result), within, lowest(images.truth))


def lowest(truth: StoredImage) -> float:
    """Return the least value that is a number, anywhere."""
    ends = [float(pick.reduce(truth.voxels, axis=None)) for pick in (np.fmin, np.fmax)]
    return min(end * truth.slope + truth.intercept for end in ends)


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between truth and result over the voxels that count.

    mae, me, rmse: mean absolute error, mean of result - truth, root mean square error. psnr: in
    decibels; None if truth and result are equal. r: Pearson's correlation; None if one of them is
    constant. beyond: number of truth values outside of the data
    range. at: plane k, row j and column i with the most absolute error, or the middle ones if none
    stands out.
    """

    mae: float
    me: float
    rmse: float
    psnr: float | None
    r: float | None
    beyond: int
    at: tuple[int, int, int]


def differences(images: Images, data_range: Range, *, clips: bool) -> Differences:
    """Compare voxel by voxel; some voxels must count, and all of these must be finite.

    data_range: its extent is the peak of the signal. clips: whether values are clipped to it for
    the signal-to-noise ratio; for the other metrics they never are.
    """
    absolute: list[float] = []
    signed: list[float] = []
    raw_squares: list[float] = []
    squares: list[float] = []
    beyond = 0
    profiles = [np.zeros(extent) for extent in images.extents]
    moments = _Moments()
    for planes, flags, truth, result in images.counted():
        if not truth.size:
            continue
        change = result - truth
        signed.append(float(change.sum()))
        raw_squares.append(float(np.square(change).sum()))
        error = np.abs(change)
        absolute.append(float(error.sum()))
        _add_profiles(profiles, planes, flags, error)
        moments.add(truth, result)
        beyond += int(np.count_nonzero((truth < data_range.low) | (truth > data_range.high)))
        if clips:
            truth, result = (np.clip(x, data_range.low, data_range.high) for x in (truth, result))
            squares.append(float(np.square(result - truth).sum()))
    mean_square = fsum(squares if clips else raw_squares) / moments.count
    peak = data_range.high - data_range.low
    k, j, i = map(_shown_at, profiles)
    return Differences(
        mae=fsum(absolute) / moments.count,
        me=fsum(signed) / moments.count,
        rmse=sqrt(fsum(raw_squares) / moments.count),
        psnr=10 * log10(peak**2 / mean_square) if mean_square and peak else None,
        r=moments.correlation(),
        beyond=beyond,
        at=(k, j, i),
    )


def _shown_at(profile: DoubleArray) -> int:
    """Return the index of the largest error, or the middle one if errors are even."""
    middle = profile.size // 2
    return int(profile.argmax()) if profile.max() > STANDS_OUT * profile[middle] else middle


def _add_profiles(
    profiles: list[DoubleArray], planes: slice, flags: AnyArray, error: DoubleArray
) -> None:
    """Add a block's errors to their sums over each plane, row and column."""
    placed = np.zeros(flags.shape)
    placed[flags] = error
    profiles[0][planes] += placed.sum(axis=(1, 2))
    rest = placed.sum(axis=0)
    profiles[1] += rest.sum(axis=1)
    profiles[2] += rest.sum(axis=0)


class _Moments:
    """Means, and sums of products about them, combined over blocks.

    The method (Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983) keeps
    the digits that plain sums of squares lose.
    """

    def __init__(self) -> None:
        self.count = 0
        self._means = np.zeros(2)
        self._products = np.zeros((2, 2))

    def add(self, truth: DoubleArray, result: DoubleArray) -> None:
        both = np.stack([truth, result])
        means = both.mean(axis=1)
        both -= means[:, None]
        shift, total = means - self._means, self.count + truth.size
        weight = self.count * truth.size / total
        self._products += np.einsum("an,bn->ab", both, both) + weight * np.outer(shift, shift)
        self._means += shift * (truth.size / total)
        self.count = total

    def correlation(self) -> float | None:
        of_truth, of_result = self._products.diagonal()
        spread = sqrt(of_truth) * sqrt(of_result)
        return float(self._products[0, 1]) / spread if spread else None


SIDE = 7
"""Voxels along an edge of the box; there is no score where the whole box does not fit."""

_SIGMA, _RADIUS = 1.5, 5
"""Width and radius in voxels of the Gaussian window (Wang et al., 2004, section III.B)."""

WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Weights of the scales from the finest on (Wang et al., 2003, section 3.2)."""

_LUMINANCE, _CONTRAST = 0.01, 0.03
"""Shares of the data range that keep quotients of small numbers in bounds (K1 and K2)."""


@dataclass(frozen=True, slots=True)
class SimilarityRule:
    """Choices in which definitions of MS-SSIM differ.

    sample_covariance: whether variances are divided by one less than the voxels of a box.
    weighs_voxels: whether each voxel's score, with luminance at every scale, is raised to the
    scale's weight before the mean is taken; otherwise the mean is raised, and luminance counts at
    only the coarsest scale. halves_from_zero: whether a voxel of the next scale is the mean of
    voxels 2n - 1 and 2n along each axis, with zeros before the first; otherwise of 2n and 2n + 1.
    fewest: least number of voxels along an axis for five scales; a shorter axis is extended at both
    ends by its outermost values.
    """

    sample_covariance: bool
    weighs_voxels: bool
    halves_from_zero: bool
    fewest: int


@dataclass(frozen=True, slots=True)
class Similarity:
    """Mean similarity over the voxels that count, or None if there are none.

    ssim: similarity at the finest scale, of the images as they are. ms_ssim: over all scales.
    gaussian: as `ssim`, in the Gaussian window.
    """

    ssim: float | None
    ms_ssim: float | None
    gaussian: float | None


class _Scale(Protocol):
    """Images at one scale; values are relative to the low end of the data range."""

    @property
    def extents(self) -> Planes: ...

    def values(self, start: int, stop: int) -> tuple[DoubleArray, DoubleArray]: ...

    def flags(self, start: int, stop: int) -> Flags: ...


def similarity(
    images: Images, data_range: Range, rule: SimilarityRule, *, clips: bool
) -> Similarity:
    """Compare structure within the mask; outside, both images are set to the range's low end."""
    peak = data_range.high - data_range.low
    margins = _margins(images.extents, rule.fewest)
    scale: _Scale = _Finest(images, data_range, clips, margins)
    scores: list[float | None] = []
    ssim: float | None = None
    for level, weight in enumerate(WEIGHTS):
        if level:
            scale = _halved(scale, from_zero=rule.halves_from_zero)
        means = _means(scale, peak, weight, rule, _BOX)
        if level == 0:
            ssim = means.ssim
        is_last = level == len(WEIGHTS) - 1
        raised = means.raised(weight, with_luminance=is_last)
        scores.append(means.weighed if rule.weighs_voxels else raised)
    whole = _Finest(images, data_range, clips, _margins(images.extents, 0))
    if any(map(sum, margins)):
        ssim = _means(whole, peak, 1.0, rule, _BOX).ssim
    known = [score for score in scores if score is not None]
    gaussian = _means(whole, peak, 1.0, rule, _GAUSSIAN).ssim
    return Similarity(ssim, prod(known) if len(known) == len(scores) else None, gaussian)


def _margins(extents: Planes, fewest: int) -> tuple[tuple[int, int], ...]:
    """Return the number of voxels by which each axis is extended at its start and its end."""
    lacking = [max(fewest - extent, 0) for extent in extents]
    return tuple((lack // 2, lack - lack // 2) for lack in lacking)


@dataclass(frozen=True, slots=True)
class _Finest:
    """Images at full resolution, each block computed from stored voxels on request."""

    images: Images
    data_range: Range
    clips: bool
    margins: tuple[tuple[int, int], ...]

    @property
    def extents(self) -> Planes:
        pairs = zip(self.images.extents, self.margins, strict=True)
        k, j, i = (extent + sum(margin) for extent, margin in pairs)
        return k, j, i

    def values(self, start: int, stop: int) -> tuple[DoubleArray, DoubleArray]:
        planes = self._planes(start, stop)
        flags = self.images.flags(planes)
        truth, result = (
            self._shown(stored.values(planes), flags)
            for stored in (self.images.truth, self.images.result)
        )
        return truth, result

    def flags(self, start: int, stop: int) -> Flags:
        return self._extended(self.images.flags(self._planes(start, stop)))

    def _planes(self, start: int, stop: int) -> AnyArray | slice:
        before, after = self.margins[0]
        if not before and not after:
            return slice(start, stop)
        return np.clip(np.arange(start, stop) - before, 0, self.images.extents[0] - 1)

    def _shown(self, values: DoubleArray, flags: Flags) -> DoubleArray:
        low, high = self.data_range.low, self.data_range.high
        if self.clips:
            np.clip(values, low, high, out=values)
        values -= low
        values[~flags] = 0.0
        return self._extended(values)

    def _extended(self, planes: AnyArray) -> AnyArray:
        if not any(map(sum, self.margins[1:])):
            return planes
        return np.pad(planes, ((0, 0), *self.margins[1:]), mode="edge")


@dataclass(frozen=True, slots=True)
class _Coarser:
    """Images computed from those of the previous scale."""

    truth: DoubleArray
    result: DoubleArray
    inside: Flags

    @property
    def extents(self) -> Planes:
        k, j, i = self.inside.shape
        return k, j, i

    def values(self, start: int, stop: int) -> tuple[DoubleArray, DoubleArray]:
        return self.truth[start:stop], self.result[start:stop]

    def flags(self, start: int, stop: int) -> Flags:
        return self.inside[start:stop]


def _halved(scale: _Scale, *, from_zero: bool) -> _Coarser:
    """Return means of 2 x 2 x 2 voxels, and every other voxel of the mask from the first on."""
    k, j, i = ((extent + from_zero) // 2 for extent in scale.extents)
    half = _Coarser(np.empty((k, j, i)), np.empty((k, j, i)), np.empty((k, j, i), np.bool_))
    for start, stop in rows((k, 2 * j, 2 * i), BLOCK_VOXELS):
        first, end = 2 * start - from_zero, 2 * stop - from_zero
        lacking = [(max(-first, 0), 0), (int(from_zero), 0), (int(from_zero), 0)]
        both = scale.values(max(first, 0), end)
        for values, target in zip(both, (half.truth, half.result), strict=True):
            whole = np.pad(values, lacking) if from_zero else values
            target[start:stop] = _means_of_eight(whole[:, : 2 * j, : 2 * i])
        every_other = scale.flags(2 * start, min(2 * stop, scale.extents[0]))[::2, ::2, ::2]
        half.inside[start:stop] = every_other[:, :j, :i]
    return half


def _means_of_eight(values: DoubleArray) -> DoubleArray:
    sums = values[::2] + values[1::2]
    sums = sums[:, ::2] + sums[:, 1::2]
    return (sums[:, :, ::2] + sums[:, :, 1::2]) / 8


@dataclass(frozen=True, slots=True)
class _Means:
    """Means of one scale over its voxels that count; None if there are none.

    ssim: mean of luminance times structure. structure: mean of contrast and structure. weighed:
    mean of voxels' scores raised to the scale's weight, if the rule requires these.
    """

    ssim: float | None
    structure: float | None
    weighed: float | None

    def raised(self, weight: float, *, with_luminance: bool) -> float | None:
        """Return the scale's mean raised to its weight; a negative mean counts as 0."""
        mean = self.ssim if with_luminance else self.structure
        return None if mean is None else max(mean, 0.0) ** weight


def _means(
    scale: _Scale, peak: float, weight: float, rule: SimilarityRule, window: "_Window"
) -> _Means:
    count = 0
    ssim: list[float] = []
    structures: list[float] = []
    weighed: list[float] = []
    for start, luminance, structure in _maps(scale, peak, window, sample=rule.sample_covariance):
        flags = scale.flags(start, start + len(structure) + window.side - 1)
        inner = slice(window.side // 2, -(window.side // 2))
        counted = flags[inner, inner, inner]
        scores = (luminance * structure)[counted]
        count += scores.size
        ssim.append(float(scores.sum()))
        if rule.weighs_voxels:
            weighed.append(float((np.maximum(scores, 0.0) ** weight).sum()))
        else:
            structures.append(float(structure[counted].sum()))
    if not count:
        return _Means(None, None, None)
    mean_weighed = min(fsum(weighed) / count, 1.0)
    return _Means(fsum(ssim) / count, fsum(structures) / count, mean_weighed)


@dataclass(frozen=True, slots=True)
class _Window:
    """Window over which moments are averaged.

    side: voxels along each edge. voxels: number that divides the sums, and by which a sample's
    covariance is corrected; None for weights that add up to 1, which are never corrected. sums:
    weighted sums of neighbours of an array along an axis.
    """

    side: int
    voxels: int | None
    sums: Callable[[DoubleArray, int], DoubleArray]


def _maps(
    scale: _Scale, peak: float, window: _Window, *, sample: bool
) -> Iterator[tuple[int, DoubleArray, DoubleArray]]:
    """Yield blocks of luminance and structure, and the plane at which the windows of each begin.

    The planes that the windows of two blocks share are averaged in-plane only once.
    """
    side, voxels, sums = window.side, window.voxels, window.sums
    c1, c2 = (_LUMINANCE * peak) ** 2, (_CONTRAST * peak) ** 2
    factor = voxels / (voxels - 1) if sample and voxels else 1.0
    kept: DoubleArray | None = None
    if min(scale.extents) < side:
        return
    for start, stop in rows(scale.extents, BLOCK_VOXELS):
        truth, result = scale.values(start, stop)
        moments = np.stack([truth, result, truth * truth + result * result, truth * result])
        flat = sums(sums(moments, 3), 2)
        flat = flat if kept is None else np.concatenate([kept, flat], axis=1)
        kept = flat[:, 1 - side :]
        if flat.shape[1] < side:
            continue
        x, y, squares, product = sums(flat, 1) / (voxels or 1)
        squared_means, product_of_means = x * x + y * y, x * y
        luminance = (2 * product_of_means + c1) / (squared_means + c1)
        variances = factor * (squares - squared_means)
        covariance = factor * (product - product_of_means)
        yield stop - len(x) - side + 1, luminance, (2 * covariance + c2) / (variances + c2)


def _sums_of_seven(values: DoubleArray, axis: int) -> DoubleArray:
    """Return sums of seven neighbours along an axis, in four additions."""
    extent = values.shape[axis]
    twos = _part(values, axis, 0, extent - 1) + _part(values, axis, 1, extent - 1)
    fours = _part(twos, axis, 0, extent - 3) + _part(twos, axis, 2, extent - 3)
    six = _part(fours, axis, 0, extent - 6) + _part(twos, axis, 4, extent - 6)
    return six + _part(values, axis, 6, extent - 6)


def _gaussian_sums(values: DoubleArray, axis: int) -> DoubleArray:
    """Return means of 11 neighbours along an axis, weighted by a Gaussian."""
    weights = np.exp(-0.5 * (np.arange(_RADIUS + 1) / _SIGMA) ** 2)
    weights /= weights[0] + 2 * weights[1:].sum()
    extent = values.shape[axis] - 2 * _RADIUS
    sums = _part(values, axis, _RADIUS, extent) * weights[0]
    for apart, weight in enumerate(weights[1:], 1):
        pair = _part(values, axis, _RADIUS - apart, extent)
        pair = pair + _part(values, axis, _RADIUS + apart, extent)
        pair *= weight
        sums += pair
    return sums


def _part(values: DoubleArray, axis: int, start: int, extent: int) -> DoubleArray:
    return values[(slice(None),) * axis + (slice(start, start + extent),)]


_BOX = _Window(SIDE, SIDE**3, _sums_of_seven)
_GAUSSIAN = _Window(2 * _RADIUS + 1, None, _gaussian_sums)
