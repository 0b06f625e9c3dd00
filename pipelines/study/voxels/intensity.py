"""Intensity maps of a model card, fitted to a study: scan values to network values and back."""

from ....engine.model.card import Identity, IntensityMap, MinMax, Percentiles, Window, ZScore
from ....engine.scaling import Scaling
from ....io.volume import Volume
from ...errors import PreparationError
from .statistics import Range, mean_and_deviation, percentiles


def fit(intensity: IntensityMap, volume: Volume, measured: Range) -> Scaling:
    """A card's map with the numbers that it takes from a study, measured on the scan's own grid.

    measured: the study's `study_range`. Raises PreparationError if the asked percentiles are equal.
    """
    match intensity:
        case Window():
            return of_window(intensity)
        case Percentiles(low, high):
            ends = percentiles(volume, low, high)
            if ends.low == ends.high:
                raise PreparationError(
                    f"Percentiles {low:g} and {high:g} of this study are both {ends.low:g}, so "
                    "its intensities cannot be mapped; it is nearly constant."
                )
            return _between(ends, clips=True)
        case MinMax():
            return _between(measured)
        case ZScore(spread):
            mean, deviation = mean_and_deviation(volume)
            return Scaling(mean, deviation * spread)
        case Identity():
            return Scaling()


def of_window(window: Window) -> Scaling:
    """The map of a window, which is the same for every study."""
    return _between(Range(window.low, window.high), clips=True)


def _between(ends: Range, *, clips: bool = False) -> Scaling:
    return Scaling((ends.low + ends.high) / 2, (ends.high - ends.low) / 2, clips)
