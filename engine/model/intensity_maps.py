"""Intensity maps of a model card: from the values of a scan to those of a network, and back."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from ..decoding import Tagged

NetworkRange: TypeAlias = Literal["-1..1", "0..1", "open"]
"""Range of a network's input or output; intensity maps are linear within it and clipped outside.

"-1..1" and "0..1" are bounded, as tanh and sigmoid are; "open" is unbounded: maps send their ends
to -1 and 1 and do not clip.
"""

USUAL_RANGE: NetworkRange = "-1..1"


class Window(Tagged, frozen=True, tag="window"):
    """Linear map from [low, high] in the scan's own unit, such as HU, to the network's range."""

    low: float
    high: float


class Percentiles(Tagged, frozen=True, tag="percentiles"):
    """Linear map from the study's own percentiles (0..100) to the network's range."""

    low: float
    high: float


class MinMax(Tagged, frozen=True, tag="minmax"):
    """Linear map from the study's own minimum and maximum to the network's range."""


class ZScore(Tagged, frozen=True, tag="zscore"):
    """(value - mean) / (`spread` * standard deviation), with those of the study."""

    spread: float = 1.0


class Identity(Tagged, frozen=True, tag="identity"):
    """No change of values."""


class Standard(Tagged, frozen=True, tag="standard"):
    """(value - mean) / sd, with fixed numbers in the scan's own unit: nnU-Net's for CT, or those of
    a target that was z-scored for training.
    """

    mean: float
    sd: float


class SampleZScore(Tagged, frozen=True, tag="sample_zscore"):
    """(value - mean) / standard deviation of the study, with n - 1 degrees of freedom as PyTorch's
    and TorchIO's.
    """


class ClipValues(Tagged, frozen=True, tag="clip"):
    """Values below `low` become `low`, those above `high` become `high`. Cannot be undone."""

    low: float
    high: float


class ClipPercentiles(Tagged, frozen=True, tag="clip_percentiles"):
    """ClipValues to the study's own percentiles (0..100)."""

    low: float
    high: float


class Logarithm(Tagged, frozen=True, tag="log"):
    """Natural logarithm of value + offset."""

    offset: float


class GammaCurve(Tagged, frozen=True, tag="gamma"):
    """Absolute value to the power of gamma, with the sign of the value, as TorchIO's."""

    gamma: float


Linear: TypeAlias = Window | Percentiles | MinMax | ZScore | SampleZScore | Standard
"""Maps that are a line, for one study."""

IntensityStep: TypeAlias = Linear | ClipValues | ClipPercentiles | Logarithm | GammaCurve

Voxels: TypeAlias = Literal["all", "nonzero", "positive", "above_mean", "filled"]
"""Voxels of a scan that its statistics are measured on: those other than 0, above 0, above the
scan's mean, or the ones other than 0 in any scan of the study with the holes between them filled
(nnU-Net's mask).
"""


class Steps(Tagged, frozen=True, tag="steps"):
    """Maps applied one after another, each with statistics of what the one before it makes.

    steps: the maps. over: voxels that are measured. outside: what the others become: mapped alike,
    or 0, in results too.
    """

    steps: tuple[IntensityStep, ...]
    over: Voxels = "all"
    outside: Literal["mapped", "zero"] = "mapped"


IntensityMap: TypeAlias = Linear | Identity | Steps
"""Map from scan values to network values; its inverse is applied to the output. There, maps with
statistics of the study use those of the input study, of several scans the first."""

ChannelMaps: TypeAlias = IntensityMap | tuple[IntensityMap, ...]
"""One map for all channels, or one per channel, in the network's order."""


def has_ends(intensity: IntensityMap) -> bool:
    """Return whether a map has ends, which lie at those of the network's range."""
    match intensity:
        case Steps(steps):
            return any(isinstance(step, Window | Percentiles | MinMax) for step in steps)
        case _:
            return isinstance(intensity, Window | Percentiles | MinMax)


def is_measured(intensity: IntensityMap | IntensityStep) -> bool:
    """Return whether a map uses statistics of the study."""
    match intensity:
        case Steps(steps):
            return any(map(is_measured, steps))
        case _:
            return isinstance(
                intensity, Percentiles | MinMax | ZScore | SampleZScore | ClipPercentiles
            )


def is_bent(intensity: IntensityMap) -> bool:
    """Return whether equal differences of network values are unequal ones in the scan's unit."""
    return isinstance(intensity, Steps) and any(
        isinstance(step, Logarithm | GammaCurve) for step in intensity.steps
    )


_LARGEST_VALUE, _SMALLEST_STEP = 1e20, 1e-20
"""Limits of scan values in any unit, between which float32 neither overflows nor loses digits."""

_SPREADS = (1e-3, 1e3)
_NARROWEST_PERCENTILES = 0.01
_GAMMAS = (0.01, 100.0)
_MOST_STEPS = 16


def invalid_numbers(intensity: IntensityMap | IntensityStep) -> Iterator[tuple[str, str]]:
    """Yield the field (empty for the map as a whole) and the reason of each number with which no
    scan could be mapped.
    """
    match intensity:
        case Steps(steps):
            yield from _invalid_steps(intensity)
            for at, step in enumerate(steps):
                yield from ((f".steps[{at}]{field}", why) for field, why in invalid_numbers(step))
        case (
            Window(low, high)
            | Percentiles(low, high)
            | ClipValues(low, high)
            | ClipPercentiles(low, high)
        ) if low >= high:
            yield ".low", f"must be below 'high', but {low:g} >= {high:g}"
        case Percentiles(low, high) | ClipPercentiles(low, high) if low < 0 or high > 100:
            yield "", "must have percentiles from 0 to 100"
        case Percentiles(low, high) | ClipPercentiles(low, high) if (
            high - low < _NARROWEST_PERCENTILES
        ):
            yield "", f"must have percentiles at least {_NARROWEST_PERCENTILES:g} apart"
        case Window(low, high) | ClipValues(low, high) if max(abs(low), abs(high)) > _LARGEST_VALUE:
            yield "", f"must have values of no more than {_LARGEST_VALUE:g}"
        case Window(low, high) | ClipValues(low, high) if high - low < (
            least := _narrowest(low, high)
        ):
            yield "", f"must have limits at least {least:g} apart, not {high - low:g}"
        case ZScore(spread) if not _SPREADS[0] <= spread <= _SPREADS[1]:
            yield ".spread", f"must be from {_SPREADS[0]:g} to {_SPREADS[1]:g}, not {spread:g}"
        case Standard(mean, sd) if abs(mean) > _LARGEST_VALUE or sd > _LARGEST_VALUE:
            yield "", f"must have values of no more than {_LARGEST_VALUE:g}"
        case Standard(mean, sd) if sd < (least := _narrowest(mean, mean)):
            yield ".sd", f"must be at least {least:g}, not {sd:g}"
        case Logarithm(offset) if abs(offset) > _LARGEST_VALUE:
            yield ".offset", f"must be no more than {_LARGEST_VALUE:g}"
        case GammaCurve(gamma) if not _GAMMAS[0] <= gamma <= _GAMMAS[1]:
            yield ".gamma", f"must be from {_GAMMAS[0]:g} to {_GAMMAS[1]:g}, not {gamma:g}"
        case _:
            pass


def _invalid_steps(chain: Steps) -> Iterator[tuple[str, str]]:
    if not 1 <= len(chain.steps) <= _MOST_STEPS:
        yield ".steps", f"must hold 1 to {_MOST_STEPS} maps"
    if chain.outside == "zero" and chain.over == "all":
        yield ".outside", "must be 'mapped' where all voxels are measured"


def _narrowest(low: float, high: float) -> float:
    """Return the window width below which float32 loses all resolution, or the map overflows."""
    return max(_SMALLEST_STEP, 1e-6 * max(abs(low), abs(high)))
