"""Linear maps between stored voxels and network intensities, and arrays of stored voxels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import PrecisionOverflowError
from .network.layers import FloatArray

VoxelArray: TypeAlias = npt.NDArray[Any]

VOXEL_TYPES = ("float32", "int8", "uint8", "int16", "uint16")
"""Voxel types that the GPU reads and writes itself, in the order of `enum Voxel` in
sliding_window.cu.
"""


@dataclass(frozen=True, slots=True)
class Clipped:
    """Values that an integer type could not hold, as stored numbers.

    below, above: how many were less than the type's lowest number, or more than its highest.
    lowest, highest: the farthest of them; the type's own if there were none.
    """

    below: int
    above: int
    lowest: float
    highest: float

    def __bool__(self) -> bool:
        return bool(self.below or self.above)

    def __add__(self, other: "Clipped") -> "Clipped":
        return Clipped(
            self.below + other.below,
            self.above + other.above,
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
        )


NOTHING_CLIPPED = Clipped(0, 0, inf, -inf)


@dataclass(frozen=True, slots=True)
class Scaling:
    """network = (value - centre) / radius, then kept within [lowest, 1] if `clips`.

    lowest: -1, or 0 for networks of the range [0, 1].
    """

    centre: float = 0.0
    radius: float = 1.0
    clips: bool = False
    lowest: float = -1.0

    @property
    def ends(self) -> tuple[float, float]:
        """Values that `lowest` and 1 represent, the lower one first."""
        ends = self.centre + self.lowest * self.radius, self.centre + self.radius
        low, high = sorted(ends)
        return low, high

    def of_stored(self, slope: float, intercept: float) -> "Scaling":
        """Return the same map for values that are stored as (value - intercept) / slope."""
        centre, radius = (self.centre - intercept) / slope, self.radius / slope
        return Scaling(centre, radius, self.clips, self.lowest)

    def forward(self, values: VoxelArray, out: FloatArray | None = None) -> FloatArray:
        """Return network intensities in `out` or new memory, by the arithmetic of `calculus`."""
        exact = calculus(values.dtype)
        place = out if exact is np.float32 else None
        network: VoxelArray = np.empty_like(values, dtype=exact) if place is None else place
        np.copyto(network, values)  # by itself: NumPy converts and subtracts at a third less speed
        network -= self.centre
        network /= self.radius
        if self.clips:
            np.clip(network, self.lowest, 1, out=network)
        if out is None:
            return network.astype(np.float32, copy=False)
        if network is not out:
            out[...] = network
        return out

    def inverse(self, network: FloatArray, stored: "np.dtype[Any]") -> npt.NDArray[np.floating]:
        """Return values for this voxel type, not rounded and not clipped, in new memory."""
        values = np.multiply(network, self.radius, dtype=calculus(stored))
        values += self.centre
        return values

    def store(self, network: FloatArray, out: VoxelArray) -> Clipped:
        """Write the values that network intensities represent to `out`.

        Integers are rounded half to even and clipped to the type; nothing wraps around. Return what
        was clipped. Raises PrecisionOverflowError if a value is too large for a floating-point
        type.
        """
        values, clipped = self.inverse(network, out.dtype), NOTHING_CLIPPED
        if out.dtype.kind in "iu":
            np.rint(values, out=values)
            clipped = _clip(values, np.iinfo(out.dtype).min, _largest(out.dtype))
        try:
            with np.errstate(over="raise"):
                out[...] = values
        except FloatingPointError as error:
            raise PrecisionOverflowError(
                f"A value of the result is too large for its voxel type, {out.dtype}."
            ) from error
        return clipped


def _clip(values: npt.NDArray[np.floating], low: float, high: float) -> Clipped:
    """Clip values in place; return how many were beyond the ends.

    Their extremes cost less time than clipping, which is then seldom needed.
    """
    lowest, highest = values.min(initial=low), values.max(initial=high)
    if low == lowest and highest == high:
        return NOTHING_CLIPPED
    below = int(np.count_nonzero(values < low)) if lowest != low else 0
    above = int(np.count_nonzero(values > high)) if highest != high else 0
    np.clip(values, low, high, out=values)
    return Clipped(below, above, float(lowest), float(highest))


def _ignore_rows(_rows: int) -> None:
    """Progress callback that does nothing."""


def _ignore_clipped(_clipped: Clipped) -> None:
    """Callback that does nothing."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Voxels [C, D, H, W] as stored, and the map from them to network intensities.

    values: the voxels. scaling: the map. on_rows: for output voxels, called with the number of rows
    of all channels that are final, counted from the start of the slowest axis in memory.
    on_clipped: for output voxels, called with what their type could not hold, part by part.
    """

    values: VoxelArray
    scaling: Scaling = Scaling()
    on_rows: Callable[[int], None] = field(default=_ignore_rows, compare=False)
    on_clipped: Callable[[Clipped], None] = field(default=_ignore_clipped, compare=False)

    def store(self, network: FloatArray, row: int) -> None:
        """Store network intensities [C, H, W] as a row along D. Raises PrecisionOverflowError."""
        if clipped := self.scaling.store(network, self.values[:, row]):
            self.on_clipped(clipped)

    def lowest(self) -> FloatArray:
        """Lowest network intensity of each channel, [C]."""
        axes = (1, 2, 3)
        ends = np.stack([self.values.min(axis=axes), self.values.max(axis=axes)])
        return self.scaling.forward(ends).min(axis=0)

    def beyond(self, padding: str | float) -> FloatArray | None:
        """Network intensity of each channel beyond the array, [C]: its lowest or a number; None
        if a padding repeats or mirrors the border.
        """
        if padding == "minimum":
            return self.lowest()
        return None if isinstance(padding, str) else np.full(len(self.values), padding, np.float32)


def is_taken_as_stored(voxels: "np.dtype[Any]") -> bool:
    """Return whether arrays of a voxel type can be input and output as stored, on any device."""
    return voxels.isnative and voxels.name in VOXEL_TYPES


def calculus(voxels: "np.dtype[Any]") -> "type[np.float32 | np.float64]":
    """Return the arithmetic for a voxel type: float32 if it represents every value, in half the
    time.

    Integers of up to 16 bits are unchanged by a round trip if a map spans up to a million of them.
    """
    is_short = voxels.kind in "iu" and voxels.itemsize <= 2
    return np.float32 if is_short else np.float64


def _largest(dtype: "np.dtype[Any]") -> float:
    """Return the largest float64 of the integer type; for 64 bits it is below the type's own."""
    limit = np.iinfo(dtype).max
    return float(limit) if int(float(limit)) <= limit else float(np.nextafter(float(limit), 0))
