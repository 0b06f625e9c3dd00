"""Intensity maps of a model card, fitted to a study: scan values to network values and back."""

import numpy as np

from ....engine.model.model_card import (
    USUAL_RANGE,
    Identity,
    IntensityMap,
    MinMax,
    NetworkRange,
    Percentiles,
    Window,
    ZScore,
)
from ....engine.scaling import Scaling
from ....io.volume import Volume
from ...errors import PreparationError
from .statistics import Range, mean_and_deviation, percentiles, share_between


def fit(
    intensity: IntensityMap, volume: Volume, measured: Range, onto: NetworkRange = USUAL_RANGE
) -> Scaling:
    """A card's map with the numbers that it takes from a study, measured on the scan's own grid.

    measured: the study's `study_range`. onto: the network's range. Raises PreparationError if the
    asked percentiles are equal.
    """
    match intensity:
        case Window(low, high):
            return _between(Range(low, high), onto, clips=True)
        case Percentiles(low, high):
            ends = percentiles(volume, low, high)
            if ends.low == ends.high:
                raise PreparationError(
                    f"Percentiles {low:g} and {high:g} of this study are both {ends.low:g}, so "
                    "its intensities cannot be mapped; it is nearly constant."
                )
            return _between(ends, onto, clips=True)
        case MinMax():
            return _between(measured, onto)
        case ZScore(spread):
            mean, deviation = mean_and_deviation(volume)
            return Scaling(mean, deviation * spread)
        case Identity():
            return Scaling()


FEWEST_STEPS = 255
"""Steps of 32-bit floats that a scan's values span at least where no map brings them near 0."""


def check_told_apart(intensity: IntensityMap, measured: Range) -> None:
    """Raise PreparationError if values that go in as they are would be rounded to each other."""
    if not isinstance(intensity, Identity):
        return
    largest = np.float32(max(abs(measured.low), abs(measured.high)))
    if measured.high - measured.low < FEWEST_STEPS * float(np.spacing(largest)):
        raise PreparationError(
            f"The values reach from {measured.low:.12g} to {measured.high:.12g}, which the 32-bit "
            "floats of a network hardly tell apart; take the offset off them, or check the scaling "
            "in the scan's header."
        )


WHOLE_NUMBERS = 1 << 24
"""Up to here 32-bit floats have all of them."""


def notes_of_rounding(volume: Volume, measured: Range) -> tuple[str, ...]:
    """A note on whole numbers that a network's 32-bit floats round."""
    ends = (measured.low, measured.high)
    largest = max(abs((end - volume.intercept) / volume.slope) for end in ends)
    if volume.voxels.dtype.kind not in "iu" or largest <= WHOLE_NUMBERS:
        return ()
    step = float(np.spacing(np.float32(largest))) * abs(volume.slope)
    return (
        f"its voxels are whole numbers up to {largest:.0f}, and the network's 32-bit floats have "
        f"all of them up to {WHOLE_NUMBERS}: values are rounded to steps of {step:g}",
    )


LEAST_SHOWN = 0.01
"""Of a fixed window, or of a scan's voxels: with less, the scan seems to be in another unit."""


def notes_of_window(
    intensity: IntensityMap, volume: Volume, measured: Range, onto: NetworkRange = USUAL_RANGE
) -> tuple[str, ...]:
    """A note on a scan of which a fixed window shows hardly anything, as of one in another unit.

    Raises PreparationError if it shows nothing.
    """
    if not isinstance(intensity, Window) or onto == "open":
        return ()
    low, high = intensity.low, intensity.high
    ends = f"from {measured.low:g} to {measured.high:g}"
    window = f"the model's window from {low:g} to {high:g}"
    shown = (min(high, measured.high) - max(low, measured.low)) / (high - low)
    if shown <= 0:
        raise PreparationError(
            f"The values reach {ends}, all outside {window}; the scan is in another unit, or the "
            "model is for others."
        )
    if shown < LEAST_SHOWN:
        return (f"its values reach {ends}, {shown:.2%} of {window}; check its unit",)
    is_clipped = measured.low < low or measured.high > high
    if is_clipped and (inside := share_between(volume, Range(low, high))) < LEAST_SHOWN:
        told = f"its values reach {ends}, and only {inside:.2%} of its voxels lie within"
        return (f"{told} {window}; check its unit",)
    return ()


def _between(ends: Range, onto: NetworkRange, *, clips: bool = False) -> Scaling:
    if onto == "0..1":
        return Scaling(ends.low, ends.high - ends.low, clips, lowest=0.0)
    middle, half = (ends.low + ends.high) / 2, (ends.high - ends.low) / 2
    return Scaling(middle, half, clips and onto != "open")
