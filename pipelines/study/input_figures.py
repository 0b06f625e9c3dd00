"""Figures of a scan as the model sees it, and their comparison with a calibration set."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

import numpy as np

from ...engine.model.calibration import (
    DEVIATIONS,
    PERCENTILES,
    Expectations,
    ScanProfiles,
    Typical,
)
from ...engine.network.layers import triple
from ...engine.scaling import Stored
from .geometry import VoxelSpacing
from .statistics import extents_of, foreground_level, profiles_of, sample_of

_FINEST_INTENSITY, _FINEST_LENGTH = 0.025, 0.05
"""Smallest standard deviations that count, of network intensity and as a share of a length. In a
set from one scanner all spacings are equal, and any other would exceed every limit.
"""

_FINEST_SHARE = 0.02
"""The same of the foreground in an eighth, by the mean of all eighths."""


@dataclass(frozen=True, slots=True)
class InputFigures:
    """Figures of a scan as the model sees it.

    intensity: of the network, in the foreground, at PERCENTILES. extent: millimetres along D, H and
    W that hold 98 % of it. spacing: millimetres along D, H and W. profiles: foreground in each
    eighth of that extent, by the mean of all eighths, along D, H and W.
    """

    intensity: tuple[float, float, float, float, float]
    extent: VoxelSpacing
    spacing: VoxelSpacing
    profiles: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Deviation:
    """Figure of one kind that differs most from the usual. words: the figure and the usual one.
    far: number of standard deviations between them.
    """

    words: str
    far: float


def input_figures(source: Stored, edges: VoxelSpacing, spacing: VoxelSpacing) -> InputFigures:
    """Compute figures of a network input of one channel from a part of its voxels.

    edges: millimetres from voxel to voxel of `source`. spacing: of the scan itself.
    """
    sample, steps = sample_of(source)
    inside = sample > foreground_level(sample)
    p5, p25, p50, p75, p95 = map(float, np.percentile(sample[inside], PERCENTILES))
    extent = triple(
        count * step * edge
        for count, step, edge in zip(extents_of(inside), steps, edges, strict=True)
    )
    return InputFigures((p5, p25, p50, p75, p95), extent, spacing, profiles_of(inside))


def expectations(studies: Sequence[InputFigures]) -> Expectations:
    """Summarise the scans of a reference set; of two studies or more."""
    p5, p25, p50, p75, p95 = _over([study.intensity for study in studies])
    extent = triple(_over([study.extent for study in studies]))
    spacing = triple(_over([study.spacing for study in studies]))
    return Expectations(len(studies), (p5, p25, p50, p75, p95), extent, spacing)


def scan_profiles(studies: Sequence[InputFigures]) -> ScanProfiles:
    """Summarise how the foreground is distributed in the scans of a reference set."""
    d, h, w = (tuple(_over([study.profiles[axis] for study in studies])) for axis in range(3))
    return ScanProfiles(d, h, w)


def differences(found: Sequence[Deviation]) -> tuple[str, ...]:
    """Describe the figures of a scan that lie too far from a model's expectations; usually none."""
    return tuple(each.words for each in found if each.far > DEVIATIONS)


def deviations(
    found: InputFigures, expected: Expectations, profiles: ScanProfiles | None = None
) -> tuple[Deviation, ...]:
    """Return how far a scan lies from a model's expectations: in intensity, extent, spacing, and
    the distribution of its foreground, if the model has it.
    """
    finest = [_FINEST_INTENSITY] * len(PERCENTILES)
    at, far = _furthest(found.intensity, expected.intensity, finest)
    intensity = Deviation(
        f"percentile {PERCENTILES[at]} of its intensity in the foreground is "
        f"{found.intensity[at]:.2f} on the network's scale, {_usual(expected.intensity[at])}",
        far,
    )
    extent = _of_lengths("its foreground extends over", found.extent, expected.extent)
    spacing = _of_lengths("its spacing is", found.spacing, expected.spacing)
    of_profiles = (_of_profiles(found.profiles, profiles),) if profiles else ()
    return intensity, extent, spacing, *of_profiles


def _of_profiles(own: Sequence[Sequence[float]], usual: ScanProfiles) -> Deviation:
    """Return the deviation along the axis whose eighths differ most, by their root mean square."""
    pairs = [*zip(own, usual.axes, strict=True)]
    far = [_root_mean_square(*each) for each in pairs]
    axis = max(range(len(far)), key=lambda at: far[at])
    mirrored = _root_mean_square(own[axis][::-1], usual.axes[axis])
    if mirrored < min(far[axis] / 2, DEVIATIONS):
        words = f"its foreground lies along {'DHW'[axis]} as in a mirrored scan"
        return Deviation(words, far[axis])
    at, _ = _furthest(*pairs[axis], [_FINEST_SHARE] * len(own[axis]))
    words = f"{own[axis][at] / len(own[axis]):.1%} of its foreground lies in eighth {at + 1}"
    middle = usual.axes[axis][at].mean / len(own[axis])
    return Deviation(f"{words} along {'DHW'[axis]}, where {middle:.1%} is usual", far[axis])


def _root_mean_square(own: Sequence[float], usual: Sequence[Typical]) -> float:
    each = [one.deviations(value, _FINEST_SHARE) for value, one in zip(own, usual, strict=True)]
    return sqrt(fsum(far**2 for far in each) / len(each))


def _of_lengths(words: str, own: VoxelSpacing, usual: Sequence[Typical]) -> Deviation:
    finest = [max(_FINEST_LENGTH * each.mean, 1e-6) for each in usual]
    at, far = _furthest(own, usual, finest)
    return Deviation(f"{words} {own[at]:.3g} mm along {'DHW'[at]}, {_usual(usual[at])}", far)


def _furthest(
    own: Sequence[float], usual: Sequence[Typical], finest: Sequence[float]
) -> tuple[int, float]:
    """Return the index of the figure that lies furthest from the usual, and the deviations."""
    far = [
        each.deviations(value, least) for value, each, least in zip(own, usual, finest, strict=True)
    ]
    worst = max(range(len(far)), key=lambda at: far[at])
    return worst, far[worst]


def _usual(figure: Typical) -> str:
    return f"where {figure.mean:.3g} is usual (sd {figure.sd:.2g})"


def _over(studies: Sequence[Sequence[float]]) -> list[Typical]:
    return [Typical.of(values) for values in zip(*studies, strict=True)]
