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


IntensityMap: TypeAlias = Window | Percentiles | MinMax | ZScore | Identity
"""Map from scan values to network values; its inverse is applied to the output. There, Percentiles,
MinMax and ZScore use the statistics of the input study, of several scans the first."""

ChannelMaps: TypeAlias = IntensityMap | tuple[IntensityMap, ...]
"""One map for all channels, or one per channel, in the network's order."""

_LARGEST_VALUE, _SMALLEST_STEP = 1e20, 1e-20
"""Limits of scan values in any unit, between which float32 neither overflows nor loses digits."""

_SPREADS = (1e-3, 1e3)
_NARROWEST_PERCENTILES = 0.01


def invalid_numbers(intensity: IntensityMap) -> Iterator[tuple[str, str]]:
    """Yield the field (empty for the map as a whole) and the reason of each number with which no
    scan could be mapped.
    """
    match intensity:
        case Window(low, high) | Percentiles(low, high) if low >= high:
            yield ".low", f"must be below 'high', but {low:g} >= {high:g}"
        case Percentiles(low, high) if low < 0 or high > 100:
            yield "", "must have percentiles from 0 to 100"
        case Percentiles(low, high) if high - low < _NARROWEST_PERCENTILES:
            yield "", f"must have percentiles at least {_NARROWEST_PERCENTILES:g} apart"
        case Window(low, high) if max(abs(low), abs(high)) > _LARGEST_VALUE:
            yield "", f"must have values of no more than {_LARGEST_VALUE:g}"
        case Window(low, high) if high - low < _narrowest(low, high):
            yield (
                "",
                f"must have limits at least {_narrowest(low, high):g} apart, not {high - low:g}",
            )
        case ZScore(spread) if not _SPREADS[0] <= spread <= _SPREADS[1]:
            yield ".spread", f"must be from {_SPREADS[0]:g} to {_SPREADS[1]:g}, not {spread:g}"
        case _:
            pass


def _narrowest(low: float, high: float) -> float:
    """Return the window width below which float32 loses all resolution, or the map overflows."""
    return max(_SMALLEST_STEP, 1e-6 * max(abs(low), abs(high)))
