"""Voxel-wise metrics: mean absolute error, peak signal-to-noise ratio, Pearson's r."""

from dataclasses import dataclass
from math import fsum, inf, isfinite, log10, sqrt

import numpy as np

from ...io.volume import AnyArray, DoubleArray
from ..study.statistics import Range
from .images import Images, StoredImage

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
    return Census(voxels, (bad_truth, bad_result), within, _lowest(images.truth))


def _lowest(truth: StoredImage) -> float:
    """Return the least value that is a number."""
    ends = [float(pick.reduce(truth.voxels, axis=None)) for pick in (np.fmin, np.fmax)]
    return min(end * truth.slope + truth.intercept for end in ends)


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between truth and result over the voxels that count.

    mae: mean absolute error. psnr: in decibels; None if truth and result are equal. r: Pearson's
    correlation; None if one of them is constant. beyond: number of truth values outside of the data
    range. at: plane k, row j and column i with the most absolute error, or the middle ones if none
    stands out.
    """

    mae: float
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
    squares: list[float] = []
    beyond = 0
    profiles = [np.zeros(extent) for extent in images.extents]
    moments = _Moments()
    for planes, flags, truth, result in images.counted():
        if not truth.size:
            continue
        error = np.abs(result - truth)
        absolute.append(float(error.sum()))
        _add_profiles(profiles, planes, flags, error)
        moments.add(truth, result)
        beyond += int(np.count_nonzero((truth < data_range.low) | (truth > data_range.high)))
        if clips:
            truth, result = (np.clip(x, data_range.low, data_range.high) for x in (truth, result))
        squares.append(float(np.square(result - truth).sum()))
    mean_square = fsum(squares) / moments.count
    peak = data_range.high - data_range.low
    k, j, i = map(_shown_at, profiles)
    return Differences(
        mae=fsum(absolute) / moments.count,
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
