"""What a scan is like for a model, in figures, and whether that is what the model expects."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....engine.model.model_card import DEVIATIONS, PERCENTILES, Expectations, Typical
from ....engine.network.layers import triple
from ....engine.scaling import Stored
from .foreground import extents_of, foreground_level, sample_of
from .resampling import VoxelSpacing

_FINEST_INTENSITY, _FINEST_LENGTH = 0.025, 0.05
"""Smallest standard deviations that count, of network intensity and as a share of a length. In a
set from one scanner all spacings are equal, and any other would lie beyond every limit."""


@dataclass(frozen=True, slots=True)
class InputFigures:
    """What a scan is like for a model.

    intensity: of the network, in the foreground, at PERCENTILES. extent: millimetres along D, H and
    W that hold 98 % of it. spacing: millimetres along D, H and W.
    """

    intensity: tuple[float, float, float, float, float]
    extent: VoxelSpacing
    spacing: VoxelSpacing


@dataclass(frozen=True, slots=True)
class Deviation:
    """The figure of one kind that lies furthest from what is usual.

    words: what it is, and what is usual. far: how many standard deviations lie between.
    """

    words: str
    far: float


def input_figures(given: Stored, edges: VoxelSpacing, spacing: VoxelSpacing) -> InputFigures:
    """Figures of a scan as a network takes it, of one channel, from a part of its voxels.

    edges: millimetres from voxel to voxel of `given`. spacing: of the scan itself.
    """
    seen, steps = sample_of(given)
    inside = seen > foreground_level(seen)
    p5, p25, p50, p75, p95 = map(float, np.percentile(seen[inside], PERCENTILES))
    extent = triple(
        count * step * edge
        for count, step, edge in zip(extents_of(inside), steps, edges, strict=True)
    )
    return InputFigures((p5, p25, p50, p75, p95), extent, spacing)


def expectations(studies: Sequence[InputFigures]) -> Expectations:
    """What scans of a reference set are like; of two studies or more."""
    p5, p25, p50, p75, p95 = _over([study.intensity for study in studies])
    extent = triple(_over([study.extent for study in studies]))
    spacing = triple(_over([study.spacing for study in studies]))
    return Expectations(len(studies), (p5, p25, p50, p75, p95), extent, spacing)


def differences(found: InputFigures, expected: Expectations) -> tuple[str, ...]:
    """In words, what of a scan lies too far from what a model expects; nothing if all is well."""
    return tuple(each.words for each in deviations(found, expected) if each.far > DEVIATIONS)


def deviations(
    found: InputFigures, expected: Expectations
) -> tuple[Deviation, Deviation, Deviation]:
    """How far a scan lies from what a model expects: in intensity, in extent and in spacing."""
    finest = [_FINEST_INTENSITY] * len(PERCENTILES)
    at, far = _furthest(found.intensity, expected.intensity, finest)
    intensity = Deviation(
        f"percentile {PERCENTILES[at]} of its intensity in the foreground is "
        f"{found.intensity[at]:.2f} on the network's scale, {_usual(expected.intensity[at])}",
        far,
    )
    extent = _of_lengths("its foreground extends over", found.extent, expected.extent)
    return intensity, extent, _of_lengths("its spacing is", found.spacing, expected.spacing)


def _of_lengths(words: str, own: VoxelSpacing, usual: Sequence[Typical]) -> Deviation:
    finest = [max(_FINEST_LENGTH * each.mean, 1e-6) for each in usual]
    at, far = _furthest(own, usual, finest)
    return Deviation(f"{words} {own[at]:.3g} mm along {'DHW'[at]}, {_usual(usual[at])}", far)


def _furthest(
    own: Sequence[float], usual: Sequence[Typical], finest: Sequence[float]
) -> tuple[int, float]:
    """Which of some figures lies furthest from what is usual, and how many deviations."""
    far = [
        each.deviations(value, least) for value, each, least in zip(own, usual, finest, strict=True)
    ]
    worst = max(range(len(far)), key=lambda at: far[at])
    return worst, far[worst]


def _usual(figure: Typical) -> str:
    return f"where {figure.mean:.3g} is usual (sd {figure.sd:.2g})"


def _over(studies: Sequence[Sequence[float]]) -> list[Typical]:
    return [Typical.of(values) for values in zip(*studies, strict=True)]
