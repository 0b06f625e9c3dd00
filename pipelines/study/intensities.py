"""Intensity maps of a card fitted to a study: its statistics, and the mapping from scan values to
network intensities and back.

A map is a chain of steps. The last one is linear, which a GPU applies by itself if it is the only
one; the steps before it, and the region of voxels that a chain is for, are applied on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from math import isfinite, sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...engine.model import intensity_maps as maps
from ...engine.model.intensity_maps import IntensityMap, IntensityStep, Linear, NetworkRange, Voxels
from ...engine.model.model_card import ModelCard
from ...engine.network.layers import FloatArray, triple
from ...engine.scaling import Clipped, Scaling
from ...io.volume import AnyArray, Volume
from ..errors import PreparationError
from .patches import Box
from .statistics import Range, extremes, mean_and_deviation, percentiles

Mask: TypeAlias = npt.NDArray[np.bool_]
Values: TypeAlias = npt.NDArray[np.floating]
FittedStep: TypeAlias = Scaling | maps.ClipValues | maps.Logarithm | maps.GammaCurve
"""IntensityStep with fitted numbers."""

_LARGEST_EXPONENT = float(np.log(np.finfo(np.float32).max))


def forward(step: FittedStep, values: Values) -> Values:
    """Apply a step; returns new memory."""
    match step:
        case Scaling():
            out = np.subtract(values, step.centre) / step.radius
            return np.clip(out, step.lowest, 1) if step.clips else out
        case maps.ClipValues(low, high):
            return np.clip(values, low, high)
        case maps.Logarithm(offset):
            return np.log(values + offset)
        case maps.GammaCurve(gamma):
            return np.sign(values) * np.abs(values) ** gamma


def inverse(step: FittedStep, values: Values) -> Values:
    """Undo a step, as far as it can be undone; returns new memory or the values themselves."""
    match step:
        case Scaling():
            return values * step.radius + step.centre
        case maps.ClipValues():
            return values
        case maps.Logarithm(offset):
            return np.exp(np.minimum(values, _LARGEST_EXPONENT)) - offset
        case maps.GammaCurve(gamma):
            return np.sign(values) * np.abs(values) ** (1 / gamma)


@dataclass(frozen=True, slots=True)
class FittedMap:
    """Map of one channel: scan value -> steps -> scaling -> network intensity, and back.

    scaling: the last, linear step. steps: those before it. inside: voxels [i, j, k] of the scan
    outside of which network intensities and results are 0; None if there are none.
    """

    scaling: Scaling
    steps: tuple[FittedStep, ...] = ()
    inside: Mask | None = None

    @property
    def is_linear(self) -> bool:
        """Whether the map is its scaling alone."""
        return not self.steps and self.inside is None

    def values(self, network: AnyArray) -> Values:
        """Return the scan values of network intensities as float64, wherever they lie."""
        values: Values = self.scaling.inverse(network, np.dtype(np.float64))
        for step in reversed(self.steps):
            values = inverse(step, values)
        return values

    def network(self, value: float) -> float:
        """Return the network intensity whose scan value is `value`, also beyond what is clipped.

        Raises PreparationError if there is none.
        """
        values: Values = np.array([value])
        with np.errstate(all="ignore"):
            for step in self.steps:
                values = values if isinstance(step, maps.ClipValues) else forward(step, values)
            network = float((values[0] - self.scaling.centre) / self.scaling.radius)
        if not isfinite(network):
            raise PreparationError(
                f"Results cannot be filled with {value:g}, which the model's output intensities "
                "cannot have; import the model with another fill in setting grid-window."
            )
        return network

    @property
    def ends(self) -> tuple[float, float]:
        """Scan values at the ends of a bounded network's range, the lower one first."""
        if self.is_linear:
            return self.scaling.ends
        low, high = sorted(map(float, self.values(np.array([self.scaling.lowest, 1.0]))))
        return (low, high) if self.inside is None else (min(low, 0.0), max(high, 0.0))


@dataclass(frozen=True, slots=True)
class MappedVoxels:
    """Stored voxels [D, H, W] along the model's axes, and the map that they are read or written by.

    slope, intercept: of the stored voxels. fitted: the map. inside: its region, along the model's
    axes.
    """

    voxels: AnyArray
    slope: float
    intercept: float
    fitted: FittedMap
    inside: Mask | None = None

    @property
    def scaling(self) -> Scaling:
        """Last step, for stored voxels; the whole map if it is linear."""
        return self.fitted.scaling.of_stored(self.slope, self.intercept)

    def read(self, slab: Any, out: FloatArray | None = None) -> FloatArray:
        """Return the network intensities of a slab, in `out` or new memory."""
        fitted, stored = self.fitted, self.voxels[slab]
        if fitted.is_linear:
            return self.scaling.forward(stored, out)
        values: Values = stored * np.float64(self.slope) + self.intercept
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # of voxels outside, which are set to 0
            for step in fitted.steps:
                values = forward(step, values)
        network = fitted.scaling.forward(values, out)
        if self.inside is not None:
            network[~self.inside[slab]] = 0
        return network

    def write(self, network: FloatArray, slab: Any) -> Clipped:
        """Store a slab of network intensities; return what the voxel type could not hold.

        Raises PrecisionOverflowError.
        """
        fitted, stored = self.fitted, self.voxels[slab]
        if fitted.is_linear:
            return self.scaling.store(network, stored)
        values = fitted.values(network)
        if self.inside is not None:
            values[~self.inside[slab]] = 0
        return Scaling().of_stored(self.slope, self.intercept).store(values, stored)


def fit_map(
    intensity: IntensityMap,
    volumes: Sequence[Volume],
    channel: int,
    measured: Range,
    onto: NetworkRange,
) -> FittedMap:
    """Fit a card's intensity map to one of the scans of a study, on the scan's own grid.

    measured: the scan's `study_range`. onto: the network's range. Raises PreparationError if the
    statistics that it needs do not exist.
    """
    if not isinstance(intensity, maps.Steps):
        return FittedMap(fit(intensity, volumes[channel], measured, onto))
    inside = region(intensity.over, volumes, channel)
    steps = _fit_steps(intensity, volumes[channel], inside, measured, onto)
    kept = inside if intensity.outside == "zero" else None
    last = steps[-1]
    if isinstance(last, Scaling):
        return FittedMap(last, steps[:-1], kept)
    return FittedMap(Scaling(), steps, kept)


def fit(
    intensity: Linear | maps.Identity,
    volume: Volume,
    measured: Range,
    onto: NetworkRange = maps.USUAL_RANGE,
) -> Scaling:
    """Fit a map that is a line.

    measured: lowest and highest value. onto: the network's range. Raises PreparationError if the
    requested percentiles are equal.
    """
    match intensity:
        case maps.Window(low, high):
            return _between(Range(low, high), onto, clips=True)
        case maps.Percentiles(low, high):
            return _between(_percentiles(volume, low, high), onto, clips=True)
        case maps.MinMax():
            return _between(measured, onto)
        case maps.ZScore(spread):
            mean, deviation = mean_and_deviation(volume)
            return Scaling(mean, deviation * spread)
        case maps.SampleZScore():
            mean, deviation = mean_and_deviation(volume)
            count = volume.voxels.size
            return Scaling(mean, deviation * sqrt(count / (count - 1)))
        case maps.Standard(mean, sd):
            return Scaling(mean, sd)
        case maps.Identity():
            return Scaling()


def _between(ends: Range, onto: NetworkRange, *, clips: bool = False) -> Scaling:
    if onto == "0..1":
        return Scaling(ends.low, ends.high - ends.low, clips, lowest=0.0)
    middle, half = (ends.low + ends.high) / 2, (ends.high - ends.low) / 2
    return Scaling(middle, half, clips and onto != "open")


def _percentiles(volume: Volume, low: float, high: float) -> Range:
    ends = percentiles(volume, low, high)
    if ends.low == ends.high:
        raise PreparationError(
            f"Percentiles {low:g} and {high:g} of this study are both {ends.low:g}, so "
            "its intensities cannot be mapped; it is nearly constant."
        )
    return ends


def region(over: Voxels, volumes: Sequence[Volume], channel: int) -> Mask | None:
    """Return the voxels [i, j, k] of a scan that a chain of steps measures; None for all.

    Raises PreparationError if there are none.
    """
    volume = volumes[channel]
    match over:
        case "all":
            return None
        case "nonzero":
            inside = _nonzero(volume)
        case "positive":
            inside = volume.values() > 0
        case "above_mean":
            inside = volume.values() > mean_and_deviation(volume)[0]
        case "filled":
            inside = filled(volumes)
    if not inside.any():
        raise PreparationError(
            f"The model measures voxels that are {_IN_WORDS[over]}, and the scan has none; check "
            "how it was saved."
        )
    return inside


def crop_box(volumes: Sequence[Volume], card: ModelCard) -> Box | None:
    """Return the part [i, j, k] of scans that a model crops them to; None if it does not.

    Raises PreparationError if nothing would be left.
    """
    if card.crop is None:
        return None
    found = [region(card.crop.around, volumes, channel) for channel in range(len(volumes))]
    inside = np.any([mask for mask in found if mask is not None], axis=0)
    edges = list[slice]()
    for extent, others in zip(inside.shape, ((1, 2), (0, 2), (0, 1)), strict=True):
        planes = np.flatnonzero(inside.any(axis=others))
        low, high = int(planes[0]), int(planes[-1]) + 1
        edges.append(slice(max(low - card.crop.margin, 0), min(high + card.crop.margin, extent)))
    return triple(edges)


_IN_WORDS: dict[Voxels, str] = {
    "nonzero": "not 0",
    "positive": "above 0",
    "above_mean": "above their mean",
    "filled": "not 0",
}


def _nonzero(volume: Volume) -> Mask:
    return volume.voxels != -volume.intercept / volume.slope


def filled(volumes: Sequence[Volume]) -> Mask:
    """Return the voxels that are not 0 in one of the scans, and holes that they enclose: those that
    no path through faces of voxels connects with the border (nnU-Net's create_nonzero_mask).
    """
    sitk: Any = import_module("SimpleITK")  # late, as few models need it; it ships no types
    found = np.any([_nonzero(volume) for volume in volumes], axis=0)
    image = sitk.GetImageFromArray(np.ascontiguousarray(found.T).astype(np.uint8))
    return sitk.GetArrayFromImage(sitk.BinaryFillhole(image, False, 1.0)).T.astype(bool)


def _fit_steps(
    chain: maps.Steps, volume: Volume, inside: Mask | None, measured: Range, onto: NetworkRange
) -> tuple[FittedStep, ...]:
    """Fit one step after another to the voxels that the ones before it make."""
    sample: Values | None = None
    if any(map(maps.is_measured, chain.steps)):
        values = volume.values()
        sample = values.ravel(order="K") if inside is None else values[inside]
    ends = np.array([measured.low, measured.high])
    if chain.outside == "zero" and sample is not None:
        ends = np.array([sample.min(), sample.max()], np.float64)
    found = list[FittedStep]()
    for step in chain.steps:
        if isinstance(step, maps.Logarithm) and ends[0] + step.offset <= 0:
            raise PreparationError(
                f"The model takes the logarithm of values that reach down to {ends[0]:g}, with an "
                f"offset of {step.offset:g}; the scan is in another unit, or does not suit the "
                "model."
            )
        fitted = _fit_step(step, volume, sample, onto)
        found.append(fitted)
        ends = forward(fitted, ends)
        sample = None if sample is None else forward(fitted, sample).astype(np.float32, copy=False)
    return tuple(found)


def _fit_step(
    step: IntensityStep, volume: Volume, sample: Values | None, onto: NetworkRange
) -> FittedStep:
    if isinstance(step, maps.ClipValues | maps.Logarithm | maps.GammaCurve):
        return step
    if sample is None or not maps.is_measured(step):
        assert not isinstance(step, maps.ClipPercentiles)
        return fit(step, volume, Range(0, 0), onto)
    ends = extremes(sample)
    if ends.low == ends.high:
        raise PreparationError(
            f"All voxels that the model measures have the value {ends.low:g}, so the scan's "
            "intensities cannot be mapped; check how it was saved."
        )
    part = volume.with_voxels(sample)
    if isinstance(step, maps.ClipPercentiles):
        low_high = _percentiles(part, step.low, step.high)
        return maps.ClipValues(low_high.low, low_high.high)
    return fit(step, part, ends, onto)
