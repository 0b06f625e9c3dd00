"""Intensity maps of a model card, fitted to a study: scan values to network values and back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.card import Identity, IntensityMap, MinMax, Percentiles, Window, ZScore
from ..engine.graph import FloatArray
from ..io.volume import AnyArray, Volume
from .errors import PreparationError
from .measuring import Range, mean_and_deviation, percentiles


@dataclass(frozen=True, slots=True)
class Scaling:
    """network = (value - centre) / radius, then kept within [-1, 1] if `clips`."""

    centre: float
    radius: float
    clips: bool = False

    @property
    def range(self) -> Range:
        """Values that -1 and 1 stand for."""
        ends = sorted((self.centre - self.radius, self.centre + self.radius))
        return Range(ends[0], ends[1])

    def of_stored(self, slope: float, intercept: float) -> "Scaling":
        """The same map for values that are stored as (value - intercept) / slope."""
        return Scaling((self.centre - intercept) / slope, self.radius / slope, self.clips)

    def forward(self, values: AnyArray, out: FloatArray | None = None) -> FloatArray:
        """Network intensities in `out` or new memory, by the arithmetic of `calculus`."""
        exact = calculus(values.dtype)
        place = out if exact is np.float32 else None
        network: AnyArray = np.empty_like(values, dtype=exact) if place is None else place
        np.copyto(network, values)  # by itself: NumPy converts and subtracts at a third less speed
        network -= self.centre
        network /= self.radius
        if self.clips:
            np.clip(network, -1, 1, out=network)
        if out is None:
            return network.astype(np.float32, copy=False)
        if network is not out:
            out[...] = network
        return out

    def inverse(self, network: FloatArray, stored: "np.dtype[Any]") -> npt.NDArray[np.floating]:
        """Values for this voxel type, not rounded and not clipped, in new memory."""
        values = np.multiply(network, self.radius, dtype=calculus(stored))
        values += self.centre
        return values


def calculus(voxels: "np.dtype[Any]") -> "type[np.float32 | np.float64]":
    """The arithmetic for a voxel type: float32 where it holds every value, at half the time.

    Integers of up to 16 bits come back as they were where a map spans up to a million of them.
    """
    is_short = voxels.kind in "iu" and voxels.itemsize <= 2
    return np.float32 if is_short else np.float64


def fit(intensity: IntensityMap, volume: Volume, measured: Range) -> Scaling:
    """A card's map with the numbers that it takes from a study, measured on the scan's own grid.

    measured: the study's `study_range`. Raises PreparationError if the asked percentiles are equal.
    """
    match intensity:
        case Window(low, high):
            return _between(Range(low, high), clips=True)
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
            return Scaling(0.0, 1.0)


def _between(ends: Range, *, clips: bool = False) -> Scaling:
    return Scaling((ends.low + ends.high) / 2, (ends.high - ends.low) / 2, clips)
