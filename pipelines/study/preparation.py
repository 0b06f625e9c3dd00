"""Scans as a model takes them: in its axes and spacing, with the maps to its intensities."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...engine.cores import beside_each_other
from ...engine.model.model_card import ModelCard
from ...engine.network.layers import FloatArray, triple
from ...engine.scaling import Scaling, Stored
from ...io.volume import AnyArray, Empty, SyntheticMark, Volume
from ..errors import PreparationError
from .plan import StudyPlan
from .voxels.input_figures import InputFigures, input_figures
from .voxels.intensity import check_told_apart, fit, notes_of_rounding, notes_of_window
from .voxels.orientation import memory_order
from .voxels.planes import Slab, rows, slabs
from .voxels.resampling import Resampling
from .voxels.statistics import Range, study_range


@dataclass(frozen=True, slots=True)
class Fit:
    """How intensities of a study's scans are mapped, by what was measured of them.

    inward: from each scan's values to network intensities. outward: from the first scan's, for each
    channel that comes out. steps: how many steps of its voxel type the first scan's own values
    span. notes: what a user should know of how the scans fit the model's intensity maps.
    """

    inward: tuple[Scaling, ...]
    outward: tuple[Scaling, ...]
    steps: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The scans of a study as the network takes them, and how results come back from that.

    given: [C, D, H, W], the one scan's own voxels seen along the model's axes where they can be
    taken as they are stored; otherwise network intensities. source: the first scan without the
    memory of its voxels. fit: of their intensities. plan: by which they were prepared. marks: of
    the results of all channels.
    """

    plan: StudyPlan
    given: Stored
    source: Volume
    fit: Fit
    marks: tuple[SyntheticMark, ...] = ()

    def figures(self) -> InputFigures:
        """What the scan is like for the model."""
        plan = self.plan
        spacing = plan.orientation.sorted_spacing(self.source.spacing)
        steps = plan.resampling.steps if plan.resampling else (1.0, 1.0, 1.0)
        edges = triple(edge * step for edge, step in zip(spacing, steps, strict=True))
        return input_figures(self.given, edges, spacing)


def prepare(
    volumes: Sequence[Volume], plan: StudyPlan, card: ModelCard, empty: Empty = np.empty
) -> Prepared:
    """Measure, and where need be map and resample scans as their plan and a model's card demand.

    volumes: in the model's order of channels, all on one grid. Before resampling the intensity map
    comes first, so its clipping keeps metal from smearing over its neighbours. Memory beside the
    volumes: nothing where voxels are taken as they are stored; else the array from `empty`, 4 bytes
    a voxel of the model's grid and channel, and a few slabs.

    Raises PreparationError as `fit_scans`.
    """
    fitted = fit_scans(volumes, card)
    scans = [
        Stored(
            plan.orientation.oriented(volume.voxels)[None],
            scaling.of_stored(volume.slope, volume.intercept),
        )
        for volume, scaling in zip(volumes, fitted.inward, strict=True)
    ]
    given = scans[0] if plan.is_given_as_stored else _in_network(scans, plan.resampling, empty)
    return Prepared(plan, given, _without_voxels(volumes[0]), fitted)


def fit_scans(volumes: Sequence[Volume], card: ModelCard) -> Fit:
    """Measure scans, in the model's order of channels, and find the maps that a card demands.

    Raises PreparationError if a scan is constant, flat or not finite, lies outside its window as a
    whole, or 32-bit floats cannot tell its values apart.
    """
    ranges = [_range_of(volume, channel, card) for channel, volume in enumerate(volumes)]
    for intensity, measured in zip(card.maps_in, ranges, strict=True):
        check_told_apart(intensity, measured)
    inward = [
        fit(intensity, volume, measured, card.input_range)
        for intensity, volume, measured in zip(card.maps_in, volumes, ranges, strict=True)
    ]
    source, measured = volumes[0], ranges[0]
    outward = tuple(
        inward[0]
        if card.maps_alike(channel)
        else fit(intensity, source, measured, card.output_range)
        for channel, intensity in enumerate(card.maps_out)
    )
    steps = (measured.high - measured.low) / abs(source.slope)
    return Fit(tuple(inward), outward, steps, tuple(_notes(volumes, ranges, card)))


def unfilled(volumes: Sequence[Volume], plan: StudyPlan) -> Stored:
    """What the network will be given, of that type and so laid out in memory; no voxel is set."""
    view = plan.orientation.oriented(volumes[0].voxels)
    if plan.is_given_as_stored:
        return Stored(view[None])
    return Stored(network_room(view, len(volumes), plan.resampling, np.empty))


def network_room(
    view: AnyArray, channels: int, resample: Resampling | None, empty: Empty
) -> FloatArray:
    """New memory [C, D, H, W] for the network intensities of scans that are seen as a 3D array."""
    if resample:
        return empty((channels, *resample.target), np.float32)
    return lying_alike(view, channels, empty)


def lying_alike(view: AnyArray, channels: int, empty: Empty) -> FloatArray:
    """New memory [C, D, H, W] of the shape of a 3D array, its axes in the same order there."""
    order = memory_order(view)
    extents = tuple(view.shape[axis] for axis in order)
    axes = (0, *(1 + int(axis) for axis in np.argsort(order)))
    return empty((channels, *extents), np.float32).transpose(axes)


def _range_of(volume: Volume, channel: int, card: ModelCard) -> Range:
    with _named(channel, card):
        return study_range(volume)


def _notes(volumes: Sequence[Volume], ranges: Sequence[Range], card: ModelCard) -> Iterator[str]:
    """On each scan, with the channel's name where there are several."""
    for channel, (volume, measured) in enumerate(zip(volumes, ranges, strict=True)):
        name = "" if len(volumes) == 1 else f"{card.input_channels[channel]}: "
        with _named(channel, card):
            found = notes_of_window(card.maps_in[channel], volume, measured, card.input_range)
        yield from (f"{name}{note}" for note in (*found, *notes_of_rounding(volume, measured)))


@contextmanager
def _named(channel: int, card: ModelCard) -> Generator[None]:
    """What is wrong with one of several scans is told with the channel's name."""
    try:
        yield
    except PreparationError as error:
        if len(card.input_channels) == 1:
            raise
        raise PreparationError(f"{card.input_channels[channel]}: {error}") from error


def _in_network(scans: Sequence[Stored], resample: Resampling | None, empty: Empty) -> Stored:
    """Network intensities of all scans, on the grid that they are resampled to if they are."""
    array = network_room(scans[0].values[0], len(scans), resample, empty)
    for scan, channel in zip(scans, array, strict=True):
        if resample is None:
            _map(scan, channel)
        else:
            _resample(scan, resample, channel)
    return Stored(array)


def _map(scan: Stored, channel: FloatArray) -> None:
    [view] = scan.values

    def fill(slab: Slab) -> None:
        scan.scaling.forward(view[slab], channel[slab])

    beside_each_other(fill, slabs(view))


def _resample(scan: Stored, resample: Resampling, channel: FloatArray) -> None:
    [view] = scan.values

    def read(start: int, stop: int) -> FloatArray:
        return scan.scaling.forward(view[start:stop])

    for start, stop in rows(resample.target):
        channel[start:stop] = resample.rows(read, start, stop)


def _without_voxels(volume: Volume) -> Volume:
    blank = np.zeros((), volume.voxels.dtype)
    return volume.with_voxels(np.broadcast_to(blank, volume.shape), volume.slope, volume.intercept)
