"""From values to shades on a screen: grey windows, and blue to orange for differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.graph import FloatArray
from .measuring import Range

Rgb: TypeAlias = npt.NDArray[np.uint8]
Values: TypeAlias = npt.NDArray[np.float64]

_OUTLIERS = 0.5
"""Percent of pixels left outside a window at either end, so that one bright vessel does not
darken all the rest."""

_LESS = np.array([64, 156, 255], np.float32)
_MORE = np.array([255, 140, 40], np.float32)


@dataclass(frozen=True, slots=True)
class Shades:
    """A window of values, shown from black to white or, if signed, from blue over black to orange.

    A signed window is symmetric about 0.
    """

    window: Range
    signed: bool = False

    def level(self, values: Values) -> Values:
        """From 0 to 1 where values lie within the window, and 0 or 1 outside of it."""
        low, high = self.window.low, self.window.high
        return np.clip((values - low) / (high - low), 0, 1)

    def rgb(self, level: FloatArray) -> Rgb:
        """Levels as colours, [..., 3]."""
        level = level[..., None]
        if not self.signed:
            return np.rint(np.repeat(level, 3, axis=-1) * 255).astype(np.uint8)
        signed = level * 2 - 1
        return np.rint(np.where(signed < 0, _LESS, _MORE) * np.abs(signed)).astype(np.uint8)


def grey_shades(planes: Sequence[Values], fixed: Range | None = None) -> Shades:
    """A grey window: a fixed one, or one that all but the outliers of the planes lie within."""
    return Shades(fixed or _spread(planes))


def difference_shades(planes: Sequence[Values]) -> Shades:
    """A signed window that all but the outliers of the planes lie within."""
    spread = _spread(planes)
    largest = max(abs(spread.low), abs(spread.high))
    return Shades(Range(-largest, largest), signed=True)


def _spread(planes: Sequence[Values]) -> Range:
    every = np.concatenate([plane.ravel() for plane in planes])
    low, high = (float(end) for end in np.percentile(every, [_OUTLIERS, 100 - _OUTLIERS]))
    return Range(low, high) if low < high else Range(low - 0.5, low + 0.5)
