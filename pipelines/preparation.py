"""A scan into the model's axes, spacing and intensity, and its translation back onto the scan."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..engine.card import Identity, ModelCard
from ..engine.cores import beside_each_other
from ..engine.graph import FloatArray, Triple
from ..io.volume import AnyArray, Empty, Volume
from .errors import PreparationError
from .intensity import Scaling, fit
from .measuring import Range, extremes, study_range
from .orientation import Orientation, memory_order, orientation
from .resampling import Resampling, Rows, resampling
from .storage import ENOUGH_STEPS, Demand, Storage, choose_storage, storage_of

Part: TypeAlias = tuple[slice, ...]

_SLAB = 1 << 19
"""Voxels handled at once; a few times their float64 copy is all the memory that a step takes, and
that stays near a processor's caches."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scan as the network takes it, and what leads back.

    array: [1, D, H, W] in network intensity, in memory in the order of the scan's axes unless it
    was resampled. source: the scan without the memory of its voxels. outward: from the scan's
    values to network intensities, for the contrast that comes out. steps: how many steps of its
    voxel type the scan's own values span.
    """

    array: FloatArray
    source: Volume
    orientation: Orientation
    resampling: Resampling | None
    outward: Scaling
    steps: float


def prepare(volume: Volume, card: ModelCard, empty: Empty = np.empty) -> Prepared:
    """Orient, map the intensities of, and resample a scan as a model's card demands.

    The intensity map comes first, so its clipping keeps metal from smearing over its neighbours.
    Memory beside the volume: the array, 4 bytes a voxel of the model's grid, from `empty`, and a
    few slabs.

    Raises PreparationError if the scan is empty, constant, flat or not finite, if its affine is
    unusable, or if the model takes more than one channel.
    """
    if len(card.input_channels) != 1 or len(card.output_channels) != 1:
        raise PreparationError(
            f"The model takes {len(card.input_channels)} channels and makes "
            f"{len(card.output_channels)}, but a scan has one; use a model of one channel."
        )
    turned = orientation(volume.affine, card.axes)
    measured = study_range(volume)
    scaling = outward = fit(card.intensity_in, volume, measured)
    if card.intensity_out != card.intensity_in:
        outward = fit(card.intensity_out, volume, measured)
    view = turned.oriented(volume.voxels)
    spacing = turned.sorted_spacing(volume.spacing)
    resample = resampling(_extents(view), spacing, card.spacing)
    _check_grid(_extents(view) if resample is None else resample.target)
    stored = scaling.of_stored(volume.slope, volume.intercept)
    if resample is None:
        array = _mapped(stored, view, empty)
    else:
        array = _resampled(lambda start, stop: stored.forward(view[start:stop]), resample, empty)
    return Prepared(
        array=array[None],
        source=_without_voxels(volume),
        orientation=turned,
        resampling=resample,
        outward=outward,
        steps=(measured.high - measured.low) / abs(volume.slope),
    )


def finish(
    prepared: Prepared, translated: FloatArray, card: ModelCard, empty: Empty = np.empty
) -> Volume:
    """A translated array [1, D, H, W] as a volume on exactly the scan's grid.

    Its voxel type follows `choose_storage`. Raises PreparationError if the generator made values
    that are not finite.
    """
    [network] = translated
    produced = _produced_range(network)
    demand = Demand(prepared.outward.range)
    if isinstance(card.intensity_out, Identity):
        demand = Demand(produced, min(ENOUGH_STEPS, prepared.steps))
    storage = choose_storage(storage_of(prepared.source), card, demand)
    voxels = empty(prepared.source.shape[::-1], storage.dtype).transpose()
    _scatter(network, prepared, storage, prepared.orientation.oriented(voxels))
    return prepared.source.with_voxels(voxels, storage.slope, storage.intercept)


def _mapped(stored: Scaling, view: AnyArray, empty: Empty) -> FloatArray:
    """In memory in the order of the scan's axes."""
    order = memory_order(view)
    extents = tuple(view.shape[axis] for axis in order)
    array = empty(extents, np.float32).transpose(np.argsort(order))

    def fill(slab: Part) -> None:
        stored.forward(view[slab], array[slab])

    beside_each_other(fill, _slabs(view))
    return array


def _resampled(read: Rows, resample: Resampling, empty: Empty) -> FloatArray:
    array = empty(resample.target, np.float32)
    for start, stop in _rows(resample.target):
        array[start:stop] = resample.rows(read, start, stop)
    return array


def _scatter(network: FloatArray, prepared: Prepared, storage: Storage, view: AnyArray) -> None:
    outward = prepared.outward.of_stored(storage.slope, storage.intercept)
    if prepared.resampling is None:

        def fill(slab: Part) -> None:
            storage.store(outward.inverse(network[slab], view.dtype), view[slab])

        beside_each_other(fill, _slabs(network))
        return
    back = prepared.resampling.inverse

    def read(start: int, stop: int) -> FloatArray:
        return network[start:stop]

    for start, stop in _rows(_extents(view)):
        storage.store(outward.inverse(back.rows(read, start, stop), view.dtype), view[start:stop])


def _produced_range(network: FloatArray) -> Range:
    produced = extremes(network)
    if not produced.is_finite:
        raise PreparationError(
            "The generator made values that are not finite; "
            "check the model, or translate again with --precision fp32."
        )
    return produced


def _check_grid(extents: Triple) -> None:
    if min(extents) < 2:
        raise PreparationError(
            f"On the model's grid the scan has {'x'.join(map(str, extents))} voxels, and a 3D "
            "model needs at least 2 along each axis; check the scan and its spacing."
        )


def _without_voxels(volume: Volume) -> Volume:
    blank = np.zeros((), volume.voxels.dtype)
    return volume.with_voxels(np.broadcast_to(blank, volume.shape), volume.slope, volume.intercept)


def _slabs(source: AnyArray) -> Iterator[Part]:
    """Parts of what is read, along whichever of its axes is the slowest in memory."""
    axis = memory_order(source)[0]
    extent = source.shape[axis]
    count = max(_SLAB * extent // source.size, 1)
    for start in range(0, extent, count):
        yield (slice(None),) * axis + (slice(start, start + count),)


def _rows(extents: Triple) -> Iterator[tuple[int, int]]:
    depth, height, width = extents
    count = max(_SLAB // (height * width), 1)
    return ((start, min(start + count, depth)) for start in range(0, depth, count))


def _extents(array: AnyArray) -> Triple:
    depth, height, width = array.shape
    return depth, height, width
