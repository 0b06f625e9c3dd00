"""Scans prepared for a model: NaN replaced, in its axes, spacing and intensities."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ...engine.cores import in_parallel
from ...engine.model.intensity_maps import (
    USUAL_RANGE,
    Identity,
    IntensityMap,
    NetworkRange,
    Steps,
    Window,
)
from ...engine.model.model_card import ModelCard
from ...engine.network.layers import FloatArray, triple
from ...engine.scaling import Stored
from ...io.formats.registry import format_named
from ...io.volume import AnyArray, Empty, SyntheticMark, Volume
from ..errors import PreparationError
from .geometry import Orientation, Slab, memory_order, slabs
from .grid_windows import PlacedWindow
from .input_figures import InputFigures, input_figures
from .intensities import FittedMap, MappedVoxels, fit_map, region
from .plan import StudyPlan
from .resampling import Resampling
from .scan_limits import notes_of_gaps, notes_of_unit
from .statistics import Range, share_between, study_range


def without_nan(volume: Volume, value: float | None) -> Volume:
    """Replace every NaN by `value`, in the volume's unit, and note how many there were.

    None changes nothing. Infinite values stay: they mean that something overflowed. The voxels are
    changed in place if they are writeable.
    """
    if value is None or volume.voxels.dtype.kind != "f" or not volume.voxels.size:
        return volume
    voxels = volume.voxels if volume.voxels.flags.writeable else volume.voxels.copy(order="K")
    stored = (value - volume.intercept) / volume.slope

    def fill(slab: Slab) -> int:
        missing = np.isnan(voxels[slab])
        found = int(np.count_nonzero(missing))
        if found:
            voxels[slab][missing] = stored
        return found

    found = sum(in_parallel(fill, slabs(voxels)))
    if not found:
        return volume
    note = f"{found} of {voxels.size} voxels were NaN, and were replaced by {value:g}"
    return replace(volume, voxels=voxels, notes=(*volume.notes, note))


FEWEST_STEPS = 255
"""Least steps of 32-bit floats in a scan's range if no map brings its values near 0."""


def check_distinguishable(intensity: IntensityMap, measured: Range) -> None:
    """Raise PreparationError if unmapped values would be rounded to each other."""
    if not isinstance(intensity, Identity):
        return
    largest = np.float32(max(abs(measured.low), abs(measured.high)))
    if measured.high - measured.low < FEWEST_STEPS * float(np.spacing(largest)):
        raise PreparationError(
            f"The values reach from {measured.low:.12g} to {measured.high:.12g}, which the 32-bit "
            "floats of a network can hardly distinguish; subtract the offset, or check the "
            "scaling in the scan's header."
        )


WHOLE_NUMBERS = 1 << 24
"""Limit up to which 32-bit floats represent every whole number."""


def notes_of_rounding(volume: Volume, measured: Range) -> tuple[str, ...]:
    """Return a note if whole numbers are rounded by a network's 32-bit floats."""
    ends = (measured.low, measured.high)
    largest = max(abs((end - volume.intercept) / volume.slope) for end in ends)
    if volume.voxels.dtype.kind not in "iu" or largest <= WHOLE_NUMBERS:
        return ()
    step = float(np.spacing(np.float32(largest))) * abs(volume.slope)
    return (
        f"its voxels are whole numbers up to {largest:.0f}, but 32-bit floats represent them "
        f"exactly only up to {WHOLE_NUMBERS}: values are rounded to steps of {step:g}",
    )


LEAST_SHOWN = 0.01
"""Least share of a fixed window or of the voxels; with less, the scan seems to be in
another unit.
"""


def notes_of_window(
    intensity: IntensityMap, volume: Volume, measured: Range, onto: NetworkRange = USUAL_RANGE
) -> tuple[str, ...]:
    """Return a note if a fixed window covers hardly any of a scan, as of one in another unit.

    Raises PreparationError if it covers nothing.
    """
    if not isinstance(intensity, Window) or onto == "open":
        return ()
    low, high = intensity.low, intensity.high
    ends = f"from {measured.low:g} to {measured.high:g}"
    window = f"the model's window from {low:g} to {high:g}"
    shown = (min(high, measured.high) - max(low, measured.low)) / (high - low)
    if shown <= 0:
        raise PreparationError(
            f"The values reach {ends}, all outside {window}; the scan is in another unit, or does "
            "not suit the model."
        )
    if shown < LEAST_SHOWN:
        return (f"its values reach {ends}, {shown:.2%} of {window}; check its unit",)
    is_clipped = measured.low < low or measured.high > high
    if is_clipped and (inside := share_between(volume, Range(low, high))) < LEAST_SHOWN:
        words = f"its values reach {ends}, and only {inside:.2%} of its voxels lie within"
        return (f"{words} {window}; check its unit",)
    return ()


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted intensity maps of a study.

    inward: from each scan's values to network intensities. outward: from the first scan's values,
    for each output channel. steps: number of steps of its voxel type in the first scan's range.
    notes: for the user, on how the scans fit the model's intensity maps.
    """

    inward: tuple[FittedMap, ...]
    outward: tuple[FittedMap, ...]
    steps: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Scans of a study as the network receives them, and the mapping of results back. plan: plan by
    which they were prepared. network_input: [C, D, H, W], the one scan's own voxels seen along the
    model's axes if they can be taken as stored; otherwise network intensities. source: the first
    scan without the memory of its voxels. fit: of their intensities. marks: of the results of all
    channels. fills: value of each channel's result outside of the part that is translated.
    window_fill: value outside of the window on the model's grid.
    """

    plan: StudyPlan
    network_input: Stored
    source: Volume
    fit: Fit
    marks: tuple[SyntheticMark, ...] = ()
    fills: tuple[float, ...] = ()
    window_fill: float = 0.0

    def figures(self) -> InputFigures:
        """Return figures of the scan as the model sees it."""
        plan = self.plan
        spacing = plan.orientation.sorted_spacing(self.source.spacing)
        steps = plan.resampling.steps if plan.resampling else (1.0, 1.0, 1.0)
        edges = triple(edge * step for edge, step in zip(spacing, steps, strict=True))
        return input_figures(self.network_input, edges, spacing)


def prepare(
    volumes: Sequence[Volume], plan: StudyPlan, card: ModelCard, empty: Empty = np.empty
) -> Prepared:
    """Measure scans, and map and resample them if their plan and a model's card require it.

    volumes: in the model's order of channels, all on one grid. Before resampling the intensity map
    comes first, so its clipping keeps metal from smearing over its neighbours, unless the card says
    that it comes afterwards. Additional memory:
    none if voxels are taken as stored; else the array from `empty`, 4 bytes per voxel of the
    model's grid and channel, and a few slabs.

    Raises PreparationError as `fit_scans`.
    """
    source, volumes = volumes[0], [plan.part(volume) for volume in volumes]
    resample, window, turned = plan.resampling, plan.window, plan.orientation
    is_remapped = False
    if resample and card.maps_on != "scan":
        volumes, is_remapped = [on_grid(volume, turned, resample) for volume in volumes], True
        resample = None
    if window and card.maps_on == "window":
        volumes, is_remapped = [in_window(volume, turned, window) for volume in volumes], True
        window = None
    fitted = fit_scans(volumes, card)
    scans = [
        mapped_voxels(volume, fitted_map, turned)
        for volume, fitted_map in zip(volumes, fitted.inward, strict=True)
    ]
    if plan.is_input_as_stored:
        network_input = Stored(scans[0].voxels[None], scans[0].scaling)
    else:
        network_input = _in_network(scans, plan, resample, window, empty)
    if is_remapped:
        outward = _outward_on_scan(fitted, plan.part(source), card)
        fitted = replace(fitted, outward=outward, steps=fitted.steps / abs(source.slope))
    blank, fill = _without_voxels(source), card.grid_window.fill if card.grid_window else 0.0
    return Prepared(plan, network_input, blank, fitted, fills=card.fills, window_fill=fill)


def on_grid(volume: Volume, turned: Orientation, resample: Resampling) -> Volume:
    """Return a scan resampled onto the model's grid, before its intensities are mapped.

    Its voxels lie along the scan's own axes; its affine stays that of the scan.
    """
    view = turned.oriented(volume.voxels)
    is_whole = resample.keeps_integers and _has_integers(volume)

    def read(start: int, stop: int) -> AnyArray:
        values = view[start:stop] * np.float64(volume.slope) + volume.intercept
        return values.astype(np.int64 if is_whole else np.float32)

    made = np.empty(resample.target, np.float32)
    for part, values in resample.parts(read):
        made[part] = values
    return volume.with_voxels(turned.in_scan(made))


def _has_integers(volume: Volume) -> bool:
    """Return whether SimpleITK reads a scan as integers: it scales NIfTI files in floats."""
    if volume.voxels.dtype.kind not in "iu":
        return False
    if volume.format == "dicom":
        return volume.slope.is_integer() and volume.intercept.is_integer()
    return (volume.slope, volume.intercept) == (1.0, 0.0)


def in_window(volume: Volume, turned: Orientation, window: PlacedWindow) -> Volume:
    """Return a scan on the model's grid cropped and padded, before its intensities are mapped.

    Its voxels lie along the scan's own axes; its affine stays that of the scan.
    """
    made = np.empty(window.extents, np.float32)
    window.cut(turned.oriented(volume.values().astype(np.float32, copy=False)), made)
    return volume.with_voxels(turned.in_scan(made))


def _outward_on_scan(fitted: Fit, source: Volume, card: ModelCard) -> tuple[FittedMap, ...]:
    """Return outward maps, fitted on the model's grid, with their regions on the scan's."""

    def on_scan(outward: FittedMap, intensity: IntensityMap) -> FittedMap:
        if outward.inside is None or not isinstance(intensity, Steps):
            return outward
        return replace(outward, inside=region(intensity.over, [source], 0))

    pairs = zip(fitted.outward, card.maps_out, strict=True)
    return tuple(on_scan(*each) for each in pairs)


def fit_scans(volumes: Sequence[Volume], card: ModelCard) -> Fit:
    """Measure scans, in the model's order of channels, and fit the maps of a card to them.

    Raises PreparationError if a scan is constant, flat or not finite, lies outside its window as a
    whole, lacks what a map measures, or 32-bit floats cannot separate its values.
    """
    ranges = [_range_of(volume, channel, card) for channel, volume in enumerate(volumes)]
    for intensity, measured in zip(card.maps_in, ranges, strict=True):
        check_distinguishable(intensity, measured)
    inward = list[FittedMap]()
    for channel, (intensity, measured) in enumerate(zip(card.maps_in, ranges, strict=True)):
        with _named(channel, card):
            inward.append(fit_map(intensity, volumes, channel, measured, card.input_range))
    source, measured = volumes[0], ranges[0]
    outward = tuple(
        inward[0]
        if card.maps_alike(channel)
        else fit_map(intensity, volumes, 0, measured, card.output_range)
        for channel, intensity in enumerate(card.maps_out)
    )
    steps = (measured.high - measured.low) / abs(source.slope)
    return Fit(tuple(inward), outward, steps, tuple(_notes(volumes, ranges, card)))


def unfilled(volumes: Sequence[Volume], plan: StudyPlan) -> Stored:
    """Return the network's input in type and memory layout, without values."""
    view = plan.orientation.oriented(plan.part(volumes[0]).voxels)
    if plan.is_input_as_stored:
        return Stored(view[None])
    if plan.window:
        return Stored(np.empty((len(volumes), *plan.window.extents), np.float32))
    return Stored(network_array(view, len(volumes), plan, np.empty))


def network_array(view: AnyArray, channels: int, plan: StudyPlan, empty: Empty) -> FloatArray:
    """Allocate [C, D, H, W] for the network intensities of scans seen as a 3D array."""
    if plan.resampling:
        return empty((channels, *plan.grid), np.float32)
    return lying_alike(view, channels, empty)


def lying_alike(view: AnyArray, channels: int, empty: Empty) -> FloatArray:
    """Allocate [C, D, H, W] with the shape and the memory order of axes of a 3D array."""
    order = memory_order(view)
    extents = tuple(view.shape[axis] for axis in order)
    axes = (0, *(1 + int(axis) for axis in np.argsort(order)))
    return empty((channels, *extents), np.float32).transpose(axes)


def _range_of(volume: Volume, channel: int, card: ModelCard) -> Range:
    with _named(channel, card):
        return study_range(volume)


def _notes(volumes: Sequence[Volume], ranges: Sequence[Range], card: ModelCard) -> Iterator[str]:
    """Yield notes on each scan, with the channel's name if there are several."""
    for channel, (volume, measured) in enumerate(zip(volumes, ranges, strict=True)):
        name = "" if len(volumes) == 1 else f"{card.input_channels[channel]}: "
        with _named(channel, card):
            found = notes_of_window(card.maps_in[channel], volume, measured, card.input_range)
        source = card.input_channels[channel] if name else card.source
        intensity, is_calibrated = card.maps_in[channel], card.expected is not None
        unit = notes_of_unit(source, intensity, volume, measured, is_calibrated=is_calibrated)
        every = *found, *notes_of_rounding(volume, measured), *unit, *notes_of_gaps(volume)
        yield from (f"{name}{note}" for note in every)
    yield from _notes_for_planning(volumes[0], card)


_AXIAL_DEGREES = 0.1


def _notes_for_planning(volume: Volume, card: ModelCard) -> Iterator[str]:
    """Yield a note if a series of a synthetic CT would not be axial, as treatment planning needs.

    volume: the scan whose grid the result has.
    """
    if not format_named(volume.format).is_series or card.targets != ("CT",):
        return
    along = np.abs(np.diagonal(volume.affine[:3, :3])) / volume.spacing
    turned = float(np.degrees(np.arccos(np.clip(along, 0.0, 1.0)).max()))
    if turned > _AXIAL_DEGREES:
        yield (
            f"slices are not axial (turned by {turned:.1f} degrees), and those of the synthetic CT "
            "will not be either, so treatment planning systems may refuse it; see "
            "docs/radiotherapy.md"
        )


@contextmanager
def _named(channel: int, card: ModelCard) -> Generator[None]:
    """Add the channel's name to errors on one of several scans."""
    try:
        yield
    except PreparationError as error:
        if len(card.input_channels) == 1:
            raise
        raise PreparationError(f"{card.input_channels[channel]}: {error}") from error


def mapped_voxels(volume: Volume, fitted: FittedMap, orientation: Orientation) -> MappedVoxels:
    """View the voxels of a volume along the model's axes, with the map between them and network
    intensities.
    """
    inside = None if fitted.inside is None else orientation.oriented(fitted.inside)
    view = orientation.oriented(volume.voxels)
    return MappedVoxels(view, volume.slope, volume.intercept, fitted, inside)


def _in_network(
    scans: Sequence[MappedVoxels],
    plan: StudyPlan,
    resample: Resampling | None,
    window: PlacedWindow | None,
    empty: Empty,
) -> Stored:
    """Return network intensities of all scans, resampled, cropped and padded if required."""
    if plan.window and window is None:
        array = lying_alike(scans[0].voxels, len(scans), empty)
    else:
        array = network_array(scans[0].voxels, len(scans), plan, empty)
    for scan, channel in zip(scans, array, strict=True):
        if resample is None:
            _map(scan, channel)
        else:
            _resample(scan, resample, channel)
    if window is None:
        return Stored(array)
    made = empty((len(scans), *window.extents), np.float32)
    for whole, part in zip(array, made, strict=True):
        window.cut(whole, part)
    return Stored(made)


def _map(scan: MappedVoxels, channel: FloatArray) -> None:
    def fill(slab: Slab) -> None:
        scan.read(slab, channel[slab])

    in_parallel(fill, slabs(scan.voxels))


def _resample(scan: MappedVoxels, resample: Resampling, channel: FloatArray) -> None:
    def read(start: int, stop: int) -> FloatArray:
        return scan.read(slice(start, stop))

    for part, resampled in resample.parts(read):
        channel[part] = resampled


def _without_voxels(volume: Volume) -> Volume:
    blank = np.zeros((), volume.voxels.dtype)
    return volume.with_voxels(np.broadcast_to(blank, volume.shape), volume.slope, volume.intercept)
